#include "http_gateway/json/strict_json.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

// Builds the value from the parser's events, and stops at the first thing that is not wanted.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return Fail("binary data"); }
  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    if (open_.back()->contains(name)) return Fail("a key is twice in one object");
    key_ = std::move(name);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const Json::exception& error) override {
    return Fail(absl::StrCat(error.id == 406 ? "a number is out of range" : "it is no JSON",
                             ", at byte ", position));
  }

  absl::StatusOr<Json> Take(bool complete) && {
    if (complete && error_.empty()) return std::move(root_);
    return common::WithReason(absl::InvalidArgumentError(absl::StrCat(
                                  "the body cannot be read as JSON: ",
                                  error_.empty() ? std::string("it ends early") : error_)),
                              "INVALID_JSON");
  }

 private:
  bool Fail(std::string error) {
    if (error_.empty()) error_ = std::move(error);
    return false;
  }
  Json* Place(Json value) {
    if (++num_values_ > limits_.values_max) {
      Fail(absl::StrCat("it has more than ", limits_.values_max, " values"));
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }
  bool Add(Json value) { return Place(std::move(value)) != nullptr; }
  bool Open(Json value) {
    if (open_.size() >= limits_.depth_max) {
      return Fail(absl::StrCat("it is nested more than ", limits_.depth_max, " deep"));
    }
    Json* const place = Place(std::move(value));
    if (place == nullptr) return false;
    open_.push_back(place);
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  const JsonLimits limits_;
  Json root_;
  std::vector<Json*> open_;  // the last one is what values go into
  std::string key_;
  size_t num_values_ = 0;
  std::string error_;
};

}  // namespace

absl::StatusOr<Json> ParseStrictJson(std::string_view text, const JsonLimits& limits) {
  Builder builder(limits);
  const bool complete = Json::sax_parse(text.begin(), text.end(), &builder);
  return std::move(builder).Take(complete);
}

}  // namespace retroinfer::gateway
