// What tokenizer_config.json and chat_template.jinja of a model folder say.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace retroinfer {

struct TokenizerConfig {
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::optional<std::string> chat_template;  // the one named "default", if there are several
};

// Reads both files; one that is absent says nothing. chat_template.jinja comes before the field of
// the same name.
//
// Returns: INVALID_ARGUMENT with the place, if a file is malformed or a template over 1 MiB.
absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const std::filesystem::path& model_folder);

}  // namespace retroinfer
