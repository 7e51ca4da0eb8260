// Causal attention of a chunk of a prompt (FlashAttention, Dao 2023: online softmax by tiles),
// exact unless `choice` says otherwise. Bound by arithmetic: 4 * d * query_heads flops for every
// (query, key) pair that is seen; blocks of keys that no query of a tile sees are not read.
#pragma once

#include <cstdint>

#include "gpu_worker/device/device_span.h"
#include "gpu_worker/ops/attention/attention_window.h"
#include "gpu_worker/ops/attention/block_choice.h"
#include "gpu_worker/ops/attention/layer_kv.h"
#include "gpu_worker/ops/matrix.h"

namespace retroinfer {

struct PrefillAttentionArgs {
  MatrixView queries;       // [n, query_heads * head_dim], activation dtype, after RoPE
  LayerKv kv;               // holds tokens [0, first_token + n)
  int64_t first_token = 0;  // row of queries row 0; row i sees tokens up to first_token + i
  float scale = 0;          // of scores
  AttentionWindow window;   // which of these tokens
  BlockChoice choice;       // which blocks of them; only where the window sees all
  // A logit of each query head that takes part in the softmax and has no value: [query_heads].
  // Empty: there is none.
  DeviceSpan<const float> sinks = {};
  MatrixView out;  // [n, query_heads * head_dim], activation dtype
  // Where blocks are chosen: PrefillAttentionScratchBytes(...) of the backend for these rows and
  // the tokens up to them; less, but no less than for one unit, makes it slower. Overwritten.
  DeviceSpan<std::byte> scratch = {};

  // The same of the rows of tokens [begin, end) alone.
  PrefillAttentionArgs OfTokens(int64_t begin, int64_t end) const {
    PrefillAttentionArgs part = *this;
    part.queries = queries.Rows(begin - first_token, end - begin);
    part.out = out.Rows(begin - first_token, end - begin);
    part.first_token = begin;
    return part;
  }
};

}  // namespace retroinfer
