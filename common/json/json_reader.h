// Reads values of JSON that nobody has vouched for, and says of what is wrong where it is and what
// is needed.
//
// Every error is INVALID_ARGUMENT and names the document, the place in it, what is there (cut to a
// length that fits a message) and what is accepted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/json/json_document.h"

namespace retroinfer::common {

// Of small documents: settings, no vocabulary and no list of tensors.
inline constexpr JsonLimits kSmallJson = {.depth_max = 16};

// A value of a document, and its place for messages ("tokenizer.json: model.vocab").
//
// Threads: immutable. Copies share the document and keep it alive.
class JsonReader {
 public:
  // Parses `text`; errors call the document `name`.
  static absl::StatusOr<JsonReader> Parse(std::string_view text, std::string name,
                                          const JsonLimits& limits = kSmallJson);
  // The same of a document that must be an object.
  static absl::StatusOr<JsonReader> ParseObject(std::string_view text, std::string name,
                                                const JsonLimits& limits = kSmallJson);
  // Reads a regular file (common/files/regular_file.h, ReadNamedFile) that must hold an object.
  //
  // Returns: NOT_FOUND or another error of the system, too; INVALID_ARGUMENT if the file has more
  //          than limits.bytes_max bytes, which are not read then.
  static absl::StatusOr<JsonReader> LoadObject(const std::string& path, std::string name,
                                               const JsonLimits& limits = kSmallJson);

  const std::string& place() const { return place_; }
  const JsonValue& json() const { return value_; }
  bool IsString() const { return value_.IsString(); }
  bool IsArray() const { return value_.IsArray(); }
  size_t Size() const { return value_.Size(); }

  // --- This value. Numbers must be in [min, max]; an integer must be written as one. Text lives as
  // long as a reader of the document does.
  absl::StatusOr<bool> AsBool() const;
  absl::StatusOr<int64_t> AsInt(int64_t min, int64_t max) const;
  absl::StatusOr<double> AsNumber(double min, double max) const;
  absl::StatusOr<std::string_view> AsString() const;
  absl::StatusOr<JsonElements> AsArray() const;
  absl::StatusOr<JsonMembers> AsObject() const;

  // --- Members of this value, which must be an object. An absent key and null mean the same.
  bool Has(std::string_view key) const { return Find(key).has_value(); }
  absl::StatusOr<std::optional<JsonReader>> Optional(std::string_view key) const;
  absl::StatusOr<JsonReader> Required(std::string_view key) const;
  absl::StatusOr<bool> Bool(std::string_view key) const;
  absl::StatusOr<int64_t> Int(std::string_view key, int64_t min, int64_t max) const;
  absl::StatusOr<double> Number(std::string_view key, double min, double max) const;
  absl::StatusOr<std::string> String(std::string_view key) const;
  absl::StatusOr<JsonReader> Object(std::string_view key) const;
  // An array of at most `max_size` strings, or integers in [min, max]. IntList also takes one bare
  // integer.
  absl::StatusOr<std::vector<std::string>> StringList(std::string_view key, size_t max_size) const;
  absl::StatusOr<std::vector<int64_t>> IntList(std::string_view key, int64_t min, int64_t max,
                                               size_t max_size) const;
  // An array of at most `max_size` numbers in [min, max].
  absl::StatusOr<std::vector<double>> NumberList(std::string_view key, double min, double max,
                                                 size_t max_size) const;
  // The same with a value for a key that is not there.
  absl::StatusOr<bool> BoolOr(std::string_view key, bool absent) const;
  absl::StatusOr<int64_t> IntOr(std::string_view key, int64_t absent, int64_t min,
                                int64_t max) const;
  absl::StatusOr<double> NumberOr(std::string_view key, double absent, double min,
                                  double max) const;

  // Members that are met one by one: a search for each of a hundred thousand would take quadratic
  // time.
  absl::StatusOr<JsonReader> Object(const JsonMember& member) const;
  absl::StatusOr<std::string> String(const JsonMember& member) const;

  // Refuses a member whose key is not among `keys`.
  absl::Status AllowOnly(std::initializer_list<std::string_view> keys) const;

  // An element or a member of this value. Bare() has no place of its own: a place for each of a
  // hundred thousand elements would cost more than reading them.
  JsonReader Child(JsonValue value, std::string_view name) const;
  JsonReader Bare(JsonValue value) const { return JsonReader(document_, value, {}); }

  // INVALID_ARGUMENT "<place>: <problem>", and "<place>: key "<key>" <problem>".
  absl::Status Error(std::string_view problem) const;
  absl::Status Error(std::string_view key, std::string_view problem) const;

 private:
  JsonReader(std::shared_ptr<const JsonDocument> document, JsonValue value, std::string place)
      : document_(std::move(document)), value_(value), place_(std::move(place)) {}

  // The member, or nothing if it is absent or null.
  std::optional<JsonValue> Find(std::string_view key) const;
  absl::Status WrongType(std::string_view wanted) const;
  absl::Status WrongType(std::string_view key, const JsonValue& value,
                         std::string_view wanted) const;
  // Also where the key is missing.
  absl::Status WrongType(std::string_view key, std::string_view wanted) const;

  std::shared_ptr<const JsonDocument> document_;
  JsonValue value_;
  std::string place_;
};

}  // namespace retroinfer::common
