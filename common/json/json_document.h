// The one reader of JSON that nobody has vouched for: the files of a model folder, the bodies of
// requests, what a model writes.
//
// It takes what RFC 8259 calls JSON, and of that only what every reader understands in the same
// way: UTF-8, no key twice in one object, no NaN, no number beyond what a double holds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace retroinfer::common {

// What a document may cost before it is given up.
struct JsonLimits {
  size_t bytes_max = size_t{1} << 20;
  size_t values_max = 100'000;  // objects, lists and scalars; a member counts once, with its key
  size_t depth_max = 64;        // of objects and lists in each other
};

class JsonElements;
class JsonMembers;

// One value of a JsonDocument, valid while the document lives.
//
// Threads: immutable. Cheap to copy.
class JsonValue {
 public:
  bool IsNull() const;
  bool IsBool() const;
  bool IsNumber() const;
  bool IsString() const;
  bool IsArray() const;
  bool IsObject() const;
  // "null", "boolean", "number", "string", "array" or "object".
  const char* TypeName() const;

  // Nothing if the value is of another type.
  std::optional<bool> Bool() const;
  std::optional<std::string_view> String() const;
  // A number written without point and exponent, if the type holds it.
  std::optional<int64_t> Int() const;
  std::optional<uint64_t> Unsigned() const;
  // Any number; integers beyond 64 bits are the nearest double.
  std::optional<double> Number() const;

  // Of an array or an object, up to 2^24 - 1; 0 for other values.
  size_t Size() const;
  // The member of this name; nothing if this is no object or has none. A null is a value.
  //
  // Cost: O(members).
  std::optional<JsonValue> Find(std::string_view key) const;
  // In the order of the text; none if this is of another type.
  JsonElements Elements() const;
  JsonMembers Members() const;

  // As JSON in one line, members in the order of the text.
  std::string Text() const;

  // Whether both mean the same: the order of members does not count, 1 equals 1.0.
  bool SameAs(const JsonValue& other) const;

 private:
  friend class JsonDocument;
  friend class JsonElements;
  friend class JsonMembers;
  // The element of simdjson that this is, in its bytes: whoever reads JSON need not compile that
  // library's header.
  using Bytes = std::array<uintptr_t, 2>;
  explicit JsonValue(Bytes bytes) : bytes_(bytes) {}

  Bytes bytes_;
};

// The elements of an array, for a range-based loop.
class JsonElements {
 public:
  class Iterator {
   public:
    explicit Iterator(JsonValue::Bytes bytes) : bytes_(bytes) {}
    JsonValue operator*() const;
    Iterator& operator++();
    bool operator!=(const Iterator& other) const { return bytes_ != other.bytes_; }

   private:
    JsonValue::Bytes bytes_;
  };
  JsonElements(Iterator begin, Iterator end) : begin_(begin), end_(end) {}
  Iterator begin() const { return begin_; }
  Iterator end() const { return end_; }

 private:
  Iterator begin_, end_;
};

struct JsonMember {
  std::string_view key;
  JsonValue value;
};

// The members of an object, for a range-based loop.
class JsonMembers {
 public:
  class Iterator {
   public:
    explicit Iterator(JsonValue::Bytes bytes) : bytes_(bytes) {}
    JsonMember operator*() const;
    Iterator& operator++();
    bool operator!=(const Iterator& other) const { return bytes_ != other.bytes_; }

   private:
    JsonValue::Bytes bytes_;
  };
  JsonMembers(Iterator begin, Iterator end) : begin_(begin), end_(end) {}
  Iterator begin() const { return begin_; }
  Iterator end() const { return end_; }

 private:
  Iterator begin_, end_;
};

// Owns: what was parsed; not the text.
class JsonDocument {
 public:
  // Parses `text`, which holds one value.
  //
  // Returns: INVALID_ARGUMENT with what is wrong, to be put behind the name of the document: "is
  //          not valid JSON: ...", "has the key "a" twice in one object", "has more than 9 values".
  //          Of the text it shows at most such a key, cut to 60 bytes and escaped.
  // Cost:    O(text); memory in proportion to the text, at most 16 bytes for each value plus the
  //          strings. The stack does not grow with the text.
  static absl::StatusOr<JsonDocument> Parse(std::string_view text, const JsonLimits& limits);

  JsonDocument(JsonDocument&&) noexcept;
  JsonDocument& operator=(JsonDocument&&) noexcept;
  ~JsonDocument();

  JsonValue root() const;

 private:
  struct Parsed;
  explicit JsonDocument(std::unique_ptr<Parsed> parsed);

  std::unique_ptr<Parsed> parsed_;
};

}  // namespace retroinfer::common
