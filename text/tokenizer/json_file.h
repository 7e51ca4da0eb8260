// JSON files that may be hostile: every read is checked and an error names the place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/json/json_document.h"

namespace retroinfer {

// A value of a JsonFile and where it is ("tokenizer.json: model.vocab"); valid while the file
// lives.
class PlacedJson {
 public:
  PlacedJson(common::JsonValue value, std::string place)
      : value_(value), place_(std::move(place)) {}

  // Each returns INVALID_ARGUMENT if the value is of another type.
  absl::StatusOr<bool> AsBool() const;
  absl::StatusOr<std::string_view> AsString() const;
  absl::StatusOr<int32_t> AsInt32() const;
  absl::StatusOr<common::JsonElements> AsArray() const;
  absl::StatusOr<common::JsonMembers> AsObject() const;
  bool IsString() const { return value_.IsString(); }
  bool IsArray() const { return value_.IsArray(); }
  size_t Size() const { return value_.Size(); }

  // The field `key`; nothing if it is absent or null. INVALID_ARGUMENT if this is no object.
  absl::StatusOr<std::optional<PlacedJson>> Optional(std::string_view key) const;
  // The field `key`; INVALID_ARGUMENT if it is absent or null.
  absl::StatusOr<PlacedJson> Required(std::string_view key) const;
  // The bool `key`, or `fallback` if it is absent or null.
  absl::StatusOr<bool> BoolOr(std::string_view key, bool fallback) const;

  // INVALID_ARGUMENT if this is no object, or has a field that `keys` does not name.
  absl::Status AllowOnly(std::initializer_list<std::string_view> keys) const;

  // INVALID_ARGUMENT: "<place>: <problem>".
  absl::Status Error(std::string_view problem) const;
  // An element or a field of this value, with its place.
  PlacedJson Child(common::JsonValue value, std::string_view name) const;

 private:
  common::JsonValue value_;
  std::string place_;
};

// Owns: what was parsed of one file.
class JsonFile {
 public:
  static constexpr size_t kBytesMax = size_t{64} << 20;  // large vocabularies take 17 to 34 MB
  static constexpr size_t kDepthMax = 64;

  // Reads and parses `path`.
  //
  // Returns: NOT_FOUND or another error of the system; INVALID_ARGUMENT if it is over kBytesMax, or
  //          for what common::JsonDocument refuses.
  static absl::StatusOr<JsonFile> Load(const std::filesystem::path& path);

  // Parses `text`; errors call it `name`. Returns as Load().
  static absl::StatusOr<JsonFile> Parse(std::string_view text, std::string name);

  PlacedJson root() const { return {document_.root(), name_}; }

 private:
  JsonFile(common::JsonDocument document, std::string name)
      : document_(std::move(document)), name_(std::move(name)) {}

  common::JsonDocument document_;
  std::string name_;
};

// Reads all of a regular file of at most `bytes_max` bytes.
//
// Returns: NOT_FOUND or another error of the system; INVALID_ARGUMENT if it is larger.
absl::StatusOr<std::string> ReadSmallFile(const std::filesystem::path& path, size_t bytes_max);

}  // namespace retroinfer
