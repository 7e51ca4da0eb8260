// In which forms a matrix of weights may be, as checkpoints store it and as backends are given it:
// the one description of it. Sizes follow from it, and whatever needs numbers of codes asks it.
//
// An element of a form is a number, or a code, which stands for (decoded code - zero) * scale.
// Scales and zeros (WeightScales) lie beside the codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "common/kv/dtype.h"
#include "common/log/check.h"
#include "gpu_worker/ops/model/e4m3.h"
#include "gpu_worker/ops/model/weight_type.h"

namespace retroinfer {

// By which backends choose their code. That of codes other than kE4m3 is part of the fingerprint:
// never renumber.
enum class WeightFormId : uint32_t { kF32 = 1, kBf16 = 2, kF16 = 3, kE4m3 = 4, kInt4 = 5 };

struct WeightForm {
  WeightFormId id = WeightFormId::kBf16;
  std::string_view name = "bf16";  // in messages and metrics
  DType number = DType::kBf16;     // the element of a form without codes
  int bits = 16;                   // of an element; rows follow each other without gaps, but
  size_t word_bytes = 1;           // end at a multiple of this

  // Codes: writes what the first `count` of a row stand for, scales and zeros apart; NaN for a code
  // that is none. Null: elements are numbers.
  void (*decode)(const std::byte* row, int64_t count, float* out) = nullptr;
  int64_t group_cols = 0;      // columns of a row that share a scale; 0: all
  bool may_be_blocks = false;  // scales may also be those of blocks (WeightScales::kBlock)
  bool has_zeros = false;      // each scale has a zero beside it,
  size_t zero_bytes = 1;       // of so many bytes, at most, in a backend's memory

  constexpr bool is_code() const { return decode != nullptr; }
  constexpr bool IsNumber(DType type) const { return !is_code() && number == type; }

  constexpr size_t RowBytes(int64_t cols) const {
    const size_t bytes = (static_cast<size_t>(cols) * static_cast<size_t>(bits) + 7) / 8;
    return (bytes + word_bytes - 1) / word_bytes * word_bytes;
  }
  constexpr size_t Bytes(int64_t rows, int64_t cols) const {
    return static_cast<size_t>(rows) * RowBytes(cols);
  }
  // At most, of scales, in f32, and zeros.
  constexpr size_t ScaleBytes(int64_t rows, int64_t cols) const {
    const int64_t groups = group_cols == 0 ? 1 : (cols + group_cols - 1) / group_cols;
    return !is_code() ? 0 : static_cast<size_t>(rows * groups) * (has_zeros ? 4 + zero_bytes : 4);
  }
};

// As WeightForm::decode.
inline void DecodeE4m3(const std::byte* row, int64_t count, float* out) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (int64_t i = 0; i < count; ++i) {
    const auto code = static_cast<uint8_t>(row[i]);
    out[i] = IsE4m3Nan(code) ? kNan : FromE4m3(code);
  }
}

inline constexpr WeightForm kF32Weights = {
    .id = WeightFormId::kF32, .name = "f32", .number = DType::kF32, .bits = 32};
inline constexpr WeightForm kBf16Weights = {};
inline constexpr WeightForm kF16Weights = {
    .id = WeightFormId::kF16, .name = "f16", .number = DType::kF16, .bits = 16};
inline constexpr WeightForm kFp8Weights = {.id = WeightFormId::kE4m3,
                                           .name = "fp8",
                                           .number = DType::kF32,
                                           .bits = 8,
                                           .decode = &DecodeE4m3,
                                           .may_be_blocks = true};

// The form of a matrix that is all of a tensor of this element type.
// REQUIRES: kI32 and kI64 are not: they say nothing of what is in them.
constexpr const WeightForm& FormOf(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return kF32Weights;
    case WeightType::kBf16:
      return kBf16Weights;
    case WeightType::kF16:
      return kF16Weights;
    case WeightType::kF8E4M3:
      return kFp8Weights;
    case WeightType::kI32:
    case WeightType::kI64:
    case WeightType::kU8:
      break;
  }
  RI_CHECK(false);
  return kBf16Weights;
}

}  // namespace retroinfer
