// The keys and values at the beginning of a GGUF file.
//
//   key    u64 length, bytes
//   type   u32, GgufValueType
//   value  a number; a string: u64 length, bytes; an array: u32 type, u64 count, that many values
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/model/gguf/gguf_cursor.h"

namespace retroinfer {

enum class GgufValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// Threads: immutable after Read.
// Owns:    nothing of the values: they stay in the bytes that were read.
class GgufMetadata {
 public:
  static constexpr uint64_t kMaxKeys = 65'536;
  static constexpr uint64_t kMaxKeyBytes = 65'535;

  // Reads `count` keys with their values. Every length is checked, also of values that nobody asks
  // for.
  //
  // Returns: INVALID_ARGUMENT, with file and key, if the file ends before, a type is none, or a key
  //          occurs twice; UNIMPLEMENTED for arrays of arrays.
  static absl::StatusOr<GgufMetadata> Read(GgufCursor& cursor, uint64_t count);

  bool Has(std::string_view key) const { return values_.find(key) != values_.end(); }
  const std::string& place() const { return place_; }

  // Integers may have any integer type, numbers that of floats, too.
  //
  // Returns: INVALID_ARGUMENT, with file, key and what is accepted, for a key that is missing (but
  //          for ...Or), another type and values out of bounds.
  absl::StatusOr<int64_t> Int(std::string_view key, int64_t min, int64_t max) const;
  absl::StatusOr<int64_t> IntOr(std::string_view key, int64_t absent, int64_t min,
                                int64_t max) const;
  absl::StatusOr<double> Number(std::string_view key, double min, double max) const;
  absl::StatusOr<double> NumberOr(std::string_view key, double absent, double min,
                                  double max) const;
  absl::StatusOr<bool> BoolOr(std::string_view key, bool absent) const;
  absl::StatusOr<std::string_view> String(std::string_view key, size_t bytes_max) const;
  absl::StatusOr<std::vector<std::string_view>> Strings(std::string_view key,
                                                        size_t count_max) const;
  absl::StatusOr<std::vector<int64_t>> Ints(std::string_view key, size_t count_max) const;

  // INVALID_ARGUMENT and UNIMPLEMENTED that name file and key.
  absl::Status Error(std::string_view key, const std::string& problem) const;
  absl::Status Unsupported(std::string_view key, const std::string& problem) const;

 private:
  struct Value {
    GgufValueType type = GgufValueType::kUint8;  // of an array: of its elements
    bool is_array = false;
    uint64_t count = 1;
    std::span<const std::byte> bytes;
  };

  static absl::StatusOr<Value> ReadValue(GgufCursor& cursor, std::string_view key);
  absl::StatusOr<Value> Find(std::string_view key) const;
  absl::StatusOr<Value> FindScalar(std::string_view key) const;
  absl::StatusOr<Value> FindArray(std::string_view key, size_t count_max) const;

  std::string place_;
  std::map<std::string, Value, std::less<>> values_;
};

}  // namespace retroinfer
