// What tokenizer_config.json and the files of chat templates in a model folder say.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace retroinfer {

struct TokenizerConfig {
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::optional<std::string> chat_template;  // the one named "default", if there are several
  std::optional<std::string> tool_template;  // the one named "tool_use": for requests with tools
  std::string template_source;               // the file that the chat template is from
  // What templates get by these names: "bos_token", "eos_token", "unk_token", "pad_token", ...
  std::vector<std::pair<std::string, std::string>> special_tokens;
};

// Reads the files; one that is absent says nothing. A template in chat_template.jinja comes before
// one in tokenizer_config.json, and that before one in chat_template.json; "tool_use" may also be
// in additional_chat_templates/tool_use.jinja.
//
// Returns: INVALID_ARGUMENT with the place, if a file is malformed or a template over 1 MiB.
absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const std::filesystem::path& model_folder);

// Reads a file with one template.
//
// Returns: NOT_FOUND or another error of the system; INVALID_ARGUMENT if it is over 1 MiB.
absl::StatusOr<std::string> ReadTemplateFile(const std::filesystem::path& path);

}  // namespace retroinfer
