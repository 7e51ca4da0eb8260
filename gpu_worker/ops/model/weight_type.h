// How weights are stored in a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/kv/dtype.h"

namespace retroinfer {

// The values are part of a model's fingerprint: never
// renumber.
enum class WeightType : uint32_t { kF32 = 1, kBf16 = 2, kF16 = 3 };

constexpr size_t WeightTypeBytes(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return 4;
    case WeightType::kBf16:
    case WeightType::kF16:
      return 2;
  }
  return 0;
}

constexpr std::string_view WeightTypeName(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return "f32";
    case WeightType::kBf16:
      return "bf16";
    case WeightType::kF16:
      return "f16";
  }
  return "unknown";
}

// The element type of weights that are plain numbers, as all types are so far.
constexpr DType ElementType(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return DType::kF32;
    case WeightType::kBf16:
      return DType::kBf16;
    case WeightType::kF16:
      return DType::kF16;
  }
  return DType::kF32;
}

}  // namespace retroinfer
