// Bound by memory: K and V of a chunk are read once for the whole group. To keep up with memory,
// * two vectors of f32 come from one load of bf16: the even elements by a shift, the odd ones by a
//   mask. Queries and accumulators are kept in that order instead of shuffling every row;
// * scores of several tokens and heads are computed together, so that each load of a key and of a
//   query serves many products, and their horizontal sums are done four at a time;
// * the next chunk is fetched into the L2 cache in even steps all through the work on this one.
#include "gpu_worker/ops/attention/cpu/attend_chunk.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "common/log/check.h"
#include "gpu_worker/ops/eight_bit_vector.h"
#include "hwy/cache_control.h"

#ifndef RETROINFER_ATTEND_CHUNK_ONCE_  // this file is read once for each target
#define RETROINFER_ATTEND_CHUNK_ONCE_
namespace retroinfer::cpu {

// The bits of a vector's first elements that count; all of the others'.
inline constexpr auto kCounted = [] {
  std::array<int8_t, 256> bits;
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = i < kExponentBits ? ~1 : ~0;
  return bits;
}();

}  // namespace retroinfer::cpu
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/ops/attention/cpu/attend_chunk.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
//
#include "gpu_worker/ops/cpu/store_sums-inl.h"
#include "gpu_worker/ops/cpu/vector_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace retroinfer::cpu::HWY_NAMESPACE {
namespace {

// Tells eight-bit elements from the others.
struct EightBit {
  int8_t element;
};
static_assert(sizeof(EightBit) == 1);

// Loads 2 * Lanes(d) elements from place `i` of a vector: for bf16 the even ones into `a` and the
// odd ones into `b`.
HWY_INLINE void LoadPair(FloatTag d, const float* vector, uint32_t i, FloatVec& a, FloatVec& b) {
  const float* const from = vector + i;
  a = hn::LoadU(d, from);
  b = hn::LoadU(d, from + hn::Lanes(d));
}
HWY_INLINE void LoadPair(FloatTag d, const Bf16* vector, uint32_t i, FloatVec& a, FloatVec& b) {
  const Bf16* const from = vector + i;
  const hn::Repartition<uint32_t, FloatTag> du;
  const auto both = hn::LoadU(du, reinterpret_cast<const uint32_t*>(from));
  a = hn::BitCast(d, hn::ShiftLeft<16>(both));
  b = hn::BitCast(d, hn::And(both, hn::Set(du, 0xffff0000u)));
}
HWY_INLINE void LoadPair(FloatTag d, const hwy::float16_t* vector, uint32_t i, FloatVec& a,
                         FloatVec& b) {
  const hwy::float16_t* const from = vector + i;
  const hn::Rebind<hwy::float16_t, FloatTag> d16;
  a = hn::PromoteTo(d, hn::LoadU(d16, from));
  b = hn::PromoteTo(d, hn::LoadU(d16, from + hn::Lanes(d)));
}
// Whole numbers, without the scale; the exponent's bits in the first of them do not count.
HWY_INLINE void LoadPair(FloatTag d, const EightBit* vector, uint32_t i, FloatVec& a, FloatVec& b) {
  const hn::Rebind<int8_t, FloatTag> d8;
  const hn::Rebind<int32_t, FloatTag> d32;
  const auto* const from = reinterpret_cast<const int8_t*>(vector) + i;
  auto low = hn::LoadU(d8, from);
  auto high = hn::LoadU(d8, from + hn::Lanes(d));
  if (i < kExponentBits) {
    low = hn::And(low, hn::LoadU(d8, kCounted.data() + i));
    high = hn::And(high, hn::LoadU(d8, kCounted.data() + i + hn::Lanes(d)));
  }
  a = hn::ConvertTo(d, hn::PromoteTo(d32, low));
  b = hn::ConvertTo(d, hn::PromoteTo(d32, high));
}

// What the elements of a vector are to be multiplied by.
template <typename T>
HWY_INLINE float ScaleOf(const std::byte* vector) {
  if constexpr (!std::is_same_v<T, EightBit>) return 1.0f;
  uint64_t first = 0;
  std::memcpy(&first, vector, sizeof(first));
  return ScaleOfCode(CodeOf(first));
}

// scores[g][first + t] for kTokens tokens, from their keys.
template <typename T, int kGroup, int kTokens>
HWY_INLINE void ScoreTokens(const AttentionState& state, const std::byte* const* keys,
                            float (*scores)[kChunkTokens]) {
  constexpr int kSums = kGroup * kTokens;
  constexpr int kPaddedSums = (kSums + 3) / 4 * 4;
  const FloatTag d;
  const auto lanes = static_cast<uint32_t>(hn::Lanes(d));
  FloatVec sums[kPaddedSums];
  for (int i = 0; i < kPaddedSums; ++i) sums[i] = hn::Zero(d);
  for (uint32_t i = 0; i < state.head_dim; i += 2 * lanes) {
    FloatVec a[kTokens];
    FloatVec b[kTokens];
    for (int t = 0; t < kTokens; ++t) {
      LoadPair(d, reinterpret_cast<const T*>(keys[t]), i, a[t], b[t]);
    }
    for (int g = 0; g < kGroup; ++g) {
      const float* query = state.queries.data() + static_cast<uint32_t>(g) * state.head_dim + i;
      const auto qa = hn::Load(d, query);
      const auto qb = hn::Load(d, query + lanes);
      for (int t = 0; t < kTokens; ++t) {
        sums[g * kTokens + t] = hn::MulAdd(qa, a[t], sums[g * kTokens + t]);
        sums[g * kTokens + t] = hn::MulAdd(qb, b[t], sums[g * kTokens + t]);
      }
    }
  }
  float reduced[kPaddedSums];
  for (int i = 0; i < kPaddedSums; i += 4) {
    StoreSums(d, sums[i], sums[i + 1], sums[i + 2], sums[i + 3], 1.0f, reduced + i);
  }
  for (int t = 0; t < kTokens; ++t) {
    const float scale = ScaleOf<T>(keys[t]);
    for (int g = 0; g < kGroup; ++g) scores[g][t] = reduced[g * kTokens + t] * scale;
  }
}

// Turns row g of scores into weights relative to the running maximum, which it updates.
HWY_INLINE void UpdateSoftmax(AttentionState& state, int g, float* scores, int32_t num_tokens) {
  const FloatTag d;
  const auto group = static_cast<size_t>(g);
  const float max = std::max(state.max[group], MaxOf(scores, static_cast<size_t>(num_tokens)));
  if (max > state.max[group]) {
    const float factor = std::exp(state.max[group] - max);
    state.sum[group] *= factor;
    Scale(factor, state.acc.data() + group * state.head_dim, state.head_dim);
    state.max[group] = max;
  }
  const auto m = hn::Set(d, max);
  auto sum = hn::Zero(d);
  for (int32_t t = 0; t < kChunkTokens; t += static_cast<int32_t>(hn::Lanes(d))) {
    const auto weight = ExpOf(d, hn::Sub(hn::LoadU(d, scores + t), m));
    hn::StoreU(weight, d, scores + t);
    sum = hn::Add(sum, weight);
  }
  state.sum[group] += hn::GetLane(hn::SumOfLanes(d, sum));
}

// Fetches into the L2 cache; the L1 cache would run out of places for lines under way.
HWY_INLINE void PrefetchBytes(const std::byte* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
}

// acc[g] += sum over the tokens of weights[g][t] * value t.
template <typename T, int kGroup>
HWY_INLINE void AddValues(const AttentionChunk& chunk, const AttentionChunk& next,
                          const float (*weights)[kChunkTokens], AttentionState& state) {
  const FloatTag d;
  const auto lanes = static_cast<uint32_t>(hn::Lanes(d));
  // Each step fetches as many bytes of the next values as it uses of these, in their order.
  const uint32_t row_bytes = state.head_dim * sizeof(T);
  const uint32_t step_bytes = 2 * lanes * sizeof(T);
  uint32_t next_row = 0;
  uint32_t next_byte = 0;
  for (uint32_t i = 0; i < state.head_dim; i += 2 * lanes) {
    FloatVec acc_a[kGroup];
    FloatVec acc_b[kGroup];
    for (int g = 0; g < kGroup; ++g) {
      const float* acc = state.acc.data() + static_cast<uint32_t>(g) * state.head_dim + i;
      acc_a[g] = hn::Load(d, acc);
      acc_b[g] = hn::Load(d, acc + lanes);
    }
    for (int32_t t = 0; t < chunk.num_tokens; ++t) {
      FloatVec a;
      FloatVec b;
      LoadPair(d, reinterpret_cast<const T*>(chunk.values[static_cast<size_t>(t)]), i, a, b);
      if (next_row < static_cast<uint32_t>(next.num_tokens)) {
        PrefetchBytes(next.values[next_row] + next_byte, step_bytes);
        next_byte += step_bytes;
        if (next_byte == row_bytes) {
          next_byte = 0;
          ++next_row;
        }
      }
      for (int g = 0; g < kGroup; ++g) {
        const auto weight = hn::Set(d, weights[g][t]);
        acc_a[g] = hn::MulAdd(weight, a, acc_a[g]);
        acc_b[g] = hn::MulAdd(weight, b, acc_b[g]);
      }
    }
    for (int g = 0; g < kGroup; ++g) {
      float* acc = state.acc.data() + static_cast<uint32_t>(g) * state.head_dim + i;
      hn::Store(acc_a[g], d, acc);
      hn::Store(acc_b[g], d, acc + lanes);
    }
  }
}

template <typename T, int kGroup>
void Attend(const AttentionChunk& chunk, const AttentionChunk& next, AttentionState& state) {
  constexpr int kTokens = kGroup <= 4 ? 4 : 2;
  const size_t row_bytes = state.head_dim * sizeof(T);
  alignas(64) float scores[kGroup][kChunkTokens];
  for (int32_t t = 0; t < chunk.num_tokens; t += kTokens) {
    const std::byte* keys[kTokens];
    for (int j = 0; j < kTokens; ++j) {
      keys[j] = chunk.keys[static_cast<size_t>(std::min(t + j, chunk.num_tokens - 1))];
    }
    for (int j = 0; j < kTokens && t + j < next.num_tokens; ++j) {
      PrefetchBytes(next.keys[static_cast<size_t>(t + j)], row_bytes);
    }
    ScoreTokens<T, kGroup, kTokens>(state, keys,
                                    reinterpret_cast<float(*)[kChunkTokens]>(&scores[0][t]));
  }
  for (int g = 0; g < kGroup; ++g) {
    for (int32_t t = chunk.num_tokens; t < kChunkTokens; ++t) {
      scores[g][t] = -std::numeric_limits<float>::infinity();
    }
    UpdateSoftmax(state, g, scores[g], chunk.num_tokens);
  }
  if constexpr (std::is_same_v<T, EightBit>) {
    for (int32_t t = 0; t < chunk.num_tokens; ++t) {
      const float scale = ScaleOf<T>(chunk.values[static_cast<size_t>(t)]);
      for (int g = 0; g < kGroup; ++g) scores[g][t] *= scale;
    }
  }
  AddValues<T, kGroup>(chunk, next, scores, state);
}

template <typename T>
void AttendGroup(const AttentionChunk& chunk, const AttentionChunk& next, AttentionState& state) {
  switch (state.group) {
    case 1:
      return Attend<T, 1>(chunk, next, state);
    case 2:
      return Attend<T, 2>(chunk, next, state);
    case 3:
      return Attend<T, 3>(chunk, next, state);
    case 4:
      return Attend<T, 4>(chunk, next, state);
    case 5:
      return Attend<T, 5>(chunk, next, state);
    case 6:
      return Attend<T, 6>(chunk, next, state);
    case 7:
      return Attend<T, 7>(chunk, next, state);
    default:
      return Attend<T, 8>(chunk, next, state);
  }
}

void AttendF32(const AttentionChunk& chunk, const AttentionChunk& next, AttentionState& state) {
  AttendGroup<float>(chunk, next, state);
}

void AttendBf16(const AttentionChunk& chunk, const AttentionChunk& next, AttentionState& state) {
  AttendGroup<Bf16>(chunk, next, state);
}

void AttendF16(const AttentionChunk& chunk, const AttentionChunk& next, AttentionState& state) {
  AttendGroup<hwy::float16_t>(chunk, next, state);
}

void AttendEightBit(const AttentionChunk& chunk, const AttentionChunk& next,
                    AttentionState& state) {
  AttendGroup<EightBit>(chunk, next, state);
}

// Between the natural order of a row and LoadPair's: of each 2 * Lanes elements of bf16, first the
// even ones, then the odd ones.
void PairRow(DType dtype, const float* in, float factor, uint32_t size, float* out) {
  if (dtype != DType::kBf16) {
    for (uint32_t i = 0; i < size; ++i) out[i] = in[i] * factor;
    return;
  }
  const auto lanes = static_cast<uint32_t>(hn::Lanes(FloatTag()));
  for (uint32_t base = 0; base < size; base += 2 * lanes) {
    for (uint32_t i = 0; i < lanes; ++i) {
      out[base + i] = in[base + 2 * i] * factor;
      out[base + lanes + i] = in[base + 2 * i + 1] * factor;
    }
  }
}

void UnpairRow(DType dtype, const float* in, uint32_t size, float* out) {
  if (dtype != DType::kBf16) {
    for (uint32_t i = 0; i < size; ++i) out[i] = in[i];
    return;
  }
  const auto lanes = static_cast<uint32_t>(hn::Lanes(FloatTag()));
  for (uint32_t base = 0; base < size; base += 2 * lanes) {
    for (uint32_t i = 0; i < lanes; ++i) {
      out[base + 2 * i] = in[base + i];
      out[base + 2 * i + 1] = in[base + lanes + i];
    }
  }
}

}  // namespace
}  // namespace retroinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace retroinfer::cpu {

HWY_EXPORT(AttendF32);
HWY_EXPORT(AttendBf16);
HWY_EXPORT(AttendF16);
HWY_EXPORT(AttendEightBit);
HWY_EXPORT(PairRow);
HWY_EXPORT(UnpairRow);

void BeginAttention(DType dtype, uint32_t head_dim, int32_t group, const float* queries,
                    float scale, AttentionState& state) {
  state.dtype = dtype;
  state.head_dim = head_dim;
  state.group = group;
  state.max.fill(-std::numeric_limits<float>::infinity());
  state.sum.fill(0);
  std::fill_n(state.acc.data(), static_cast<size_t>(group) * head_dim, 0.0f);
  for (uint32_t g = 0; g < static_cast<uint32_t>(group); ++g) {
    HWY_DYNAMIC_DISPATCH(PairRow)
    (dtype, queries + g * head_dim, scale, head_dim, state.queries.data() + g * head_dim);
  }
}

void AttendChunk(const AttentionChunk& chunk, const AttentionChunk& next, AttentionState& state) {
  if (chunk.num_tokens == 0) return;
  switch (state.dtype) {
    case DType::kF32:
      return HWY_DYNAMIC_DISPATCH(AttendF32)(chunk, next, state);
    case DType::kBf16:
      return HWY_DYNAMIC_DISPATCH(AttendBf16)(chunk, next, state);
    case DType::kF16:
      return HWY_DYNAMIC_DISPATCH(AttendF16)(chunk, next, state);
    case DType::kInt8:
      return HWY_DYNAMIC_DISPATCH(AttendEightBit)(chunk, next, state);
  }
}

void ReadAccumulator(const AttentionState& state, int32_t g, float* out) {
  HWY_DYNAMIC_DISPATCH(UnpairRow)
  (state.dtype, state.acc.data() + static_cast<uint32_t>(g) * state.head_dim, state.head_dim, out);
}

}  // namespace retroinfer::cpu
#endif  // HWY_ONCE
