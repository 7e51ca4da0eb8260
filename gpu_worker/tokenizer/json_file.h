// JSON files that may be hostile: every read is checked and an error names the place.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace retroinfer {

// A value of a JsonFile and where it is ("tokenizer.json: model.vocab"); valid while the file
// lives.
class JsonValue {
 public:
  JsonValue(simdjson::dom::element element, std::string place)
      : element_(element), place_(std::move(place)) {}

  // Each returns INVALID_ARGUMENT if the value is of another type.
  absl::StatusOr<bool> AsBool() const;
  absl::StatusOr<std::string_view> AsString() const;
  absl::StatusOr<int32_t> AsInt32() const;
  absl::StatusOr<simdjson::dom::array> AsArray() const;
  absl::StatusOr<simdjson::dom::object> AsObject() const;
  bool IsString() const { return element_.is_string(); }
  bool IsArray() const { return element_.is_array(); }

  // The field `key`; nothing if it is absent or null. INVALID_ARGUMENT if this is no object, or if
  // `key` occurs twice.
  absl::StatusOr<std::optional<JsonValue>> Optional(std::string_view key) const;
  // The field `key`; INVALID_ARGUMENT if it is absent or null.
  absl::StatusOr<JsonValue> Required(std::string_view key) const;
  // The bool `key`, or `fallback` if it is absent or null.
  absl::StatusOr<bool> BoolOr(std::string_view key, bool fallback) const;

  // INVALID_ARGUMENT if this is no object, or has a field that `keys` does not name.
  absl::Status AllowOnly(std::initializer_list<std::string_view> keys) const;

  // INVALID_ARGUMENT: "<place>: <problem>".
  absl::Status Error(std::string_view problem) const;
  // The same for an element or a field of this value.
  JsonValue Child(simdjson::dom::element element, std::string_view name) const;

 private:
  simdjson::dom::element element_;
  std::string place_;
};

// Owns: the parsed text of one file.
class JsonFile {
 public:
  static constexpr size_t kBytesMax = size_t{64} << 20;  // large vocabularies take 17 to 34 MB
  static constexpr size_t kDepthMax = 64;

  // Reads and parses `path`.
  //
  // Returns: NOT_FOUND or another error of the system; INVALID_ARGUMENT if it is over kBytesMax, no
  //          JSON, no UTF-8 or nested deeper than kDepthMax.
  static absl::StatusOr<JsonFile> Load(const std::filesystem::path& path);

  // Parses `text`; errors call it `name`. Returns as Load().
  static absl::StatusOr<JsonFile> Parse(std::string_view text, std::string name);

  JsonValue root() const { return {root_, name_}; }

 private:
  JsonFile() = default;

  std::unique_ptr<simdjson::dom::parser> parser_;  // owns what root_ points to
  simdjson::dom::element root_;
  std::string name_;
};

// Reads all of a regular file of at most `bytes_max` bytes.
//
// Returns: NOT_FOUND or another error of the system; INVALID_ARGUMENT if it is larger.
absl::StatusOr<std::string> ReadSmallFile(const std::filesystem::path& path, size_t bytes_max);

}  // namespace retroinfer
