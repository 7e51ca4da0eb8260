// Forms of weights as one would add them to the product (docs/architecture.md, "To add something"):
// all that the loader and the CPU backend need is in the entries.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu_worker/model/stored_form.h"

namespace retroinfer::test_support {

inline void DecodeInt8(const std::byte* row, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(static_cast<int8_t>(row[i]));
}

// Two in a byte, the first in its low half.
inline void DecodeInt4(const std::byte* row, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(static_cast<int>(row[i / 2]) >> i % 2 * 4 & 0xf);
  }
}

// Numbers from -128 to 127, four in a word.
inline constexpr WeightForm kInt8Weights = {.id = static_cast<WeightFormId>(1000),
                                            .name = "int8",
                                            .number = DType::kF32,
                                            .bits = 8,
                                            .word_bytes = 4,
                                            .decode = &DecodeInt8};
// From 0 to 15, eight in a word; 32 columns share a scale and a zero.
inline constexpr WeightForm kInt4Weights = {.id = static_cast<WeightFormId>(1001),
                                            .name = "int4",
                                            .number = DType::kF32,
                                            .bits = 4,
                                            .word_bytes = 4,
                                            .decode = &DecodeInt4,
                                            .group_cols = 32,
                                            .has_zeros = true};

inline constexpr StoredForm kInt8OfFeatures = {.part = ScaledPart::kFeature,
                                               .scales_are = "a scale for each output feature",
                                               .form = kInt8Weights,
                                               .element = WeightType::kI32,
                                               .codes_end = "weight_packed",
                                               .scale_rows = 1};
inline constexpr StoredForm kInt4OfGroups = {
    .part = static_cast<ScaledPart>(1001),
    .scales_are = "scale and zero for each 32 input features",
    .form = kInt4Weights,
    .element = WeightType::kI32,
    .codes_end = "weight_packed",
    .zeros_end = "weight_zero_point",
    .scale_rows = 1,
    .scale_cols = 32};

}  // namespace retroinfer::test_support
