// Weights in 4 bits: codes from 0 to 15, eight in a word of 32 bits, the first in its low bits. A
// group of a row's columns shares a scale and a zero: a code stands for (code - zero) * scale.
//
// Checkpoints store codes in several orders (AWQ, GPTQ, compressed-tensors); CodeOrder names them,
// and arrange_codes.h brings them into the one above. Kernels call these functions, too.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "gpu_worker/ops/model/weight_form.h"

namespace retroinfer {

inline constexpr int64_t kInt4WordCodes = 8;
inline constexpr int kInt4MaxZero = 16;            // GPTQ stores zeros less one
inline constexpr int kInt4Middle = 8;              // the zero where a form has none
inline constexpr int64_t kInt4RoundedGroup = 128;  // of numbers that are rounded while loading

constexpr uint32_t Int4CodeAt(const std::byte* row, int64_t col) {
  return static_cast<uint32_t>(row[col / 2]) >> col % 2 * 4 & 0xf;
}

// As WeightForm::decode: codes, for forms with zeros; and codes less the middle, for those without.
inline void DecodeInt4(const std::byte* row, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(Int4CodeAt(row, i));
}
inline void DecodeMiddledInt4(const std::byte* row, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(static_cast<int>(Int4CodeAt(row, i)) - kInt4Middle);
  }
}

// `group_cols`: 0: all columns of a row are a group.
constexpr WeightForm Int4Weights(int64_t group_cols, bool has_zeros) {
  return {.id = WeightFormId::kInt4,
          .name = "int4",
          .number = DType::kF32,
          .bits = 4,
          .word_bytes = 4,
          .decode = has_zeros ? &DecodeInt4 : &DecodeMiddledInt4,
          .group_cols = group_cols,
          .has_zeros = has_zeros,
          .zero_bytes = 0};  // a zero lies in the word of its scale
}
inline constexpr WeightForm kInt4Rounded = Int4Weights(kInt4RoundedGroup, true);

// A scale with its zero in the five low bits, which a scale of 16 bits does not have.
constexpr uint32_t Int4GroupWord(float scale, int zero) {
  return (std::bit_cast<uint32_t>(scale) & ~0x1fu) | static_cast<uint32_t>(zero);
}

// How a group of numbers becomes codes: the one of a few choices that loses least. Symmetric ones
// and those of the group's own ends are tried, each with ends cut off a little, too.
//
// What floats are multiplied to is computed in doubles, where the product is exact: so fused and
// separate instructions give the same, and every backend gets the same codes.
struct Int4Group {
  float scale = 1;  // of few bits, as Int4GroupWord keeps it
  int zero = kInt4Middle;

  constexpr int CodeOf(float value) const {
    constexpr double kRounder = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to integers
    const double inverse = 1.0f / scale;
    double code = (value * inverse + kRounder) - kRounder + zero;
    code = code < 0 ? 0 : code;
    code = code > 15 ? 15 : code;
    return static_cast<int>(code);
  }
  constexpr float NumberOf(int code) const { return static_cast<float>(code - zero) * scale; }

  // The squared error of values(0) to values(count - 1).
  template <typename Values>
  constexpr double ErrorOf(int64_t count, const Values& values) const {
    double sums[4] = {};  // more than one, so that additions need not wait for each other
    for (int64_t i = 0; i < count; ++i) {
      const float value = values(i);
      const double lost = static_cast<float>(value - double{NumberOf(CodeOf(value))});
      sums[i % 4] += lost * lost;
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }

  // REQUIRES: values are finite.
  template <typename Values>
  static constexpr Int4Group Of(int64_t count, const Values& values) {
    float low = 0;
    float high = 0;
    for (int64_t i = 0; i < count; ++i) {
      const float value = values(i);
      low = value < low ? value : low;
      high = value > high ? value : high;
    }
    const float largest = -low > high ? -low : high;
    if (largest == 0) return {};
    Int4Group best;
    double least = -1;
    for (int choice = 0; choice < 6; ++choice) {
      const bool symmetric = choice % 2 == 0;
      const double part = (10 - choice / 2) / 10.0;  // 1, 0.9 and 0.8
      const double range = symmetric ? largest * (15.0 / 7.0) : double{high} - double{low};
      const Int4Group group = WithRange(range * part, symmetric ? kNoEnd : low * part);
      const double error = group.ErrorOf(count, values);
      if (least >= 0 && error >= least) continue;
      least = error;
      best = group;
    }
    return best;
  }

 private:
  static constexpr double kNoEnd = 1;  // no low end is above zero

  static constexpr Int4Group WithRange(double range, double low) {
    constexpr float kSmallest = 0x1p-100f;  // its inverse is a float
    Int4Group group;
    group.scale = std::bit_cast<float>(Int4GroupWord(static_cast<float>(range / 15), 0));
    group.scale = group.scale < kSmallest ? kSmallest : group.scale;
    if (low == kNoEnd) return group;
    const double zero = -low / group.scale + 0.5;
    group.zero = zero > 15 ? 15 : static_cast<int>(zero);
    return group;
  }
};

// How the codes of a matrix [rows][cols] lie in the words of a tensor.
struct CodeOrder {
  bool transposed = false;   // the tensor is [cols][rows]
  bool packs_down = false;   // a word holds codes of eight rows of the tensor, not of eight columns
  bool interleaved = false;  // of a word: codes 0, 2, 4, 6, 1, 3, 5, 7

  bool operator==(const CodeOrder&) const = default;

  // Words in each direction.
  constexpr int64_t WordRows(int64_t rows, int64_t cols) const {
    const int64_t size = transposed ? cols : rows;
    return packs_down ? (size + kInt4WordCodes - 1) / kInt4WordCodes : size;
  }
  constexpr int64_t WordCols(int64_t rows, int64_t cols) const {
    const int64_t size = transposed ? rows : cols;
    return packs_down ? size : (size + kInt4WordCodes - 1) / kInt4WordCodes;
  }
  constexpr size_t Bytes(int64_t rows, int64_t cols) const {
    return static_cast<size_t>(WordRows(rows, cols) * WordCols(rows, cols)) * 4;
  }

  // Where (row, col) lies.
  struct Place {
    int64_t word;
    int shift;
  };
  constexpr Place PlaceOf(int64_t row, int64_t col, int64_t rows, int64_t cols) const {
    const int64_t down = transposed ? col : row;
    const int64_t across = transposed ? row : col;
    const int64_t packed = packs_down ? down : across;
    const auto in_word = static_cast<int>(packed % kInt4WordCodes);
    const int64_t word_row = packs_down ? down / kInt4WordCodes : down;
    const int64_t word_col = packs_down ? across : across / kInt4WordCodes;
    return {word_row * WordCols(rows, cols) + word_col,
            (interleaved ? in_word / 2 + in_word % 2 * 4 : in_word) * 4};
  }
};

inline constexpr CodeOrder kCodesInRows = {};
inline constexpr CodeOrder kAwqCodes = {.transposed = true, .interleaved = true};
inline constexpr CodeOrder kGptqCodes = {.transposed = true, .packs_down = true};
inline constexpr CodeOrder kGptqZeros = {.transposed = true};
inline constexpr CodeOrder kCodesDown = {.packs_down = true};  // zeros of compressed-tensors

}  // namespace retroinfer
