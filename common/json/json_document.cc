// simdjson knows neither a limit on the number of values nor keys that are there twice, and takes
// no integer beyond 64 bits, which files of models do have (a length of 10^30 means "no limit").
// So:
//
//   1. A text that is long enough to exceed the limit on values is counted before it is parsed,
//      since the parser's memory grows with them.
//   2. simdjson parses; where it fails and there are integers beyond 64 bits, they get an exponent,
//      which makes doubles of them, and it parses again.
//   3. The values are visited once, for depth and keys.
#include "common/json/json_document.h"

#include <simdjson.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer::common {
namespace {

using Element = simdjson::dom::element;
using Array = simdjson::dom::array;
using Object = simdjson::dom::object;

constexpr size_t kShownKeyBytes = 60;
constexpr size_t kSmallObject = 16;     // up to here comparing all pairs of keys is cheapest
constexpr size_t kParserBytesMin = 64;  // the parser takes no smaller buffer

template <typename To, typename From>
To As(const From& from) {
  static_assert(std::is_trivially_copyable_v<To> && std::is_trivially_copyable_v<From>);
  return std::bit_cast<To>(from);
}

Element ElementOf(const std::array<uintptr_t, 2>& bytes) { return As<Element>(bytes); }
std::array<uintptr_t, 2> BytesOf(const Element& element) {
  return As<std::array<uintptr_t, 2>>(element);
}

absl::Status Refuse(const std::string& problem) { return absl::InvalidArgumentError(problem); }

// Steps over the string whose first quote is at `begin`; returns the place after its last quote, or
// the size of `text`.
size_t EndOfString(std::string_view text, size_t begin) {
  for (size_t i = begin + 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      return i + 1;
    }
  }
  return text.size();
}

// Whether a text that is JSON has more than `values_max` values. Each value but the first follows
// either a comma or the bracket that opens its array or object.
bool HasMoreValues(std::string_view text, size_t values_max) {
  if ((text.size() + 1) / 2 <= values_max) return false;
  size_t values = 1;
  bool opened = false;  // a bracket, and nothing has followed it
  for (size_t i = 0; i < text.size() && values <= values_max;) {
    const char c = text[i];
    if (c == ' ' || c == '\n' || c == '\r' || c == '\t') {
      ++i;
      continue;
    }
    if (opened && c != ']' && c != '}') ++values;
    opened = c == '[' || c == '{';
    if (c == ',') ++values;
    i = c == '"' ? EndOfString(text, i) : i + 1;
  }
  return values > values_max;
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Whether 64 bits hold the integer of these digits.
bool Fits(std::string_view digits, bool is_negative) {
  const std::string_view largest = is_negative ? "9223372036854775808" : "18446744073709551615";
  return digits.size() < largest.size() || (digits.size() == largest.size() && digits <= largest);
}

// Returns `text` with an exponent of 0 behind each integer beyond 64 bits.
std::string WithLargeIntegersAsDoubles(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 64);
  const auto before = [&](size_t place, size_t count) {
    return place < count ? ' ' : text[place - count];
  };
  const auto is_in_fraction_or_exponent = [&](size_t begin) {
    const char sign = before(begin, 1);
    const char c = sign == '-' || sign == '+' ? before(begin, 2) : sign;
    return c == '.' || c == 'e' || c == 'E';
  };
  for (size_t i = 0; i < text.size();) {
    size_t end = i + 1;
    if (text[i] == '"') end = EndOfString(text, i);
    while (IsDigit(text[i]) && end < text.size() && IsDigit(text[end])) ++end;
    const std::string_view part = text.substr(i, end - i);
    out.append(part);
    const char after = end < text.size() ? text[end] : ' ';
    if (IsDigit(text[i]) && after != '.' && after != 'e' && after != 'E' &&
        !is_in_fraction_or_exponent(i) && !Fits(part, before(i, 1) == '-')) {
      out.append("e0");
    }
    i = end;
  }
  return out;
}

// Visits the values of a document for what the parser does not refuse. `depth_max` bounds the
// recursion.
class Checker {
 public:
  explicit Checker(const JsonLimits& limits) : limits_(limits) {}

  absl::Status Check(const Element& element, size_t depth) {
    Array array;
    Object object;
    if (element.get(array) == simdjson::SUCCESS) {
      RETURN_IF_ERROR(CheckDepth(depth + 1));
      for (const Element item : array) {
        if (IsContainer(item)) RETURN_IF_ERROR(Check(item, depth + 1));
      }
    } else if (element.get(object) == simdjson::SUCCESS) {
      RETURN_IF_ERROR(CheckDepth(depth + 1));
      RETURN_IF_ERROR(CheckKeys(object));
      for (const auto member : object) {
        if (IsContainer(member.value)) RETURN_IF_ERROR(Check(member.value, depth + 1));
      }
    }
    return absl::OkStatus();
  }

 private:
  static bool IsContainer(const Element& element) {
    return element.type() == simdjson::dom::element_type::ARRAY ||
           element.type() == simdjson::dom::element_type::OBJECT;
  }

  absl::Status CheckDepth(size_t depth) const {
    if (depth <= limits_.depth_max) return absl::OkStatus();
    return Refuse(absl::StrCat("is nested deeper than ", limits_.depth_max, " levels"));
  }

  absl::Status CheckKeys(const Object& object) {
    std::array<std::string_view, kSmallObject> small;
    absl::flat_hash_set<std::string_view> large;
    const size_t size = object.size();
    if (size > kSmallObject) large.reserve(size);
    size_t count = 0;
    for (const auto member : object) {
      const std::string_view key = member.key;
      const auto end = small.begin() + std::min(count, kSmallObject);
      const bool is_new = size > kSmallObject ? large.insert(key).second
                                              : std::find(small.begin(), end, key) == end;
      if (!is_new) {
        return Refuse(absl::StrCat("has the key \"",
                                   absl::CHexEscape(std::string(key.substr(0, kShownKeyBytes))),
                                   "\" twice in one object"));
      }
      if (size <= kSmallObject) small[count++] = key;
    }
    return absl::OkStatus();
  }

  const JsonLimits& limits_;
};

absl::Status ParserError(simdjson::error_code error, const JsonLimits& limits) {
  switch (error) {
    case simdjson::DEPTH_ERROR:
      return Refuse(absl::StrCat("is nested deeper than ", limits.depth_max, " levels"));
    case simdjson::NUMBER_ERROR:
      return Refuse("is not valid JSON: a number is malformed or out of range");
    case simdjson::UTF8_ERROR:
      return Refuse("is not valid JSON: it is not UTF-8");
    case simdjson::MEMALLOC:
      return absl::ResourceExhaustedError("cannot be read: no memory for it");
    default:
      return Refuse(absl::StrCat("is not valid JSON: ", simdjson::error_message(error)));
  }
}

bool MembersAreSame(const JsonValue& a, const JsonValue& b) {
  const auto sorted = [](const JsonValue& object) {
    std::vector<JsonMember> members;
    for (const JsonMember& member : object.Members()) members.push_back(member);
    std::sort(members.begin(), members.end(),
              [](const JsonMember& x, const JsonMember& y) { return x.key < y.key; });
    return members;
  };
  const std::vector<JsonMember> of_a = sorted(a), of_b = sorted(b);
  return std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
                    [](const JsonMember& x, const JsonMember& y) {
                      return x.key == y.key && x.value.SameAs(y.value);
                    });
}

bool ElementsAreSame(const JsonValue& a, const JsonValue& b) {
  const JsonElements of_a = a.Elements(), of_b = b.Elements();
  auto it_a = of_a.begin(), it_b = of_b.begin();
  for (; it_a != of_a.end() && it_b != of_b.end(); ++it_a, ++it_b) {
    if (!(*it_a).SameAs(*it_b)) return false;
  }
  return !(it_a != of_a.end()) && !(it_b != of_b.end());
}

}  // namespace

struct JsonDocument::Parsed {
  simdjson::dom::document document;
};

bool JsonValue::IsNull() const { return ElementOf(bytes_).is_null(); }
bool JsonValue::IsBool() const { return ElementOf(bytes_).is_bool(); }
bool JsonValue::IsNumber() const { return ElementOf(bytes_).is_number(); }
bool JsonValue::IsString() const { return ElementOf(bytes_).is_string(); }
bool JsonValue::IsArray() const { return ElementOf(bytes_).is_array(); }
bool JsonValue::IsObject() const { return ElementOf(bytes_).is_object(); }

const char* JsonValue::TypeName() const {
  switch (ElementOf(bytes_).type()) {
    case simdjson::dom::element_type::ARRAY:
      return "array";
    case simdjson::dom::element_type::OBJECT:
      return "object";
    case simdjson::dom::element_type::STRING:
      return "string";
    case simdjson::dom::element_type::BOOL:
      return "boolean";
    case simdjson::dom::element_type::NULL_VALUE:
      return "null";
    default:
      return "number";
  }
}

std::optional<bool> JsonValue::Bool() const {
  bool value = false;
  if (ElementOf(bytes_).get(value) != simdjson::SUCCESS) return std::nullopt;
  return value;
}

std::optional<std::string_view> JsonValue::String() const {
  std::string_view value;
  if (ElementOf(bytes_).get(value) != simdjson::SUCCESS) return std::nullopt;
  return value;
}

std::optional<int64_t> JsonValue::Int() const {
  int64_t value = 0;
  if (ElementOf(bytes_).get(value) != simdjson::SUCCESS) return std::nullopt;
  return value;
}

std::optional<uint64_t> JsonValue::Unsigned() const {
  uint64_t value = 0;
  if (ElementOf(bytes_).get(value) != simdjson::SUCCESS) return std::nullopt;
  return value;
}

std::optional<double> JsonValue::Number() const {
  double value = 0;
  if (ElementOf(bytes_).get(value) != simdjson::SUCCESS) return std::nullopt;
  return value;
}

size_t JsonValue::Size() const {
  Array array;
  Object object;
  if (ElementOf(bytes_).get(array) == simdjson::SUCCESS) return array.size();
  if (ElementOf(bytes_).get(object) == simdjson::SUCCESS) return object.size();
  return 0;
}

std::optional<JsonValue> JsonValue::Find(std::string_view key) const {
  for (const JsonMember& member : Members()) {
    if (member.key == key) return member.value;
  }
  return std::nullopt;
}

JsonElements JsonValue::Elements() const {
  Array array;
  if (ElementOf(bytes_).get(array) != simdjson::SUCCESS) {
    return {JsonElements::Iterator(Bytes{}), JsonElements::Iterator(Bytes{})};
  }
  return {JsonElements::Iterator(As<Bytes>(array.begin())),
          JsonElements::Iterator(As<Bytes>(array.end()))};
}

JsonMembers JsonValue::Members() const {
  Object object;
  if (ElementOf(bytes_).get(object) != simdjson::SUCCESS) {
    return {JsonMembers::Iterator(Bytes{}), JsonMembers::Iterator(Bytes{})};
  }
  return {JsonMembers::Iterator(As<Bytes>(object.begin())),
          JsonMembers::Iterator(As<Bytes>(object.end()))};
}

JsonValue JsonElements::Iterator::operator*() const {
  return JsonValue(BytesOf(*As<Array::iterator>(bytes_)));
}

JsonElements::Iterator& JsonElements::Iterator::operator++() {
  auto iterator = As<Array::iterator>(bytes_);
  bytes_ = As<JsonValue::Bytes>(++iterator);
  return *this;
}

JsonMember JsonMembers::Iterator::operator*() const {
  const auto iterator = As<Object::iterator>(bytes_);
  return {iterator.key(), JsonValue(BytesOf(iterator.value()))};
}

JsonMembers::Iterator& JsonMembers::Iterator::operator++() {
  auto iterator = As<Object::iterator>(bytes_);
  bytes_ = As<JsonValue::Bytes>(++iterator);
  return *this;
}

std::string JsonValue::Text() const { return simdjson::to_string(ElementOf(bytes_)); }

bool JsonValue::SameAs(const JsonValue& other) const {
  if (IsNumber() && other.IsNumber()) {
    if (Int().has_value() && other.Int().has_value()) return Int() == other.Int();
    if (Unsigned().has_value() && other.Unsigned().has_value()) {
      return Unsigned() == other.Unsigned();
    }
    return Number() == other.Number();
  }
  if (ElementOf(bytes_).type() != ElementOf(other.bytes_).type()) return false;
  if (IsArray()) return ElementsAreSame(*this, other);
  if (IsObject()) return MembersAreSame(*this, other);
  return Bool() == other.Bool() && String() == other.String();
}

JsonDocument::JsonDocument(std::unique_ptr<Parsed> parsed) : parsed_(std::move(parsed)) {}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;

JsonValue JsonDocument::root() const { return JsonValue(BytesOf(parsed_->document.root())); }

absl::StatusOr<JsonDocument> JsonDocument::Parse(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.bytes_max) {
    return Refuse(
        absl::StrCat("has ", text.size(), " bytes; at most ", limits.bytes_max, " are accepted"));
  }
  if (HasMoreValues(text, limits.values_max)) {
    return Refuse(absl::StrCat("has more than ", limits.values_max, " values"));
  }
  auto parsed = std::make_unique<Parsed>();
  const auto parse = [&](std::string_view json) {
    simdjson::dom::parser parser;
    // One level more than allowed: versions of the library count the outermost one differently.
    const auto allocated =
        parser.allocate(std::max(json.size(), kParserBytesMin), limits.depth_max + 2);
    if (allocated != simdjson::SUCCESS) return allocated;
    // The library copies from the address even where there is nothing to copy.
    const char* const bytes = json.empty() ? "" : json.data();
    return parser.parse_into_document(parsed->document, bytes, json.size()).error();
  };
  simdjson::error_code error = parse(text);
  if (error != simdjson::SUCCESS) {
    const std::string changed = WithLargeIntegersAsDoubles(text);
    if (changed.size() != text.size()) error = parse(changed);
  }
  if (error != simdjson::SUCCESS) return ParserError(error, limits);
  RETURN_IF_ERROR(Checker(limits).Check(parsed->document.root(), 0));
  return JsonDocument(std::move(parsed));
}

}  // namespace retroinfer::common
