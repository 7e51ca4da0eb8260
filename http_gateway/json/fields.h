// The fields of a JSON object that came in a request, one by one, each with its type.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "http_gateway/json/ignored_names.h"
#include "http_gateway/json/strict_json.h"

namespace retroinfer::gateway {

// Returns INVALID_ARGUMENT with `code` as its reason, about the parameter `param`.
absl::Status ParamError(std::string_view param, const std::string& message,
                        std::string_view code = "INVALID_VALUE");

// A field that is null counts as one that is not there, as OpenAI's clients mean it. Methods return
// INVALID_ARGUMENT, with the field's path as parameter, for a value of another type. What is not
// known, and hints that are not followed, are noted in an IgnoredNames; without one they are
// refused.
//
// Threads: one.
class Fields {
 public:
  // `path`: of the object, for messages; empty for the body itself. `ignored`: gets the names of
  // what is ignored; null: nothing is.
  //
  // Returns: INVALID_ARGUMENT if `value` is no object.
  // REQUIRES: `value` and `ignored` outlive the result.
  static absl::StatusOr<Fields> Of(const Json& value, std::string path = "",
                                   IgnoredNames* ignored = nullptr);
  // Of an object within this one, for which the same counts. `path`: whole, from the body on.
  absl::StatusOr<Fields> Inner(const Json& value, std::string path) const {
    return Of(value, std::move(path), ignored_);
  }

  // Null if it is not there.
  const Json* Find(std::string_view name);
  absl::Status Read(std::string_view name, std::optional<bool>* out);
  absl::Status Read(std::string_view name, std::optional<std::string>* out);
  absl::Status Read(std::string_view name, std::optional<double>* out);
  // A whole number, perhaps written as 5.0, in [least, most].
  absl::Status Read(std::string_view name, std::optional<int64_t>* out, int64_t least,
                    int64_t most);
  // Of ids, each in [0, 2^31).
  static absl::Status ReadIds(const Json& list, const std::string& path, std::vector<int32_t>* out);

  // What is accepted whatever it says, because it changes no answer.
  void Ignore(std::string_view name) { known_.emplace(name); }
  // Refuses `name` unless it is absent, null, false, an empty list or `harmless`: what it asks for
  // is not offered.
  absl::Status NotOffered(std::string_view name, const std::string& why,
                          const Json& harmless = nullptr);

  // As NotOffered(), but what `name` asks for changes no answer: where names may be ignored, this
  // one is.
  absl::Status Hint(std::string_view name, const std::string& why, const Json& harmless = nullptr);
  // Notes `name` as ignored.
  //
  // Returns: `refusal` where nothing may be ignored.
  absl::Status IgnoreOr(std::string_view name, absl::Status refusal);

  // Notes what no method has been asked for as ignored, or refuses it.
  absl::Status CheckUnknown() const;

  std::string PathOf(std::string_view name) const;

 private:
  Fields(const Json& object, std::string path, IgnoredNames* ignored)
      : object_(&object), path_(std::move(path)), ignored_(ignored) {}

  const Json* object_;
  std::string path_;
  IgnoredNames* ignored_;  // null: nothing may be ignored
  std::set<std::string, std::less<>> known_;
};

}  // namespace retroinfer::gateway
