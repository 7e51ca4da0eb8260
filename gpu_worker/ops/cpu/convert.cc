#include "gpu_worker/ops/cpu/convert.h"

#include <bit>
#include <cstring>

#include "common/log/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/ops/cpu/convert.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
//
#include "gpu_worker/ops/cpu/vector_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace retroinfer::cpu::HWY_NAMESPACE {
namespace {

void Bf16ToF32(const std::byte* in, float* out, int64_t size) {
  const FloatTag d;
  const hn::CappedTag<float, 1> d1;
  const auto* from = reinterpret_cast<const Bf16*>(in);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= size; i += lanes) hn::StoreU(LoadF32(d, from + i), d, out + i);
  for (; i < size; ++i) hn::StoreU(LoadF32(d1, from + i), d1, out + i);
}

void F16ToF32(const std::byte* in, float* out, int64_t size) {
  const FloatTag d;
  const hn::CappedTag<float, 1> d1;
  const auto* from = reinterpret_cast<const hwy::float16_t*>(in);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    hn::StoreU(hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, FloatTag>(), from + i)), d,
               out + i);
  }
  for (; i < size; ++i) {
    hn::StoreU(hn::PromoteTo(d1, hn::LoadU(hn::Rebind<hwy::float16_t, decltype(d1)>(), from + i)),
               d1, out + i);
  }
}

void F32ToBf16(const float* in, std::byte* out, int64_t size) {
  const FloatTag d;
  const hn::CappedTag<float, 1> d1;
  auto* to = reinterpret_cast<Bf16*>(out);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= size; i += lanes) StoreF32(d, hn::LoadU(d, in + i), to + i);
  for (; i < size; ++i) StoreF32(d1, hn::LoadU(d1, in + i), to + i);
}

}  // namespace
}  // namespace retroinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace retroinfer::cpu {
namespace {

// Highway's conversion truncates on processors without an instruction for it.
uint16_t F16Bits(float value) {
  constexpr uint32_t kInfinity = 0x7f800000;
  constexpr uint32_t kOverflow = 0x477ff000;     // 65520: from here on the nearest is infinity
  constexpr uint32_t kLeastNormal = 0x38800000;  // 2^-14
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t size = bits & 0x7fffffff;
  if (size > kInfinity) return static_cast<uint16_t>(sign | 0x7e00);
  if (size >= kOverflow) return static_cast<uint16_t>(sign | 0x7c00);
  if (size < kLeastNormal) {
    // Numbers from 0.5 on are multiples of 2^-24, as f16 below 2^-14 are: the sum rounds.
    const float sum = std::bit_cast<float>(size) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(sum) - 0x3f000000));
  }
  const uint32_t odd = size >> 13 & 1;
  return static_cast<uint16_t>(sign | ((size + 0xfff + odd - (112u << 23)) >> 13));
}

void F32ToF16(const float* in, std::byte* out, int64_t size) {
  auto* to = reinterpret_cast<uint16_t*>(out);
  for (int64_t i = 0; i < size; ++i) to[i] = F16Bits(in[i]);
}

}  // namespace

HWY_EXPORT(Bf16ToF32);
HWY_EXPORT(F16ToF32);
HWY_EXPORT(F32ToBf16);

void ConvertToF32(DType dtype, const std::byte* in, float* out, int64_t size) {
  switch (dtype) {
    case DType::kF32:
      if (size > 0) std::memcpy(out, in, static_cast<size_t>(size) * sizeof(float));
      return;
    case DType::kBf16:
      return HWY_DYNAMIC_DISPATCH(Bf16ToF32)(in, out, size);
    case DType::kF16:
      return HWY_DYNAMIC_DISPATCH(F16ToF32)(in, out, size);
    case DType::kInt8:
      RI_CHECK(false);
  }
}

void ConvertFromF32(const float* in, DType dtype, std::byte* out, int64_t size) {
  switch (dtype) {
    case DType::kF32:
      if (size > 0) std::memcpy(out, in, static_cast<size_t>(size) * sizeof(float));
      return;
    case DType::kBf16:
      return HWY_DYNAMIC_DISPATCH(F32ToBf16)(in, out, size);
    case DType::kF16:
      return F32ToF16(in, out, size);
    case DType::kInt8:
      RI_CHECK(false);
  }
}

}  // namespace retroinfer::cpu
#endif  // HWY_ONCE
