// Element types of the tensors of a checkpoint. What a matrix of them stands for says its form
// (weight_form.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/kv/dtype.h"

namespace retroinfer {

// The values are part of a model's fingerprint: never renumber. Elements of kF8E4M3 (e4m3.h) are
// codes, those of kI32 and kU8 several codes each, or numbers of groups, or exponents; those of
// kI64 sizes.
enum class WeightType : uint32_t {
  kF32 = 1,
  kBf16 = 2,
  kF16 = 3,
  kF8E4M3 = 4,
  kI32 = 5,
  kI64 = 6,
  kU8 = 7
};

// Whether an element is no number by itself.
constexpr bool HasScales(WeightType type) {
  return type == WeightType::kF8E4M3 || type == WeightType::kI32 || type == WeightType::kI64 ||
         type == WeightType::kU8;
}

constexpr size_t WeightTypeBytes(WeightType type) {
  switch (type) {
    case WeightType::kI64:
      return 8;
    case WeightType::kF32:
    case WeightType::kI32:
      return 4;
    case WeightType::kBf16:
    case WeightType::kF16:
      return 2;
    case WeightType::kF8E4M3:
    case WeightType::kU8:
      return 1;
  }
  return 0;
}

// As safetensors files name it.
constexpr std::string_view WeightTypeName(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return "F32";
    case WeightType::kBf16:
      return "BF16";
    case WeightType::kF16:
      return "F16";
    case WeightType::kF8E4M3:
      return "F8_E4M3";
    case WeightType::kI32:
      return "I32";
    case WeightType::kI64:
      return "I64";
    case WeightType::kU8:
      return "U8";
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
    case WeightType::kI32:
    case WeightType::kI64:
    case WeightType::kU8:
      break;
  }
  return DType::kF32;
}

}  // namespace retroinfer
