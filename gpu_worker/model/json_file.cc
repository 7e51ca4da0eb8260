#include "gpu_worker/model/json_file.h"

#include <cmath>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/mapped_file.h"

namespace retroinfer {
namespace {

using common::JsonDocument;
using common::JsonMember;
using common::JsonValue;

// A value as it is written, cut to a length that fits a message.
std::string Shown(const JsonValue& value) {
  constexpr size_t kMaxShown = 60;
  if (value.IsObject()) return "an object";
  if (value.IsArray()) return "an array";
  const std::optional<std::string_view> text = value.String();
  if (!text.has_value()) return value.Text();
  return absl::StrCat("\"", absl::CHexEscape(std::string(text->substr(0, kMaxShown))), "\"",
                      text->size() <= kMaxShown ? "" : "...");
}

}  // namespace

JsonObject::JsonObject(std::shared_ptr<const JsonDocument> document, std::string name)
    : document_(std::move(document)), json_(document_->root()), name_(std::move(name)) {
  RI_CHECK(json_.IsObject());
}

std::optional<JsonValue> JsonObject::Find(const std::string& key) const {
  const std::optional<JsonValue> value = json_.Find(key);
  if (!value.has_value() || value->IsNull()) return std::nullopt;
  return value;
}

bool JsonObject::Has(const std::string& key) const { return Find(key).has_value(); }

absl::Status JsonObject::Error(const std::string& key, const std::string& problem) const {
  return absl::InvalidArgumentError(
      absl::StrCat(name_, ": key \"", key.substr(0, 200), "\" ", problem));
}

absl::Status JsonObject::WrongType(const std::string& key, const JsonValue& value,
                                   const std::string& wanted) const {
  return Error(key, absl::StrCat("is ", Shown(value), "; needs ", wanted));
}

absl::Status JsonObject::WrongType(const std::string& key, const std::string& wanted) const {
  const std::optional<JsonValue> value = Find(key);
  if (!value.has_value()) return Error(key, absl::StrCat("is missing; needs ", wanted));
  return WrongType(key, *value, wanted);
}

absl::StatusOr<int64_t> JsonObject::Int(const std::string& key, int64_t min, int64_t max) const {
  const std::optional<JsonValue> value = Find(key);
  const std::optional<int64_t> number = value.has_value() ? value->Int() : std::nullopt;
  if (!number.has_value() || *number < min || *number > max) {
    return WrongType(key, absl::StrCat("an integer from ", min, " to ", max));
  }
  return *number;
}

absl::StatusOr<double> JsonObject::Number(const std::string& key, double min, double max) const {
  const std::optional<JsonValue> value = Find(key);
  const std::optional<double> number = value.has_value() ? value->Number() : std::nullopt;
  if (!number.has_value() || !std::isfinite(*number) || *number < min || *number > max) {
    return WrongType(key, absl::StrCat("a number from ", min, " to ", max));
  }
  return *number;
}

absl::StatusOr<bool> JsonObject::Bool(const std::string& key) const {
  const std::optional<JsonValue> value = Find(key);
  const std::optional<bool> truth = value.has_value() ? value->Bool() : std::nullopt;
  if (!truth.has_value()) return WrongType(key, "true or false");
  return *truth;
}

absl::StatusOr<std::string> JsonObject::String(const std::string& key) const {
  const std::optional<JsonValue> value = Find(key);
  if (!value.has_value()) return WrongType(key, "a string");
  return String(JsonMember{key, *value});
}

absl::StatusOr<std::string> JsonObject::String(const JsonMember& member) const {
  const std::optional<std::string_view> text = member.value.String();
  if (!text.has_value()) return WrongType(std::string(member.key), member.value, "a string");
  return std::string(*text);
}

absl::StatusOr<JsonObject> JsonObject::Object(const std::string& key) const {
  const std::optional<JsonValue> value = Find(key);
  if (!value.has_value()) return WrongType(key, "an object");
  return Object(JsonMember{key, *value});
}

absl::StatusOr<JsonObject> JsonObject::Object(const JsonMember& member) const {
  const std::string key(member.key);
  if (!member.value.IsObject()) return WrongType(key, member.value, "an object");
  JsonObject object = *this;
  object.json_ = member.value;
  object.name_ = absl::StrCat(name_, ": ", key);
  return object;
}

absl::StatusOr<std::vector<std::string>> JsonObject::StringList(const std::string& key,
                                                                size_t max_size) const {
  const std::optional<JsonValue> value = Find(key);
  const std::string wanted = absl::StrCat("an array of at most ", max_size, " strings");
  if (!value.has_value() || !value->IsArray() || value->Size() > max_size) {
    return WrongType(key, wanted);
  }
  std::vector<std::string> strings;
  for (const JsonValue element : value->Elements()) {
    const std::optional<std::string_view> text = element.String();
    if (!text.has_value()) return WrongType(key, wanted);
    strings.emplace_back(*text);
  }
  return strings;
}

absl::StatusOr<std::vector<int64_t>> JsonObject::IntList(const std::string& key, int64_t min,
                                                         int64_t max, size_t max_size) const {
  const std::optional<JsonValue> value = Find(key);
  if (value.has_value() && value->IsNumber()) {
    ASSIGN_OR_RETURN(const int64_t number, Int(key, min, max));
    return std::vector<int64_t>{number};
  }
  const std::string wanted = absl::StrCat("an integer, or an array of at most ", max_size,
                                          ", each from ", min, " to ", max);
  if (!value.has_value() || !value->IsArray() || value->Size() > max_size) {
    return WrongType(key, wanted);
  }
  std::vector<int64_t> numbers;
  for (const JsonValue element : value->Elements()) {
    const std::optional<int64_t> number = element.Int();
    if (!number.has_value() || *number < min || *number > max) return WrongType(key, wanted);
    numbers.push_back(*number);
  }
  return numbers;
}

absl::StatusOr<int64_t> JsonObject::IntOr(const std::string& key, int64_t absent, int64_t min,
                                          int64_t max) const {
  if (!Has(key)) return absent;
  return Int(key, min, max);
}

absl::StatusOr<double> JsonObject::NumberOr(const std::string& key, double absent, double min,
                                            double max) const {
  if (!Has(key)) return absent;
  return Number(key, min, max);
}

absl::StatusOr<bool> JsonObject::BoolOr(const std::string& key, bool absent) const {
  if (!Has(key)) return absent;
  return Bool(key);
}

absl::StatusOr<JsonObject> ParseJsonObject(std::span<const std::byte> text, std::string name,
                                           const common::JsonLimits& limits) {
  absl::StatusOr<JsonDocument> document =
      JsonDocument::Parse({reinterpret_cast<const char*>(text.data()), text.size()}, limits);
  if (!document.ok()) {
    return absl::Status(document.status().code(),
                        absl::StrCat(name, " ", document.status().message()));
  }
  if (!document->root().IsObject()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " holds a JSON ", document->root().TypeName(), "; needs an object"));
  }
  return JsonObject(std::make_shared<const JsonDocument>(*std::move(document)), std::move(name));
}

absl::StatusOr<JsonObject> LoadJsonFile(const std::string& path, const common::JsonLimits& limits) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return ParseJsonObject(file.bytes(), path, limits);
}

}  // namespace retroinfer
