// A dense block is a run of pages for each (layer, head); see dense_pool.h. Token `place` of a
// block is place % tokens_per_page of page place / tokens_per_page.
#include "gpu_worker/ops/attention/cpu/layer_kv.h"

#include <algorithm>
#include <cstring>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/attention/layer_kv_check.h"
#include "gpu_worker/ops/cpu/convert.h"
#include "gpu_worker/ops/cpu/cpu_kv_format.h"
#include "gpu_worker/ops/cpu/parallel_rows.h"

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
  RI_DCHECK(block >= 0 && static_cast<uint32_t>(block) < pool.num_blocks());
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
          ConvertFromF32(keys + head * out.head_dim, out.dtype, out.Key(head, token), out.head_dim);
          ConvertFromF32(values + head * out.head_dim, out.dtype, out.Value(head, token),
                         out.head_dim);
        }
      }
    });
  });
}

absl::Status FillDense(CpuStream& stream, const FillDenseArgs& args) {
  RETURN_IF_ERROR(CheckFillDense(args));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.pool.geometry.format));
  return stream.Launch([args](ThreadPool& pool) {
    const size_t bytes = args.pool.geometry.page().vector_bytes;
    ForEachToken(pool, args.pool, args.layer, args.block_ids.device_data(), args.num_tokens,
                 [&args, bytes](const KvPlace& place, int64_t token, uint32_t head) {
                   std::memcpy(place.key, args.in.Key(head, args.first_token + token), bytes);
                   std::memcpy(place.value, args.in.Value(head, args.first_token + token), bytes);
                 });
  });
}

absl::Status ReadDense(CpuStream& stream, const ReadDenseArgs& args) {
  RETURN_IF_ERROR(CheckReadDense(args));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.pool.geometry.format));
  return stream.Launch([args](ThreadPool& pool) {
    const size_t bytes = args.pool.geometry.page().vector_bytes;
    ForEachToken(pool, args.pool, args.layer, args.block_ids.device_data(), args.num_tokens,
                 [&args, bytes](const KvPlace& place, int64_t token, uint32_t head) {
                   std::memcpy(args.out.Key(head, token), place.key, bytes);
                   std::memcpy(args.out.Value(head, token), place.value, bytes);
                 });
  });
}

absl::Status AppendDense(CpuStream& stream, const AppendDenseArgs& args) {
  RETURN_IF_ERROR(CheckAppendDense(args, DType::kF32));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.pool.geometry.format));
  return stream.Launch([args](ThreadPool&) {
    const KvGeometry& geometry = args.pool.geometry;
    const PageLayout page = geometry.page();
    const DType element = geometry.format.token.element;
    for (int64_t i = 0; i < args.keys.rows; ++i) {
      const auto* key = reinterpret_cast<const float*>(args.keys.Rows(i, 1).data);
      const auto* value = reinterpret_cast<const float*>(args.values.Rows(i, 1).data);
      for (uint32_t head = 0; head < geometry.num_kv_heads; ++head) {
        std::byte* const run = RunOf(args.pool, args.block_ids.device_data()[i], args.layer, head);
        const KvPlace place = PlaceInRun(page, run, args.place_in_block.device_data()[i]);
        ConvertFromF32(key + head * geometry.head_dim, element, place.key, geometry.head_dim);
        ConvertFromF32(value + head * geometry.head_dim, element, place.value, geometry.head_dim);
      }
    }
  });
}

}  // namespace retroinfer::cpu
