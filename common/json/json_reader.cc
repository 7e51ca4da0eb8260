#include "common/json/json_reader.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/files/lfs_pointer.h"
#include "common/files/regular_file.h"
#include "common/status/status_macros.h"

namespace retroinfer::common {
namespace {

constexpr size_t kMaxShownKey = 200;

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

std::string Escaped(std::string_view text) {
  return absl::CHexEscape(std::string(text.substr(0, kMaxShownKey)));
}

std::string WantedInt(int64_t min, int64_t max) {
  return absl::StrCat("an integer from ", min, " to ", max);
}
std::string WantedNumber(double min, double max) {
  return absl::StrCat("a number from ", min, " to ", max);
}

std::optional<int64_t> IntIn(const JsonValue& value, int64_t min, int64_t max) {
  const std::optional<int64_t> number = value.Int();
  return number.has_value() && *number >= min && *number <= max ? number : std::nullopt;
}
std::optional<double> NumberIn(const JsonValue& value, double min, double max) {
  const std::optional<double> number = value.Number();
  const bool fits =
      number.has_value() && std::isfinite(*number) && *number >= min && *number <= max;
  return fits ? number : std::nullopt;
}

}  // namespace

absl::StatusOr<JsonReader> JsonReader::Parse(std::string_view text, std::string name,
                                             const JsonLimits& limits) {
  absl::StatusOr<JsonDocument> document = JsonDocument::Parse(text, limits);
  if (!document.ok()) {
    return absl::Status(document.status().code(),
                        absl::StrCat(name, " ", document.status().message()));
  }
  auto shared = std::make_shared<const JsonDocument>(*std::move(document));
  const JsonValue root = shared->root();
  return JsonReader(std::move(shared), root, std::move(name));
}

absl::StatusOr<JsonReader> JsonReader::ParseObject(std::string_view text, std::string name,
                                                   const JsonLimits& limits) {
  ASSIGN_OR_RETURN(JsonReader reader, Parse(text, std::move(name), limits));
  if (!reader.value_.IsObject()) return reader.WrongType("an object");
  return reader;
}

absl::StatusOr<JsonReader> JsonReader::LoadObject(const std::string& path, std::string name,
                                                  const JsonLimits& limits) {
  const absl::StatusOr<std::string> text = ReadNamedFile(path, limits.bytes_max);
  // Too large a file is a bad document here, as too long a text is.
  if (absl::IsResourceExhausted(text.status())) {
    return absl::InvalidArgumentError(text.status().message());
  }
  RETURN_IF_ERROR(text.status());
  RETURN_IF_ERROR(RefuseLfsPointer(*text, path));
  return ParseObject(*text, std::move(name), limits);
}

// --- Errors

absl::Status JsonReader::Error(std::string_view problem) const {
  return absl::InvalidArgumentError(
      absl::StrCat(place_, place_.empty() ? "" : ": ", std::string(problem)));
}

absl::Status JsonReader::Error(std::string_view key, std::string_view problem) const {
  return Error(absl::StrCat("key \"", Escaped(key), "\" ", std::string(problem)));
}

absl::Status JsonReader::WrongType(std::string_view wanted) const {
  return Error(absl::StrCat("is ", Shown(value_), "; needs ", std::string(wanted)));
}

absl::Status JsonReader::WrongType(std::string_view key, const JsonValue& value,
                                   std::string_view wanted) const {
  return Error(key, absl::StrCat("is ", Shown(value), "; needs ", std::string(wanted)));
}

absl::Status JsonReader::WrongType(std::string_view key, std::string_view wanted) const {
  if (!value_.IsObject()) return WrongType("an object");
  const std::optional<JsonValue> value = Find(key);
  if (value.has_value()) return WrongType(key, *value, wanted);
  return Error(key, absl::StrCat("is missing; needs ", std::string(wanted)));
}

// --- This value

absl::StatusOr<bool> JsonReader::AsBool() const {
  const std::optional<bool> truth = value_.Bool();
  if (!truth.has_value()) return WrongType("true or false");
  return *truth;
}

absl::StatusOr<int64_t> JsonReader::AsInt(int64_t min, int64_t max) const {
  const std::optional<int64_t> number = IntIn(value_, min, max);
  if (!number.has_value()) return WrongType(WantedInt(min, max));
  return *number;
}

absl::StatusOr<double> JsonReader::AsNumber(double min, double max) const {
  const std::optional<double> number = NumberIn(value_, min, max);
  if (!number.has_value()) return WrongType(WantedNumber(min, max));
  return *number;
}

absl::StatusOr<std::string_view> JsonReader::AsString() const {
  const std::optional<std::string_view> text = value_.String();
  if (!text.has_value()) return WrongType("a string");
  return *text;
}

absl::StatusOr<JsonElements> JsonReader::AsArray() const {
  if (!value_.IsArray()) return WrongType("an array");
  return value_.Elements();
}

absl::StatusOr<JsonMembers> JsonReader::AsObject() const {
  if (!value_.IsObject()) return WrongType("an object");
  return value_.Members();
}

// --- Members

std::optional<JsonValue> JsonReader::Find(std::string_view key) const {
  const std::optional<JsonValue> value = value_.Find(key);
  return value.has_value() && !value->IsNull() ? value : std::nullopt;
}

JsonReader JsonReader::Child(JsonValue value, std::string_view name) const {
  const bool is_root = place_.find(": ") == std::string::npos;
  return JsonReader(document_, value, absl::StrCat(place_, is_root ? ": " : ".", Escaped(name)));
}

absl::StatusOr<std::optional<JsonReader>> JsonReader::Optional(std::string_view key) const {
  if (!value_.IsObject()) return WrongType("an object");
  const std::optional<JsonValue> value = Find(key);
  if (!value.has_value()) return std::nullopt;
  return Child(*value, key);
}

absl::StatusOr<JsonReader> JsonReader::Required(std::string_view key) const {
  ASSIGN_OR_RETURN(std::optional<JsonReader> value, Optional(key));
  if (!value.has_value()) return Error(key, "is missing");
  return *std::move(value);
}

absl::StatusOr<bool> JsonReader::Bool(std::string_view key) const {
  const std::optional<JsonValue> value = Find(key);
  const std::optional<bool> truth = value.has_value() ? value->Bool() : std::nullopt;
  if (!truth.has_value()) return WrongType(key, "true or false");
  return *truth;
}

absl::StatusOr<int64_t> JsonReader::Int(std::string_view key, int64_t min, int64_t max) const {
  const std::optional<JsonValue> value = Find(key);
  const std::optional<int64_t> number = value.has_value() ? IntIn(*value, min, max) : std::nullopt;
  if (!number.has_value()) return WrongType(key, WantedInt(min, max));
  return *number;
}

absl::StatusOr<double> JsonReader::Number(std::string_view key, double min, double max) const {
  const std::optional<JsonValue> value = Find(key);
  const std::optional<double> number =
      value.has_value() ? NumberIn(*value, min, max) : std::nullopt;
  if (!number.has_value()) return WrongType(key, WantedNumber(min, max));
  return *number;
}

absl::StatusOr<std::string> JsonReader::String(std::string_view key) const {
  const std::optional<JsonValue> value = Find(key);
  if (!value.has_value()) return WrongType(key, "a string");
  return String(JsonMember{key, *value});
}

absl::StatusOr<std::string> JsonReader::String(const JsonMember& member) const {
  const std::optional<std::string_view> text = member.value.String();
  if (!text.has_value()) return WrongType(member.key, member.value, "a string");
  return std::string(*text);
}

absl::StatusOr<JsonReader> JsonReader::Object(std::string_view key) const {
  const std::optional<JsonValue> value = Find(key);
  if (!value.has_value()) return WrongType(key, "an object");
  return Object(JsonMember{key, *value});
}

absl::StatusOr<JsonReader> JsonReader::Object(const JsonMember& member) const {
  if (!member.value.IsObject()) return WrongType(member.key, member.value, "an object");
  return Child(member.value, member.key);
}

absl::StatusOr<std::vector<std::string>> JsonReader::StringList(std::string_view key,
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

absl::StatusOr<std::vector<int64_t>> JsonReader::IntList(std::string_view key, int64_t min,
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
    const std::optional<int64_t> number = IntIn(element, min, max);
    if (!number.has_value()) return WrongType(key, wanted);
    numbers.push_back(*number);
  }
  return numbers;
}

absl::StatusOr<std::vector<double>> JsonReader::NumberList(std::string_view key, double min,
                                                           double max, size_t max_size) const {
  const std::optional<JsonValue> value = Find(key);
  const std::string wanted =
      absl::StrCat("an array of at most ", max_size, " numbers, each from ", min, " to ", max);
  if (!value.has_value() || !value->IsArray() || value->Size() > max_size) {
    return WrongType(key, wanted);
  }
  std::vector<double> numbers;
  for (const JsonValue element : value->Elements()) {
    const std::optional<double> number = NumberIn(element, min, max);
    if (!number.has_value()) return WrongType(key, wanted);
    numbers.push_back(*number);
  }
  return numbers;
}

absl::StatusOr<bool> JsonReader::BoolOr(std::string_view key, bool absent) const {
  return Has(key) ? Bool(key) : absent;
}

absl::StatusOr<int64_t> JsonReader::IntOr(std::string_view key, int64_t absent, int64_t min,
                                          int64_t max) const {
  return Has(key) ? Int(key, min, max) : absent;
}

absl::StatusOr<double> JsonReader::NumberOr(std::string_view key, double absent, double min,
                                            double max) const {
  return Has(key) ? Number(key, min, max) : absent;
}

absl::Status JsonReader::AllowOnly(std::initializer_list<std::string_view> keys) const {
  ASSIGN_OR_RETURN(const JsonMembers members, AsObject());
  for (const JsonMember& member : members) {
    if (std::find(keys.begin(), keys.end(), member.key) == keys.end()) {
      return Error(member.key, "is not supported");
    }
  }
  return absl::OkStatus();
}

}  // namespace retroinfer::common
