// Element types: of activations, of the KV of a prompt, and of what a KvFormat (kv_format.h)
// stores. Weights have a type of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace retroinfer {

// The values of what is computed in are part of fingerprints: never renumber.
// kInt8 is for what has scales (VectorFormat): nothing is computed in it.
enum class DType : uint32_t { kF32 = 1, kBf16 = 2, kF16 = 3, kInt8 = 4 };

constexpr size_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kBf16:
    case DType::kF16:
      return 2;
    case DType::kInt8:
      return 1;
  }
  return 0;
}

constexpr std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBf16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kInt8:
      return "int8";
  }
  return "unknown";
}

}  // namespace retroinfer
