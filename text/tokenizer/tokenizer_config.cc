#include "text/tokenizer/tokenizer_config.h"

#include <string_view>
#include <system_error>
#include <utility>

#include "common/files/regular_file.h"
#include "common/json/json_reader.h"
#include "common/status/status_macros.h"
#include "text/tokenizer/tokenizer_json.h"

namespace retroinfer {
namespace {

constexpr size_t kTemplateBytesMax = size_t{1} << 20;

// A token is written as its text, or as an object with the field "content".
absl::StatusOr<std::optional<std::string>> ReadToken(const common::JsonReader& root,
                                                     std::string_view key) {
  ASSIGN_OR_RETURN(const std::optional<common::JsonReader> value, root.Optional(key));
  if (!value.has_value()) return std::nullopt;
  if (value->IsString()) {
    ASSIGN_OR_RETURN(const std::string_view text, value->AsString());
    return std::string(text);
  }
  ASSIGN_OR_RETURN(const common::JsonReader content, value->Required("content"));
  ASSIGN_OR_RETURN(const std::string_view text, content.AsString());
  return std::string(text);
}

absl::StatusOr<std::string> TemplateText(const common::JsonReader& value) {
  ASSIGN_OR_RETURN(const std::string_view text, value.AsString());
  if (text.size() > kTemplateBytesMax) return value.Error("is over 1 MiB");
  return std::string(text);
}

// The field chat_template of `file`: one template, or a list of named ones.
absl::Status ReadTemplates(const common::JsonReader& root, const std::string& source,
                           TokenizerConfig& config) {
  ASSIGN_OR_RETURN(const std::optional<common::JsonReader> value, root.Optional("chat_template"));
  if (!value.has_value()) return absl::OkStatus();
  config.template_source = source;
  if (!value->IsArray()) {
    ASSIGN_OR_RETURN(config.chat_template, TemplateText(*value));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const common::JsonElements templates, value->AsArray());
  for (const common::JsonValue element : templates) {
    const common::JsonReader item = value->Child(element, "[]");
    ASSIGN_OR_RETURN(const common::JsonReader name, item.Required("name"));
    ASSIGN_OR_RETURN(const std::string_view name_text, name.AsString());
    if (name_text != "default" && name_text != "tool_use") continue;
    ASSIGN_OR_RETURN(const common::JsonReader body, item.Required("template"));
    ASSIGN_OR_RETURN(std::string text, TemplateText(body));
    (name_text == "default" ? config.chat_template : config.tool_template) = std::move(text);
  }
  return absl::OkStatus();
}

bool Exists(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace

absl::StatusOr<std::string> ReadTemplateFile(const std::filesystem::path& path) {
  absl::StatusOr<std::string> text = common::ReadNamedFile(path.string(), kTemplateBytesMax);
  // Too long a template is a bad model folder.
  if (absl::IsResourceExhausted(text.status())) {
    return absl::InvalidArgumentError(text.status().message());
  }
  return text;
}

absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const std::filesystem::path& model_folder) {
  TokenizerConfig config;
  if (const auto path = model_folder / "tokenizer_config.json"; Exists(path)) {
    ASSIGN_OR_RETURN(
        const common::JsonReader root,
        common::JsonReader::LoadObject(path.string(), path.filename().string(), kTokenizerJson));
    for (const char* const name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                                   "cls_token", "mask_token"}) {
      ASSIGN_OR_RETURN(const std::optional<std::string> token, ReadToken(root, name));
      if (token.has_value()) config.special_tokens.emplace_back(name, *token);
    }
    ASSIGN_OR_RETURN(config.bos_token, ReadToken(root, "bos_token"));
    ASSIGN_OR_RETURN(config.eos_token, ReadToken(root, "eos_token"));
    RETURN_IF_ERROR(ReadTemplates(root, "tokenizer_config.json", config));
  }
  if (const auto path = model_folder / "chat_template.json";
      !config.chat_template.has_value() && Exists(path)) {
    ASSIGN_OR_RETURN(
        const common::JsonReader root,
        common::JsonReader::LoadObject(path.string(), path.filename().string(), kTokenizerJson));
    RETURN_IF_ERROR(ReadTemplates(root, "chat_template.json", config));
  }
  if (const auto path = model_folder / "chat_template.jinja"; Exists(path)) {
    ASSIGN_OR_RETURN(config.chat_template, ReadTemplateFile(path));
    config.template_source = "chat_template.jinja";
    config.tool_template.reset();
  }
  if (const auto path = model_folder / "additional_chat_templates" / "tool_use.jinja";
      Exists(path)) {
    ASSIGN_OR_RETURN(config.tool_template, ReadTemplateFile(path));
  }
  return config;
}

}  // namespace retroinfer
