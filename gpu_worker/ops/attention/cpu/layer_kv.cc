// A dense block is a run of pages for each (layer, head); see dense_pool.h. Token `place` of a
// block is place % tokens_per_page of page place / tokens_per_page.
#include "gpu_worker/ops/attention/cpu/layer_kv.h"

#include <algorithm>
#include <array>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/attention/layer_kv_check.h"
#include "gpu_worker/ops/cpu/convert.h"
#include "gpu_worker/ops/cpu/cpu_kv_format.h"
#include "gpu_worker/ops/cpu/parallel_rows.h"
#include "gpu_worker/ops/cpu/token_vectors.h"

namespace retroinfer::cpu {
namespace {

struct KvPlace {
  std::byte* key;
  std::byte* value;
};

// Of token `place` of a block; `run`: the block's pages of one (layer, head).
KvPlace PlaceInRun(const PageLayout& page, std::byte* run, int64_t place) {
  const auto at = static_cast<size_t>(place);
  std::byte* key = run + at / page.tokens * page.bytes + at % page.tokens * page.vector_bytes;
  return {key, key + page.values_offset};
}

std::byte* RunOf(const DensePoolView& pool, DenseBlockId block, uint32_t layer, uint32_t head) {
  RI_DCHECK(pool.Has(block));
  return pool.Run(block, layer, head);
}

// Calls copy(place in block, token, head) for `num_tokens` tokens of every head.
template <typename Copy>
void ForEachToken(ThreadPool& pool, const DensePoolView& dense, uint32_t layer,
                  const DenseBlockId* block_ids, int64_t num_tokens, const Copy& copy) {
  const int64_t num_blocks = (num_tokens + kDenseBlockTokens - 1) / kDenseBlockTokens;
  const int64_t heads = dense.geometry.num_kv_heads;
  const PageLayout page = dense.geometry.page();
  pool.ParallelFor(num_blocks * heads, [&](int64_t i) {
    const auto head = static_cast<uint32_t>(i % heads);
    const int64_t begin = i / heads * kDenseBlockTokens;
    const int64_t end = std::min(num_tokens, begin + kDenseBlockTokens);
    std::byte* const run = RunOf(dense, block_ids[i / heads], layer, head);
    for (int64_t token = begin; token < end; ++token) {
      copy(PlaceInRun(page, run, token - begin), token, head);
    }
  });
}

// Writes `numbers` as row `to` of a layer's KV.
void StoreRow(const LayerKv& kv, const float* numbers, std::byte* to) {
  if (!kv.rounds_to_eight_bits) return ConvertFromF32(numbers, kv.dtype, to, kv.head_dim);
  std::array<std::byte, kMaxHeadDim> stored;
  StoreToken(numbers, kEightBitTokens, kv.head_dim, stored.data());
  UnpackToken(stored.data(), kEightBitTokens, kv.head_dim, to);
}

}  // namespace

absl::Status StoreLayerKv(CpuStream& stream, const StoreLayerKvArgs& args) {
  RETURN_IF_ERROR(CheckStoreLayerKv(args, DType::kF32));
  RETURN_IF_ERROR(CheckPromptType(kKvElementTypes, "store_layer_kv", args.out.dtype));
  const int64_t rows = args.keys.rows;
  const int64_t cols = args.keys.cols;
  return stream.Launch([args, rows, cols](ThreadPool& pool) {
    ParallelRows(pool, rows, 2 * cols, [&args](int64_t first, int64_t last) {
      const LayerKv& out = args.out;
      for (int64_t row = first; row < last; ++row) {
        const auto* keys = reinterpret_cast<const float*>(args.keys.Rows(row, 1).data);
        const auto* values = reinterpret_cast<const float*>(args.values.Rows(row, 1).data);
        for (uint32_t head = 0; head < out.num_kv_heads; ++head) {
          const int64_t token = args.first_token + row;
          StoreRow(out, keys + head * out.head_dim, out.Key(head, token));
          StoreRow(out, values + head * out.head_dim, out.Value(head, token));
        }
      }
    });
  });
}

absl::Status FillDense(CpuStream& stream, const FillDenseArgs& args) {
  RETURN_IF_ERROR(CheckFillDense(args));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.pool.geometry.format));
  return stream.Launch([args](ThreadPool& pool) {
    const VectorFormat& format = args.pool.geometry.format.token;
    const LayerKv& in = args.in;
    ForEachToken(pool, args.pool, args.layer, args.block_ids.device_data(), args.num_tokens,
                 [&](const KvPlace& place, int64_t i, uint32_t head) {
                   const int64_t token = args.first_token + i;
                   PackToken(in.Key(head, token), format, in.head_dim, place.key);
                   PackToken(in.Value(head, token), format, in.head_dim, place.value);
                 });
  });
}

absl::Status ReadDense(CpuStream& stream, const ReadDenseArgs& args) {
  RETURN_IF_ERROR(CheckReadDense(args));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.pool.geometry.format));
  return stream.Launch([args](ThreadPool& pool) {
    const VectorFormat& format = args.pool.geometry.format.token;
    const LayerKv& out = args.out;
    ForEachToken(pool, args.pool, args.layer, args.block_ids.device_data(), args.num_tokens,
                 [&](const KvPlace& place, int64_t i, uint32_t head) {
                   const int64_t token = args.first_token + i;
                   UnpackToken(place.key, format, out.head_dim, out.Key(head, token));
                   UnpackToken(place.value, format, out.head_dim, out.Value(head, token));
                 });
  });
}

absl::Status AppendDense(CpuStream& stream, const AppendDenseArgs& args) {
  RETURN_IF_ERROR(CheckAppendDense(args, DType::kF32));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.pool.geometry.format));
  return stream.Launch([args](ThreadPool&) {
    const KvGeometry& geometry = args.pool.geometry;
    const PageLayout page = geometry.page();
    const VectorFormat& format = geometry.format.token;
    const uint32_t dim = geometry.head_dim;
    for (int64_t i = 0; i < args.keys.rows; ++i) {
      const auto* key = reinterpret_cast<const float*>(args.keys.Rows(i, 1).data);
      const auto* value = reinterpret_cast<const float*>(args.values.Rows(i, 1).data);
      for (uint32_t head = 0; head < geometry.num_kv_heads; ++head) {
        std::byte* const run = RunOf(args.pool, args.block_ids.device_data()[i], args.layer, head);
        const KvPlace place = PlaceInRun(page, run, args.place_in_block.device_data()[i]);
        StoreToken(key + head * dim, format, dim, place.key);
        StoreToken(value + head * dim, format, dim, place.value);
      }
    }
  });
}

}  // namespace retroinfer::cpu
