// Element types of weights, activations and KV pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace retroinfer {

// The values are part of the shared-memory layout and of durable formats: never renumber.
enum class DType : uint32_t { kF32 = 1, kBf16 = 2, kF16 = 3 };

constexpr size_t DTypeBytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

constexpr std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBf16:
      return "bf16";
    case DType::kF16:
      return "f16";
  }
  return "unknown";
}

}  // namespace retroinfer
