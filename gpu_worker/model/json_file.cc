#include "gpu_worker/model/json_file.h"

#include <cmath>
#include <set>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/mapped_file.h"

namespace retroinfer {
namespace {

using Json = nlohmann::json;

// A limit that the document exceeds. Thrown by the parser's callback, caught in Parse.
struct LimitError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Counts what the parser builds, while it builds it, so that memory and depth stay bounded.
class LimitCheck {
 public:
  explicit LimitCheck(const JsonLimits& limits) : limits_(limits) {}

  void OnEvent(Json::parse_event_t event, const Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
        keys_.emplace_back();
        [[fallthrough]];
      case Json::parse_event_t::array_start:
        if (++depth_ > limits_.max_depth) {
          throw LimitError(absl::StrCat("is nested deeper than ", limits_.max_depth, " levels"));
        }
        break;
      case Json::parse_event_t::object_end:
        keys_.pop_back();
        --depth_;
        return;
      case Json::parse_event_t::array_end:
        --depth_;
        return;
      case Json::parse_event_t::key:
        if (!keys_.back().insert(parsed.get<std::string>()).second) {
          throw LimitError(absl::StrCat("has the key ", Shown(parsed), " twice"));
        }
        break;
      case Json::parse_event_t::value:
        break;
    }
    if (++values_ > limits_.max_values) {
      throw LimitError(absl::StrCat("has more than ", limits_.max_values, " keys and values"));
    }
  }

  // A value as it is written, cut to a length that fits a message.
  static std::string Shown(const Json& value) {
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

 private:
  const JsonLimits& limits_;
  std::vector<std::set<std::string>> keys_;  // of each open object
  int depth_ = 0;
  size_t values_ = 0;
};

// The one place where the parser's exceptions become a Status.
absl::StatusOr<Json> Parse(std::span<const std::byte> text, const std::string& name,
                           const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(name, " has ", text.size(), " bytes; at most ",
                                                   limits.max_bytes, " are accepted"));
  }
  const char* begin = reinterpret_cast<const char*>(text.data());
  LimitCheck check(limits);
  try {
    return Json::parse(begin, begin + text.size(),
                       [&check](int, Json::parse_event_t event, Json& parsed) {
                         check.OnEvent(event, parsed);
                         return true;
                       });
  } catch (const LimitError& error) {
    return absl::InvalidArgumentError(absl::StrCat(name, " ", error.what()));
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is not valid JSON: ", std::string(error.what()).substr(0, 300)));
  }
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
  return absl::InvalidArgumentError(absl::StrCat(name_, ": key \"", key, "\" ", problem));
}

absl::Status JsonObject::WrongType(const std::string& key, const std::string& wanted) const {
  const Json* value = Find(key);
  if (value == nullptr) return Error(key, absl::StrCat("is missing; needs ", wanted));
  return Error(key, absl::StrCat("is ", LimitCheck::Shown(*value), "; needs ", wanted));
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
