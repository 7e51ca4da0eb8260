// How weights are stored in a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/kv/dtype.h"

namespace retroinfer {

// The values are part of a model's fingerprint: never renumber. An element of kF8E4M3 (e4m3.h) is a
// code: what it stands for is that times a scale (WeightScales).
enum class WeightType : uint32_t { kF32 = 1, kBf16 = 2, kF16 = 3, kF8E4M3 = 4 };

constexpr bool HasScales(WeightType type) { return type == WeightType::kF8E4M3; }

constexpr size_t WeightTypeBytes(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return 4;
    case WeightType::kBf16:
    case WeightType::kF16:
      return 2;
    case WeightType::kF8E4M3:
      return 1;
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
    case WeightType::kF8E4M3:
      return "fp8";
  }
  return "unknown";
}

// The element type of weights that are plain numbers.
// REQUIRES: !HasScales(type).
constexpr DType ElementType(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return DType::kF32;
    case WeightType::kBf16:
      return DType::kBf16;
    case WeightType::kF16:
      return DType::kF16;
    case WeightType::kF8E4M3:
      break;
  }
  return DType::kF32;
}

}  // namespace retroinfer
