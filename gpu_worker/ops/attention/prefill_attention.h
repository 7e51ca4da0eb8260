// Exact causal attention of a chunk of a prompt (FlashAttention, Dao 2023: online softmax by
// tiles). Bound by arithmetic: 4 * d * query_heads flops for every (query, key) pair.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "gpu_worker/ops/attention/layer_kv.h"
#include "gpu_worker/ops/matrix.h"

namespace retroinfer {

struct PrefillAttentionArgs {
  MatrixView queries;       // [n, query_heads * head_dim], activation dtype, after RoPE
  LayerKv kv;               // holds tokens [0, first_token + n)
  int64_t first_token = 0;  // position of queries row 0; row i sees tokens [0, first_token + i]
  float scale = 0;          // 1 / sqrt(head_dim)
  MatrixView out;           // [n, query_heads * head_dim], activation dtype
};

// Takes the place of that operation where a prompt attends otherwise: `kv` holds what the rows may
// attend to, in an order that only the giver knows. Empty: exact attention.
using PromptAttention = std::function<absl::Status(const PrefillAttentionArgs&)>;

}  // namespace retroinfer
