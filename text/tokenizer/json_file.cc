#include "text/tokenizer/json_file.h"

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

absl::Status PlacedJson::Error(std::string_view problem) const {
  return absl::InvalidArgumentError(absl::StrCat(place_, ": ", std::string(problem)));
}

PlacedJson PlacedJson::Child(common::JsonValue value, std::string_view name) const {
  return {value,
          absl::StrCat(place_, place_.find(": ") == std::string::npos ? ": " : ".", Escaped(name))};
}

absl::StatusOr<bool> PlacedJson::AsBool() const {
  const std::optional<bool> value = value_.Bool();
  if (!value.has_value()) return Error("needs to be true or false");
  return *value;
}

absl::StatusOr<std::string_view> PlacedJson::AsString() const {
  const std::optional<std::string_view> value = value_.String();
  if (!value.has_value()) return Error("needs to be a string");
  return *value;
}

absl::StatusOr<int32_t> PlacedJson::AsInt32() const {
  const std::optional<int64_t> value = value_.Int();
  if (!value.has_value() || *value < std::numeric_limits<int32_t>::min() ||
      *value > std::numeric_limits<int32_t>::max()) {
    return Error("needs to be an integer of 32 bits");
  }
  return static_cast<int32_t>(*value);
}

absl::StatusOr<common::JsonElements> PlacedJson::AsArray() const {
  if (!value_.IsArray()) return Error("needs to be an array");
  return value_.Elements();
}

absl::StatusOr<common::JsonMembers> PlacedJson::AsObject() const {
  if (!value_.IsObject()) return Error("needs to be an object");
  return value_.Members();
}

absl::StatusOr<std::optional<PlacedJson>> PlacedJson::Optional(std::string_view key) const {
  if (!value_.IsObject()) return Error("needs to be an object");
  const std::optional<common::JsonValue> value = value_.Find(key);
  if (!value.has_value() || value->IsNull()) return std::nullopt;
  return Child(*value, key);
}

absl::StatusOr<PlacedJson> PlacedJson::Required(std::string_view key) const {
  ASSIGN_OR_RETURN(std::optional<PlacedJson> value, Optional(key));
  if (!value.has_value()) {
    return Error(absl::StrCat("the field \"", std::string(key), "\" is missing"));
  }
  return *std::move(value);
}

absl::StatusOr<bool> PlacedJson::BoolOr(std::string_view key, bool fallback) const {
  ASSIGN_OR_RETURN(const std::optional<PlacedJson> value, Optional(key));
  return value.has_value() ? value->AsBool() : fallback;
}

absl::Status PlacedJson::AllowOnly(std::initializer_list<std::string_view> keys) const {
  ASSIGN_OR_RETURN(const common::JsonMembers members, AsObject());
  for (const common::JsonMember& member : members) {
    if (std::find(keys.begin(), keys.end(), member.key) == keys.end()) {
      return Error(absl::StrCat("the field \"", Escaped(member.key), "\" is not supported"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<JsonFile> JsonFile::Load(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, kBytesMax));
  return Parse(text, path.filename().string());
}

absl::StatusOr<JsonFile> JsonFile::Parse(std::string_view text, std::string name) {
  // No limit on values but what the size allows: a vocabulary is all small values.
  absl::StatusOr<common::JsonDocument> document = common::JsonDocument::Parse(
      text, {.bytes_max = kBytesMax, .values_max = kBytesMax, .depth_max = kDepthMax});
  if (!document.ok()) {
    return absl::Status(document.status().code(),
                        absl::StrCat(name, ": ", document.status().message()));
  }
  return JsonFile(*std::move(document), std::move(name));
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
