#include "gpu_worker/tokenizer/tokenizer_config.h"

#include <string_view>
#include <system_error>

#include "common/status/status_macros.h"
#include "gpu_worker/tokenizer/json_file.h"

namespace retroinfer {
namespace {

constexpr size_t kTemplateBytesMax = size_t{1} << 20;

// A token is written as its text, or as an object with the field "content".
absl::StatusOr<std::optional<std::string>> ReadToken(const JsonValue& root, std::string_view key) {
  ASSIGN_OR_RETURN(const std::optional<JsonValue> value, root.Optional(key));
  if (!value.has_value()) return std::nullopt;
  if (value->IsString()) {
    ASSIGN_OR_RETURN(const std::string_view text, value->AsString());
    return std::string(text);
  }
  ASSIGN_OR_RETURN(const JsonValue content, value->Required("content"));
  ASSIGN_OR_RETURN(const std::string_view text, content.AsString());
  return std::string(text);
}

absl::StatusOr<std::optional<std::string>> ReadTemplate(const JsonValue& root) {
  ASSIGN_OR_RETURN(const std::optional<JsonValue> value, root.Optional("chat_template"));
  if (!value.has_value()) return std::nullopt;
  if (!value->IsArray()) {
    ASSIGN_OR_RETURN(const std::string_view text, value->AsString());
    if (text.size() > kTemplateBytesMax) return value->Error("is over 1 MiB");
    return std::string(text);
  }
  ASSIGN_OR_RETURN(const simdjson::dom::array templates, value->AsArray());
  for (const simdjson::dom::element element : templates) {
    const JsonValue item = value->Child(element, "[]");
    ASSIGN_OR_RETURN(const JsonValue name, item.Required("name"));
    ASSIGN_OR_RETURN(const std::string_view name_text, name.AsString());
    if (name_text != "default") continue;
    ASSIGN_OR_RETURN(const JsonValue body, item.Required("template"));
    ASSIGN_OR_RETURN(const std::string_view text, body.AsString());
    if (text.size() > kTemplateBytesMax) return body.Error("is over 1 MiB");
    return std::string(text);
  }
  return std::nullopt;
}

bool Exists(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace

absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const std::filesystem::path& model_folder) {
  TokenizerConfig config;
  if (const auto path = model_folder / "tokenizer_config.json"; Exists(path)) {
    ASSIGN_OR_RETURN(const JsonFile file, JsonFile::Load(path));
    const JsonValue root = file.root();
    ASSIGN_OR_RETURN(config.bos_token, ReadToken(root, "bos_token"));
    ASSIGN_OR_RETURN(config.eos_token, ReadToken(root, "eos_token"));
    ASSIGN_OR_RETURN(config.chat_template, ReadTemplate(root));
  }
  if (const auto path = model_folder / "chat_template.jinja"; Exists(path)) {
    ASSIGN_OR_RETURN(config.chat_template, ReadSmallFile(path, kTemplateBytesMax));
  }
  return config;
}

}  // namespace retroinfer
