#include "gpu_worker/model/gguf/gguf_metadata.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

// 0: not of one size, or no type at all.
size_t ScalarBytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
    case GgufValueType::kInt8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kUint16:
    case GgufValueType::kInt16:
      return 2;
    case GgufValueType::kUint32:
    case GgufValueType::kInt32:
    case GgufValueType::kFloat32:
      return 4;
    case GgufValueType::kUint64:
    case GgufValueType::kInt64:
    case GgufValueType::kFloat64:
      return 8;
    case GgufValueType::kString:
    case GgufValueType::kArray:
      break;
  }
  return 0;
}

template <typename T>
T Load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// None: no integer, or one beyond int64.
std::optional<int64_t> IntegerAt(GgufValueType type, const std::byte* bytes) {
  switch (type) {
    case GgufValueType::kUint8:
      return Load<uint8_t>(bytes);
    case GgufValueType::kInt8:
      return Load<int8_t>(bytes);
    case GgufValueType::kUint16:
      return Load<uint16_t>(bytes);
    case GgufValueType::kInt16:
      return Load<int16_t>(bytes);
    case GgufValueType::kUint32:
      return Load<uint32_t>(bytes);
    case GgufValueType::kInt32:
      return Load<int32_t>(bytes);
    case GgufValueType::kInt64:
      return Load<int64_t>(bytes);
    case GgufValueType::kUint64: {
      const auto value = Load<uint64_t>(bytes);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> NumberAt(GgufValueType type, const std::byte* bytes) {
  if (type == GgufValueType::kFloat32) return Load<float>(bytes);
  if (type == GgufValueType::kFloat64) return Load<double>(bytes);
  const std::optional<int64_t> integer = IntegerAt(type, bytes);
  if (!integer.has_value()) return std::nullopt;
  return static_cast<double>(*integer);
}

std::string Quoted(std::string_view key) {
  return absl::StrCat("key \"", absl::CHexEscape(std::string(key.substr(0, 80))), "\"");
}

// REQUIRES: `bytes` is what remains of strings that were walked over before.
std::string_view TakeString(std::span<const std::byte>& bytes) {
  const auto size = static_cast<size_t>(Load<uint64_t>(bytes.data()));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof(uint64_t), size);
  bytes = bytes.subspan(sizeof(uint64_t) + size);
  return text;
}

}  // namespace

absl::StatusOr<GgufMetadata::Value> GgufMetadata::ReadValue(GgufCursor& cursor,
                                                            std::string_view key) {
  const std::string what = absl::StrCat("the value of ", Quoted(key));
  Value value;
  ASSIGN_OR_RETURN(uint32_t type, cursor.U32(what));
  if (type == static_cast<uint32_t>(GgufValueType::kArray)) {
    value.is_array = true;
    ASSIGN_OR_RETURN(type, cursor.U32(what));
    ASSIGN_OR_RETURN(value.count, cursor.U64(what));
    if (type == static_cast<uint32_t>(GgufValueType::kArray)) {
      return absl::UnimplementedError(
          absl::StrCat(cursor.place(), ": ", Quoted(key), ": arrays of arrays are not supported"));
    }
  }
  if (type > static_cast<uint32_t>(GgufValueType::kFloat64)) {
    return cursor.Error(
        absl::StrCat(Quoted(key), ": has type ", type, ", which is none; is the file damaged?"));
  }
  value.type = static_cast<GgufValueType>(type);
  if (const size_t each = ScalarBytes(value.type); each != 0) {
    // Compared before it is multiplied.
    if (value.count > cursor.remaining() / each) {
      return cursor.Error(absl::StrCat("ends within ", what, "; is the file complete?"));
    }
    ASSIGN_OR_RETURN(value.bytes, cursor.Bytes(value.count * each, what));
    return value;
  }
  const GgufCursor begin = cursor;
  for (uint64_t i = 0; i < value.count; ++i) {
    RETURN_IF_ERROR(cursor.String(cursor.remaining(), what).status());
  }
  GgufCursor all = begin;
  ASSIGN_OR_RETURN(value.bytes, all.Bytes(cursor.offset() - begin.offset(), what));
  return value;
}

absl::StatusOr<GgufMetadata> GgufMetadata::Read(GgufCursor& cursor, uint64_t count) {
  if (count > kMaxKeys) {
    return cursor.Error(
        absl::StrCat("says that it has ", count, " keys; at most ", kMaxKeys, " are accepted"));
  }
  GgufMetadata metadata;
  metadata.place_ = cursor.place();
  for (uint64_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(const std::string_view key, cursor.String(kMaxKeyBytes, "the name of a key"));
    if (key.empty()) return cursor.Error("a key has no name; is the file damaged?");
    ASSIGN_OR_RETURN(const Value value, ReadValue(cursor, key));
    if (!metadata.values_.emplace(std::string(key), value).second) {
      return cursor.Error(absl::StrCat(Quoted(key), " occurs twice"));
    }
  }
  return metadata;
}

absl::Status GgufMetadata::Error(std::string_view key, const std::string& problem) const {
  return absl::InvalidArgumentError(absl::StrCat(place_, ": ", Quoted(key), ": ", problem));
}

absl::Status GgufMetadata::Unsupported(std::string_view key, const std::string& problem) const {
  return absl::UnimplementedError(absl::StrCat(place_, ": ", Quoted(key), ": ", problem));
}

absl::StatusOr<GgufMetadata::Value> GgufMetadata::Find(std::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return Error(key, "is missing");
  return found->second;
}

absl::StatusOr<GgufMetadata::Value> GgufMetadata::FindScalar(std::string_view key) const {
  ASSIGN_OR_RETURN(const Value value, Find(key));
  if (value.is_array) return Unsupported(key, "is an array; one value for all layers is supported");
  return value;
}

absl::StatusOr<GgufMetadata::Value> GgufMetadata::FindArray(std::string_view key,
                                                            size_t count_max) const {
  ASSIGN_OR_RETURN(const Value value, Find(key));
  if (!value.is_array) return Error(key, "must be an array");
  if (value.count > count_max) {
    return Error(
        key, absl::StrCat("has ", value.count, " entries; at most ", count_max, " are accepted"));
  }
  return value;
}

absl::StatusOr<int64_t> GgufMetadata::Int(std::string_view key, int64_t min, int64_t max) const {
  ASSIGN_OR_RETURN(const Value value, FindScalar(key));
  const std::optional<int64_t> number = IntegerAt(value.type, value.bytes.data());
  if (!number.has_value()) return Error(key, "must be an integer");
  if (*number < min || *number > max) {
    return Error(key, absl::StrCat("is ", *number, "; needs ", min, " to ", max));
  }
  return *number;
}

absl::StatusOr<int64_t> GgufMetadata::IntOr(std::string_view key, int64_t absent, int64_t min,
                                            int64_t max) const {
  return Has(key) ? Int(key, min, max) : absent;
}

absl::StatusOr<double> GgufMetadata::Number(std::string_view key, double min, double max) const {
  ASSIGN_OR_RETURN(const Value value, FindScalar(key));
  const std::optional<double> number = NumberAt(value.type, value.bytes.data());
  if (!number.has_value()) return Error(key, "must be a number");
  // The comparison is false for a NaN, too.
  if (!(*number >= min && *number <= max)) {
    return Error(key, absl::StrCat("is ", *number, "; needs ", min, " to ", max));
  }
  return *number;
}

absl::StatusOr<double> GgufMetadata::NumberOr(std::string_view key, double absent, double min,
                                              double max) const {
  return Has(key) ? Number(key, min, max) : absent;
}

absl::StatusOr<bool> GgufMetadata::BoolOr(std::string_view key, bool absent) const {
  if (!Has(key)) return absent;
  ASSIGN_OR_RETURN(const Value value, FindScalar(key));
  const auto byte = static_cast<uint8_t>(value.bytes.empty() ? std::byte{2} : value.bytes[0]);
  if (value.type != GgufValueType::kBool || byte > 1) return Error(key, "must be true or false");
  return byte == 1;
}

absl::StatusOr<std::string_view> GgufMetadata::String(std::string_view key,
                                                      size_t bytes_max) const {
  ASSIGN_OR_RETURN(const Value value, FindScalar(key));
  if (value.type != GgufValueType::kString) return Error(key, "must be a string");
  std::span<const std::byte> bytes = value.bytes;
  const std::string_view text = TakeString(bytes);
  if (text.size() > bytes_max) {
    return Error(key,
                 absl::StrCat("has ", text.size(), " bytes; at most ", bytes_max, " are accepted"));
  }
  return text;
}

absl::StatusOr<std::vector<std::string_view>> GgufMetadata::Strings(std::string_view key,
                                                                    size_t count_max) const {
  ASSIGN_OR_RETURN(const Value value, FindArray(key, count_max));
  if (value.type != GgufValueType::kString) return Error(key, "must be an array of strings");
  std::vector<std::string_view> strings;
  strings.reserve(static_cast<size_t>(value.count));
  std::span<const std::byte> bytes = value.bytes;
  for (uint64_t i = 0; i < value.count; ++i) strings.push_back(TakeString(bytes));
  return strings;
}

absl::StatusOr<std::vector<int64_t>> GgufMetadata::Ints(std::string_view key,
                                                        size_t count_max) const {
  ASSIGN_OR_RETURN(const Value value, FindArray(key, count_max));
  std::vector<int64_t> numbers;
  numbers.reserve(static_cast<size_t>(value.count));
  const size_t each = ScalarBytes(value.type);
  for (uint64_t i = 0; i < value.count; ++i) {
    const std::optional<int64_t> number =
        each == 0 ? std::nullopt
                  : IntegerAt(value.type, value.bytes.data() + static_cast<size_t>(i) * each);
    if (!number.has_value()) return Error(key, "must be an array of integers");
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace retroinfer
