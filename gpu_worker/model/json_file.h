// Reading of JSON that nobody has vouched for: the files of a model folder.
//
// Every error is INVALID_ARGUMENT and names the file, the key, what it holds and what is accepted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/json/json_document.h"

namespace retroinfer {

// Of small files: settings, no vocabulary and no list of tensors.
inline constexpr common::JsonLimits kSmallJson = {.depth_max = 16};

// An object inside a parsed document, with its name for error messages.
//
// Threads: immutable. Copies share the document and keep it alive.
class JsonObject {
 public:
  // `document` must hold a JSON object; `name` is how messages call it ("folder/config.json").
  JsonObject(std::shared_ptr<const common::JsonDocument> document, std::string name);

  const std::string& name() const { return name_; }
  const common::JsonValue& json() const { return json_; }

  // Whether `key` is there and not null. An absent key and null mean the same to all getters.
  bool Has(const std::string& key) const;

  // The value of a key that must be there. Numbers must be finite and in [min, max]; an integer
  // must be written as one.
  absl::StatusOr<int64_t> Int(const std::string& key, int64_t min, int64_t max) const;
  absl::StatusOr<double> Number(const std::string& key, double min, double max) const;
  absl::StatusOr<bool> Bool(const std::string& key) const;
  absl::StatusOr<std::string> String(const std::string& key) const;
  absl::StatusOr<JsonObject> Object(const std::string& key) const;
  // An array of strings, or of integers in [min, max]; at most `max_size` of them. IntList also
  // takes one bare integer.
  absl::StatusOr<std::vector<std::string>> StringList(const std::string& key,
                                                      size_t max_size) const;
  absl::StatusOr<std::vector<int64_t>> IntList(const std::string& key, int64_t min, int64_t max,
                                               size_t max_size) const;

  // The same with a value for a key that is not there.
  absl::StatusOr<int64_t> IntOr(const std::string& key, int64_t absent, int64_t min,
                                int64_t max) const;
  absl::StatusOr<double> NumberOr(const std::string& key, double absent, double min,
                                  double max) const;
  absl::StatusOr<bool> BoolOr(const std::string& key, bool absent) const;

  // The members that are objects or strings have these forms when met one by one: a search for each
  // of a hundred thousand would take quadratic time.
  absl::StatusOr<JsonObject> Object(const common::JsonMember& member) const;
  absl::StatusOr<std::string> String(const common::JsonMember& member) const;

  // INVALID_ARGUMENT "<name>: key "<key>" <problem>".
  absl::Status Error(const std::string& key, const std::string& problem) const;

 private:
  // The value, or nothing if it is absent or null.
  std::optional<common::JsonValue> Find(const std::string& key) const;
  absl::Status WrongType(const std::string& key, const std::string& wanted) const;
  absl::Status WrongType(const std::string& key, const common::JsonValue& value,
                         const std::string& wanted) const;

  std::shared_ptr<const common::JsonDocument> document_;
  common::JsonValue json_;
  std::string name_;
};

// Parses `text`, which must be one JSON object.
absl::StatusOr<JsonObject> ParseJsonObject(std::span<const std::byte> text, std::string name,
                                           const common::JsonLimits& limits = kSmallJson);

// Reads and parses a file; NOT_FOUND if there is none.
absl::StatusOr<JsonObject> LoadJsonFile(const std::string& path,
                                        const common::JsonLimits& limits = kSmallJson);

}  // namespace retroinfer
