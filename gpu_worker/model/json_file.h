// Reading of JSON that nobody has vouched for: the files of a model folder.
//
// Every error is INVALID_ARGUMENT and names the file, the key, what it holds and what is accepted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace retroinfer {

// What a document may cost before it is given up.
struct JsonLimits {
  size_t max_bytes = size_t{1} << 20;
  size_t max_values = 100'000;  // objects, arrays, keys and scalars
  int max_depth = 16;           // nested objects and arrays
};

// An object inside a parsed document, with its name for error messages.
//
// Threads: immutable. Copies share the document and keep it alive.
class JsonObject {
 public:
  // `document` must hold a JSON object; `name` is how messages call it ("folder/config.json").
  JsonObject(std::shared_ptr<const nlohmann::json> document, std::string name);

  const std::string& name() const { return name_; }
  const nlohmann::json& json() const { return *json_; }

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

  // INVALID_ARGUMENT "<name>: key "<key>" <problem>".
  absl::Status Error(const std::string& key, const std::string& problem) const;

 private:
  // The value, or nullptr if it is absent or null.
  const nlohmann::json* Find(const std::string& key) const;
  absl::Status WrongType(const std::string& key, const std::string& wanted) const;

  std::shared_ptr<const nlohmann::json> document_;
  const nlohmann::json* json_;
  std::string name_;
};

// Parses `text`, which must be one JSON object without a key that appears twice in an object.
absl::StatusOr<JsonObject> ParseJsonObject(std::span<const std::byte> text, std::string name,
                                           const JsonLimits& limits);

// Reads and parses a file; NOT_FOUND if there is none.
absl::StatusOr<JsonObject> LoadJsonFile(const std::string& path, const JsonLimits& limits);

}  // namespace retroinfer
