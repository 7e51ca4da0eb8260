#include "gpu_worker/ops/cpu/token_vectors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "common/kv/kv_geometry.h"
#include "common/log/check.h"
#include "gpu_worker/ops/cpu/convert.h"
#include "gpu_worker/ops/eight_bit_vector.h"

namespace retroinfer::cpu {
namespace {

void EncodeVector(const float* numbers, uint32_t head_dim, int8_t* elements) {
  uint32_t largest = 0;  // as integers, so that NaN is the largest of all
  for (uint32_t i = 0; i < head_dim; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(numbers[i]) & 0x7fffffff);
  }
  const int32_t code = ExponentCode(largest);
  for (int32_t i = 0; i < kExponentBits; ++i) elements[i] = ToElement(numbers[i], i, code);
  for (uint32_t i = kExponentBits; i < head_dim; ++i) {
    elements[i] = ToElement(numbers[i], kExponentBits, code);
  }
}

void DecodeVector(const int8_t* elements, uint32_t head_dim, float* numbers) {
  uint64_t first = 0;
  std::memcpy(&first, elements, sizeof(first));
  const float scale = ScaleOfCode(CodeOf(first));
  for (int32_t i = 0; i < kExponentBits; ++i) {
    numbers[i] = scale * static_cast<float>(FromElement(elements[i], i));
  }
  for (uint32_t i = kExponentBits; i < head_dim; ++i) {
    numbers[i] = scale * static_cast<float>(elements[i]);
  }
}

}  // namespace

void StoreToken(const float* numbers, const VectorFormat& format, uint32_t head_dim,
                std::byte* stored) {
  if (format == kEightBitTokens) {
    return EncodeVector(numbers, head_dim, reinterpret_cast<int8_t*>(stored));
  }
  RI_DCHECK(format.scale_per == ScalePer::kNothing);
  ConvertFromF32(numbers, format.element, stored, head_dim);
}

void PackToken(const std::byte* row, const VectorFormat& format, uint32_t head_dim,
               std::byte* stored) {
  if (format != kEightBitTokens) {
    std::memcpy(stored, row, format.vector_bytes(head_dim));
    return;
  }
  std::array<float, kMaxHeadDim> numbers;
  ConvertToF32(DType::kBf16, row, numbers.data(), head_dim);
  EncodeVector(numbers.data(), head_dim, reinterpret_cast<int8_t*>(stored));
}

void UnpackToken(const std::byte* stored, const VectorFormat& format, uint32_t head_dim,
                 std::byte* row) {
  if (format != kEightBitTokens) {
    std::memcpy(row, stored, format.vector_bytes(head_dim));
    return;
  }
  std::array<float, kMaxHeadDim> numbers;
  DecodeVector(reinterpret_cast<const int8_t*>(stored), head_dim, numbers.data());
  ConvertFromF32(numbers.data(), DType::kBf16, row, head_dim);
}

}  // namespace retroinfer::cpu
