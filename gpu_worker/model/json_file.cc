#include "gpu_worker/model/json_file.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/mapped_file.h"

namespace retroinfer {
namespace {

using Json = nlohmann::json;

// A value as it is written, cut to a length that fits a message.
std::string Shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  constexpr size_t kMaxShown = 60;
  const auto dump = [](const Json& v) {
    return v.dump(-1, ' ', true, Json::error_handler_t::replace);
  };
  if (!value.is_string()) return dump(value);
  const auto& text = value.get_ref<const std::string&>();
  return text.size() <= kMaxShown ? dump(value) : dump(text.substr(0, kMaxShown)) + "...";
}

// Builds the document from the parser's events and stops at the first limit that it exceeds, so
// that memory, time and depth stay bounded. A method that returns false ends the parse.
//
// (The library's own filter for values takes quadratic time in the size of an object, and without
// it a key that appears twice goes unnoticed.)
class DocumentBuilder final : public nlohmann::json_sax<Json> {
 public:
  explicit DocumentBuilder(const JsonLimits& limits) : limits_(limits) {}

  Json& document() { return document_; }
  const std::string& problem() const { return problem_; }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return Fail("holds binary data"); }

  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    auto [place, is_new] = open_.back()->emplace(name, nullptr);
    if (!is_new) return Fail(absl::StrCat("has the key ", Shown(Json(name)), " twice"));
    member_ = &*place;
    return Count();
  }

  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    return Fail(absl::StrCat("is not valid JSON: ", std::string(error.what()).substr(0, 300)));
  }

 private:
  bool Fail(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }
  bool Count() {
    if (++values_ <= limits_.max_values) return true;
    return Fail(absl::StrCat("has more than ", limits_.max_values, " keys and values"));
  }
  // Puts a value where the document goes on, and returns its place.
  Json* Place(Json value) {
    if (open_.empty()) {
      document_ = std::move(value);
      return &document_;
    }
    if (open_.back()->is_array()) return &open_.back()->emplace_back(std::move(value));
    *member_ = std::move(value);
    return member_;
  }
  bool Add(Json value) {
    Place(std::move(value));
    return Count();
  }
  bool Open(Json value) {
    if (open_.size() == static_cast<size_t>(limits_.max_depth)) {
      return Fail(absl::StrCat("is nested deeper than ", limits_.max_depth, " levels"));
    }
    open_.push_back(Place(std::move(value)));
    return Count();
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  const JsonLimits& limits_;
  Json document_;
  std::vector<Json*> open_;  // objects and arrays that are not complete, outermost first
  Json* member_ = nullptr;   // of the innermost object: the value of the last key
  size_t values_ = 0;
  std::string problem_;
};

absl::StatusOr<Json> Parse(std::span<const std::byte> text, const std::string& name,
                           const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(name, " has ", text.size(), " bytes; at most ",
                                                   limits.max_bytes, " are accepted"));
  }
  const char* begin = reinterpret_cast<const char*>(text.data());
  DocumentBuilder builder(limits);
  if (!Json::sax_parse(begin, begin + text.size(), &builder)) {
    return absl::InvalidArgumentError(absl::StrCat(name, " ", builder.problem()));
  }
  return std::move(builder.document());
}

}  // namespace

JsonObject::JsonObject(std::shared_ptr<const Json> document, std::string name)
    : document_(std::move(document)), json_(document_.get()), name_(std::move(name)) {
  RI_CHECK(json_->is_object());
}

const Json* JsonObject::Find(const std::string& key) const {
  const auto it = json_->find(key);
  return it == json_->end() || it->is_null() ? nullptr : &*it;
}

bool JsonObject::Has(const std::string& key) const { return Find(key) != nullptr; }

absl::Status JsonObject::Error(const std::string& key, const std::string& problem) const {
  return absl::InvalidArgumentError(
      absl::StrCat(name_, ": key \"", key.substr(0, 200), "\" ", problem));
}

absl::Status JsonObject::WrongType(const std::string& key, const std::string& wanted) const {
  const Json* value = Find(key);
  if (value == nullptr) return Error(key, absl::StrCat("is missing; needs ", wanted));
  return Error(key, absl::StrCat("is ", Shown(*value), "; needs ", wanted));
}

absl::StatusOr<int64_t> JsonObject::Int(const std::string& key, int64_t min, int64_t max) const {
  const Json* value = Find(key);
  const std::string wanted = absl::StrCat("an integer from ", min, " to ", max);
  if (value == nullptr || !value->is_number_integer()) return WrongType(key, wanted);
  if (value->is_number_unsigned() &&
      value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return WrongType(key, wanted);
  }
  const auto number = value->get<int64_t>();
  if (number < min || number > max) return WrongType(key, wanted);
  return number;
}

absl::StatusOr<double> JsonObject::Number(const std::string& key, double min, double max) const {
  const Json* value = Find(key);
  const std::string wanted = absl::StrCat("a number from ", min, " to ", max);
  if (value == nullptr || !value->is_number()) return WrongType(key, wanted);
  const auto number = value->get<double>();
  if (!std::isfinite(number) || number < min || number > max) return WrongType(key, wanted);
  return number;
}

absl::StatusOr<bool> JsonObject::Bool(const std::string& key) const {
  const Json* value = Find(key);
  if (value == nullptr || !value->is_boolean()) return WrongType(key, "true or false");
  return value->get<bool>();
}

absl::StatusOr<std::string> JsonObject::String(const std::string& key) const {
  const Json* value = Find(key);
  if (value == nullptr || !value->is_string()) return WrongType(key, "a string");
  return value->get<std::string>();
}

absl::StatusOr<JsonObject> JsonObject::Object(const std::string& key) const {
  const Json* value = Find(key);
  if (value == nullptr || !value->is_object()) return WrongType(key, "an object");
  JsonObject object = *this;
  object.json_ = value;
  object.name_ = absl::StrCat(name_, ": ", key);
  return object;
}

absl::StatusOr<std::vector<std::string>> JsonObject::StringList(const std::string& key,
                                                                size_t max_size) const {
  const Json* value = Find(key);
  const std::string wanted = absl::StrCat("an array of at most ", max_size, " strings");
  if (value == nullptr || !value->is_array() || value->size() > max_size) {
    return WrongType(key, wanted);
  }
  std::vector<std::string> strings;
  for (const Json& element : *value) {
    if (!element.is_string()) return WrongType(key, wanted);
    strings.push_back(element.get<std::string>());
  }
  return strings;
}

absl::StatusOr<std::vector<int64_t>> JsonObject::IntList(const std::string& key, int64_t min,
                                                         int64_t max, size_t max_size) const {
  const Json* value = Find(key);
  if (value != nullptr && value->is_number()) {
    ASSIGN_OR_RETURN(const int64_t number, Int(key, min, max));
    return std::vector<int64_t>{number};
  }
  const std::string wanted = absl::StrCat("an integer, or an array of at most ", max_size,
                                          ", each from ", min, " to ", max);
  if (value == nullptr || !value->is_array() || value->size() > max_size) {
    return WrongType(key, wanted);
  }
  std::vector<int64_t> numbers;
  for (const Json& element : *value) {
    if (!element.is_number_integer()) return WrongType(key, wanted);
    if (element.is_number_unsigned() &&
        element.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return WrongType(key, wanted);
    }
    const auto number = element.get<int64_t>();
    if (number < min || number > max) return WrongType(key, wanted);
    numbers.push_back(number);
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
                                           const JsonLimits& limits) {
  ASSIGN_OR_RETURN(Json document, Parse(text, name, limits));
  if (!document.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " holds a JSON ", document.type_name(), "; needs an object"));
  }
  return JsonObject(std::make_shared<const Json>(std::move(document)), std::move(name));
}

absl::StatusOr<JsonObject> LoadJsonFile(const std::string& path, const JsonLimits& limits) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return ParseJsonObject(file.bytes(), path, limits);
}

}  // namespace retroinfer
