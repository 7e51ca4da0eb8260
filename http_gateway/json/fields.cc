#include "http_gateway/json/fields.h"

#include <cmath>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"

namespace retroinfer::gateway {
namespace {

constexpr size_t kShownBytes = 64;  // of a name that a stranger chose
constexpr char kInvalidType[] = "INVALID_TYPE";
// No object has so many known parameters, and a search among millions would take long.
constexpr size_t kParametersMax = 1000;

absl::Status WrongType(std::string_view path, std::string_view wanted, const Json& value) {
  return ParamError(path,
                    absl::StrCat(std::string(path), " must be ", std::string(wanted), ", not ",
                                 value.type_name()),
                    kInvalidType);
}

// Returns nothing if `value` is no whole number of 64 bits.
std::optional<int64_t> WholeNumber(const Json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  if (std::trunc(number) != number || std::fabs(number) > 9e15) return std::nullopt;
  return static_cast<int64_t>(number);
}

}  // namespace

absl::Status ParamError(std::string_view param, const std::string& message, std::string_view code) {
  return common::WithReason(absl::InvalidArgumentError(message), code,
                            {{"param", std::string(param)}});
}

absl::StatusOr<Fields> Fields::Of(const Json& value, std::string path, IgnoredNames* ignored) {
  if (!value.is_object()) return WrongType(path.empty() ? "the body" : path, "an object", value);
  if (value.size() > kParametersMax) {
    return ParamError(path,
                      absl::StrCat(path.empty() ? "the body" : path, " has ", value.size(),
                                   " parameters, most of them unknown to this server"),
                      "UNKNOWN_PARAMETER");
  }
  return Fields(value, std::move(path), ignored);
}

std::string Fields::PathOf(std::string_view name) const {
  return path_.empty() ? std::string(name) : absl::StrCat(path_, ".", std::string(name));
}

const Json* Fields::Find(std::string_view name) {
  known_.emplace(name);
  const auto found = object_->find(std::string(name));
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

absl::Status Fields::Read(std::string_view name, std::optional<bool>* out) {
  const Json* const value = Find(name);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_boolean()) return WrongType(PathOf(name), "true or false", *value);
  *out = value->get<bool>();
  return absl::OkStatus();
}

absl::Status Fields::Read(std::string_view name, std::optional<std::string>* out) {
  const Json* const value = Find(name);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_string()) return WrongType(PathOf(name), "a string", *value);
  *out = value->get<std::string>();
  return absl::OkStatus();
}

absl::Status Fields::Read(std::string_view name, std::optional<double>* out) {
  const Json* const value = Find(name);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_number()) return WrongType(PathOf(name), "a number", *value);
  *out = value->get<double>();
  return absl::OkStatus();
}

absl::Status Fields::Read(std::string_view name, std::optional<int64_t>* out, int64_t least,
                          int64_t most) {
  const Json* const value = Find(name);
  if (value == nullptr) return absl::OkStatus();
  const std::optional<int64_t> number = WholeNumber(*value);
  if (!number.has_value() && !value->is_number()) {
    return WrongType(PathOf(name), "a whole number", *value);
  }
  if (!number.has_value() || *number < least || *number > most) {
    return ParamError(PathOf(name), absl::StrCat(PathOf(name), " must be a whole number in [",
                                                 least, ", ", most, "]"));
  }
  *out = *number;
  return absl::OkStatus();
}

absl::Status Fields::ReadIds(const Json& list, const std::string& path, std::vector<int32_t>* out) {
  if (!list.is_array()) return WrongType(path, "a list of token ids", list);
  out->reserve(list.size());
  for (const Json& item : list) {
    const std::optional<int64_t> id = WholeNumber(item);
    if (!id.has_value() && !item.is_number()) return WrongType(path, "a list of token ids", list);
    if (!id.has_value() || *id < 0 || *id > std::numeric_limits<int32_t>::max()) {
      return ParamError(path, absl::StrCat(path, "[", out->size(), "] is no token id"));
    }
    out->push_back(static_cast<int32_t>(*id));
  }
  return absl::OkStatus();
}

absl::Status Fields::NotOffered(std::string_view name, const std::string& why,
                                const Json& harmless) {
  const Json* const value = Find(name);
  if (value == nullptr || *value == harmless || *value == false ||
      (value->is_array() && value->empty())) {
    return absl::OkStatus();
  }
  return ParamError(PathOf(name), absl::StrCat(PathOf(name), " is not offered: ", why),
                    "UNSUPPORTED_PARAMETER");
}

absl::Status Fields::Hint(std::string_view name, const std::string& why, const Json& harmless) {
  const absl::Status refusal = NotOffered(name, why, harmless);
  return refusal.ok() ? refusal : IgnoreOr(name, refusal);
}

absl::Status Fields::IgnoreOr(std::string_view name, absl::Status refusal) {
  known_.emplace(name);
  if (ignored_ == nullptr) return refusal;
  ignored_->Add(PathOf(name));
  return absl::OkStatus();
}

absl::Status Fields::CheckUnknown() const {
  for (const auto& [name, value] : object_->items()) {
    if (known_.contains(name)) continue;
    if (ignored_ != nullptr) {
      ignored_->Add(PathOf(name));
      continue;
    }
    const std::string shown = absl::Utf8SafeCEscape(name.substr(0, kShownBytes));
    return ParamError(
        PathOf(shown),
        absl::StrCat("the parameter '", PathOf(shown), "' is not known to this server"),
        "UNKNOWN_PARAMETER");
  }
  return absl::OkStatus();
}

}  // namespace retroinfer::gateway
