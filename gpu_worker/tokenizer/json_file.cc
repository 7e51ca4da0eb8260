#include "gpu_worker/tokenizer/json_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

std::string Escaped(std::string_view text) {
  return absl::CHexEscape(std::string(text.substr(0, 100)));
}

}  // namespace

absl::Status JsonValue::Error(std::string_view problem) const {
  return absl::InvalidArgumentError(absl::StrCat(place_, ": ", std::string(problem)));
}

JsonValue JsonValue::Child(simdjson::dom::element element, std::string_view name) const {
  return {element,
          absl::StrCat(place_, place_.find(": ") == std::string::npos ? ": " : ".", Escaped(name))};
}

absl::StatusOr<bool> JsonValue::AsBool() const {
  bool value = false;
  if (element_.get_bool().get(value)) return Error("needs to be true or false");
  return value;
}

absl::StatusOr<std::string_view> JsonValue::AsString() const {
  std::string_view value;
  if (element_.get_string().get(value)) return Error("needs to be a string");
  return value;
}

absl::StatusOr<int32_t> JsonValue::AsInt32() const {
  int64_t value = 0;
  if (element_.get_int64().get(value) || value < std::numeric_limits<int32_t>::min() ||
      value > std::numeric_limits<int32_t>::max()) {
    return Error("needs to be an integer of 32 bits");
  }
  return static_cast<int32_t>(value);
}

absl::StatusOr<simdjson::dom::array> JsonValue::AsArray() const {
  simdjson::dom::array value;
  if (element_.get_array().get(value)) return Error("needs to be an array");
  return value;
}

absl::StatusOr<simdjson::dom::object> JsonValue::AsObject() const {
  simdjson::dom::object value;
  if (element_.get_object().get(value)) return Error("needs to be an object");
  return value;
}

absl::StatusOr<std::optional<JsonValue>> JsonValue::Optional(std::string_view key) const {
  ASSIGN_OR_RETURN(const simdjson::dom::object object, AsObject());
  std::optional<JsonValue> found;
  bool seen = false;
  for (const simdjson::dom::key_value_pair field : object) {
    if (field.key != key) continue;
    if (seen) return Error(absl::StrCat("the field \"", std::string(key), "\" occurs twice"));
    seen = true;
    if (!field.value.is_null()) found = Child(field.value, key);
  }
  return found;
}

absl::StatusOr<JsonValue> JsonValue::Required(std::string_view key) const {
  ASSIGN_OR_RETURN(std::optional<JsonValue> value, Optional(key));
  if (!value.has_value()) {
    return Error(absl::StrCat("the field \"", std::string(key), "\" is missing"));
  }
  return *std::move(value);
}

absl::StatusOr<bool> JsonValue::BoolOr(std::string_view key, bool fallback) const {
  ASSIGN_OR_RETURN(const std::optional<JsonValue> value, Optional(key));
  return value.has_value() ? value->AsBool() : fallback;
}

absl::Status JsonValue::AllowOnly(std::initializer_list<std::string_view> keys) const {
  ASSIGN_OR_RETURN(const simdjson::dom::object object, AsObject());
  for (const simdjson::dom::key_value_pair field : object) {
    if (std::find(keys.begin(), keys.end(), field.key) == keys.end()) {
      return Error(absl::StrCat("the field \"", Escaped(field.key), "\" is not supported"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<JsonFile> JsonFile::Load(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, kBytesMax));
  return Parse(text, path.filename().string());
}

absl::StatusOr<JsonFile> JsonFile::Parse(std::string_view text, std::string name) {
  JsonFile file;
  file.name_ = std::move(name);
  file.parser_ = std::make_unique<simdjson::dom::parser>(kBytesMax);
  const auto status = [&](simdjson::error_code error) {
    return absl::InvalidArgumentError(absl::StrCat(file.name_, ": ", simdjson::error_message(error),
                                                   " (at most ", kBytesMax, " bytes, ", kDepthMax,
                                                   " levels deep)"));
  };
  if (text.size() > kBytesMax) return status(simdjson::CAPACITY);
  const auto allocated = file.parser_->allocate(std::max<size_t>(text.size(), 64), kDepthMax);
  if (allocated != simdjson::SUCCESS) return status(allocated);
  const auto parsed = file.parser_->parse(text.data(), text.size()).get(file.root_);
  if (parsed != simdjson::SUCCESS) return status(parsed);
  return file;
}

absl::StatusOr<std::string> ReadSmallFile(const std::filesystem::path& path, size_t bytes_max) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return common::ErrnoStatus(errno, absl::StrCat("open ", path.string()));
  const absl::Cleanup close_it = [descriptor] { close(descriptor); };
  struct stat info {};
  if (fstat(descriptor, &info) != 0) {
    return common::ErrnoStatus(errno, absl::StrCat("fstat ", path.string()));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": is not a regular file"));
  }
  if (static_cast<uint64_t>(info.st_size) > bytes_max) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": has ", info.st_size,
                                                   " bytes, at most ", bytes_max, " are read"));
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t offset = 0;
  while (offset < text.size()) {
    const ssize_t count = read(descriptor, text.data() + offset, text.size() - offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return common::ErrnoStatus(errno, absl::StrCat("read ", path.string()));
    if (count == 0) break;
    offset += static_cast<size_t>(count);
  }
  text.resize(offset);
  return text;
}

}  // namespace retroinfer
