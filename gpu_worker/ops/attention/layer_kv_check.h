// Checks of the arguments of the copies between a layer's KV and the dense pool, shared by the
// backends.
#pragma once

#include <string_view>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/attention/layer_kv.h"

namespace retroinfer {

inline absl::Status CheckDensePool(std::string_view op, const DensePoolView& pool, uint32_t layer) {
  RETURN_IF_ERROR(pool.geometry.Validate());
  return CheckArg(layer < pool.geometry.num_layers, op, "layer is outside of the pool's geometry");
}

inline absl::Status CheckLayerKvFits(std::string_view op, const LayerKv& kv,
                                     const DensePoolView& pool, int64_t first_token,
                                     int64_t num_tokens, size_t num_blocks) {
  RETURN_IF_ERROR(CheckArg(kv.num_kv_heads == pool.geometry.num_kv_heads &&
                               kv.head_dim == pool.geometry.head_dim &&
                               kv.dtype == pool.geometry.format.prompt,
                           op, "the layer's KV and the pool differ in heads, head_dim or dtype"));
  RETURN_IF_ERROR(
      CheckArg(first_token >= 0 && num_tokens >= 0 && first_token + num_tokens <= kv.capacity, op,
               "tokens [", first_token, ", ", first_token + num_tokens, ") of ", kv.capacity));
  return CheckArg(num_tokens <= static_cast<int64_t>(num_blocks) * kDenseBlockTokens, op,
                  num_tokens, " tokens do not fit into ", num_blocks, " blocks");
}

inline absl::Status CheckStoreLayerKv(const StoreLayerKvArgs& args, DType activations) {
  const int64_t rows = args.keys.rows;
  const int64_t cols = int64_t{args.out.num_kv_heads} * args.out.head_dim;
  RETURN_IF_ERROR(CheckShape("store_layer_kv", "keys", args.keys, rows, cols));
  RETURN_IF_ERROR(CheckShape("store_layer_kv", "values", args.values, rows, cols));
  RETURN_IF_ERROR(CheckDType("store_layer_kv", "keys", args.keys, activations));
  RETURN_IF_ERROR(CheckDType("store_layer_kv", "values", args.values, activations));
  RETURN_IF_ERROR(CheckArg(!args.out.rounds_to_eight_bits || args.out.dtype == DType::kBf16,
                           "store_layer_kv", "what is rounded to eight bits must be kept in bf16"));
  return CheckArg(args.first_token >= 0 && args.first_token + rows <= args.out.capacity,
                  "store_layer_kv", "tokens [", args.first_token, ", ", args.first_token + rows,
                  ") of ", args.out.capacity);
}

inline absl::Status CheckFillDense(const FillDenseArgs& args) {
  RETURN_IF_ERROR(CheckDensePool("fill_dense", args.pool, args.layer));
  return CheckLayerKvFits("fill_dense", args.in, args.pool, args.first_token, args.num_tokens,
                          args.block_ids.size());
}

inline absl::Status CheckReadDense(const ReadDenseArgs& args) {
  RETURN_IF_ERROR(CheckDensePool("read_dense", args.pool, args.layer));
  return CheckLayerKvFits("read_dense", args.out, args.pool, args.first_token, args.num_tokens,
                          args.block_ids.size());
}

inline absl::Status CheckAppendDense(const AppendDenseArgs& args, DType activations) {
  const KvGeometry& geometry = args.pool.geometry;
  const int64_t batch = args.keys.rows;
  const int64_t cols = int64_t{geometry.num_kv_heads} * geometry.head_dim;
  RETURN_IF_ERROR(CheckDensePool("append_dense", args.pool, args.layer));
  RETURN_IF_ERROR(CheckShape("append_dense", "keys", args.keys, batch, cols));
  RETURN_IF_ERROR(CheckShape("append_dense", "values", args.values, batch, cols));
  RETURN_IF_ERROR(CheckDType("append_dense", "keys", args.keys, activations));
  RETURN_IF_ERROR(CheckDType("append_dense", "values", args.values, activations));
  RETURN_IF_ERROR(CheckSize("append_dense", "block_ids", args.block_ids, batch));
  return CheckSize("append_dense", "place_in_block", args.place_in_block, batch);
}

}  // namespace retroinfer
