// The KV of one layer of a sequence that is being prefilled, head-major and contiguous, and the
// copies between it and the dense pool.
#pragma once

#include <cstdint>

#include "gpu_worker/ops/dense_pool.h"
#include "gpu_worker/ops/matrix.h"

namespace retroinfer {

// keys and values: [num_kv_heads][capacity][head_dim], as plain numbers of the type that the
// KvFormat gives to prompts; token t of the sequence at row t.
struct LayerKv {
  std::byte* keys = nullptr;    // device
  std::byte* values = nullptr;  // device
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;
  int64_t capacity = 0;  // tokens
  DType dtype = DType::kBf16;
  // StoreLayerKv rounds to what kEightBitTokens can hold, which is exact in bf16.
  bool rounds_to_eight_bits = false;

  std::byte* Key(uint32_t head, int64_t token) const {
    return keys + (head * capacity + token) * head_dim * static_cast<int64_t>(DTypeBytes(dtype));
  }
  std::byte* Value(uint32_t head, int64_t token) const {
    return values + (head * capacity + token) * head_dim * static_cast<int64_t>(DTypeBytes(dtype));
  }
};

// Converts and writes the keys and values of a chunk of tokens into the layer's KV.
struct StoreLayerKvArgs {
  MatrixView keys;    // [n, num_kv_heads * head_dim], activation dtype, after RoPE
  MatrixView values;  // [n, num_kv_heads * head_dim], activation dtype
  int64_t first_token = 0;
  LayerKv out;
};

// Copies tokens [first_token, first_token + num_tokens) of the layer's KV into consecutive places
// of a sequence's dense blocks.
struct FillDenseArgs {
  LayerKv in;
  int64_t first_token = 0;
  int64_t num_tokens = 0;
  DensePoolView pool;
  uint32_t layer = 0;
  DeviceSpan<const DenseBlockId> block_ids;  // blocks to fill, from place 0 of block_ids[0] on
};

// The reverse: gathers `num_tokens` tokens from place 0 of block_ids[0] on into `out`, from row
// `first_token` on. Only reads the pool, which may be the arena's pages (DensePoolView::OfPages).
struct ReadDenseArgs {
  DensePoolView pool;
  uint32_t layer = 0;
  DeviceSpan<const DenseBlockId> block_ids;
  int64_t num_tokens = 0;
  LayerKv out;
  int64_t first_token = 0;
};

// Appends one token of every sequence of a decode batch to its dense zone.
struct AppendDenseArgs {
  MatrixView keys;    // [batch, num_kv_heads * head_dim], activation dtype, after RoPE
  MatrixView values;  // the same shape
  DensePoolView pool;
  uint32_t layer = 0;
  DeviceSpan<const DenseBlockId> block_ids;  // [batch], the block that takes the token
  DeviceSpan<const int32_t> place_in_block;  // [batch], 0 to 63
};

}  // namespace retroinfer
