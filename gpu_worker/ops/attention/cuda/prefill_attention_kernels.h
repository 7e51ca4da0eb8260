// The kernels behind the CUDA backend's prefill attention. All cut the keys into blocks at fixed
// rows, pass them in order, and give keys that a query does not see weight 0 exactly: a query's
// result depends neither on its chunk nor on its place in a tile.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gpu_worker/ops/attention/attention_window.h"
#include "gpu_worker/ops/attention/cuda/chosen_blocks.h"

namespace retroinfer::cuda {

// An AttentionWindow in 32 bits.
struct PrefillWindow {
  bool exists = false;
  int32_t step = 1;
  int32_t before = 0;  // tokens that are seen before a row's group
  int32_t always_seen = 0;
};

struct PrefillLaunch {
  const std::byte* queries = nullptr;  // device, [num_queries, query_stride] bf16
  int64_t query_stride = 0;            // elements
  std::byte* out = nullptr;            // device, [num_queries, out_stride] bf16
  int64_t out_stride = 0;
  const std::byte* keys = nullptr;    // device, [num_kv_heads][capacity][head_dim]
  const std::byte* values = nullptr;  // the same
  int64_t capacity = 0;
  int32_t num_kv_heads = 0;
  int32_t group = 0;  // query heads of a KV head
  int32_t head_dim = 0;
  int32_t num_queries = 0;
  int32_t first_token = 0;
  float scale_log2 = 0;  // scores times this are exponents of 2
  PrefillWindow window;
  const float* sinks = nullptr;  // device, [query heads], or null
  // Where blocks are chosen: all queries are of whole units, and pass the blocks of their unit and
  // head alone, in order.
  ChosenBlocks chosen = {};
  // Then: tile * query_heads + query head of each tile of two units of a head, as they are to be
  // begun. Only for LaunchHopperChosenPrefill.
  const int32_t* order = nullptr;  // device

  bool chooses() const { return chosen.words != nullptr; }
};

// Any head_dim up to 128 and any alignment; bf16 or f32 keys and values. Slow.
cudaError_t LaunchPlainPrefill(const PrefillLaunch& launch, bool f32_kv, cudaStream_t stream);

// bf16 on the tensor cores of any device: head_dim 64 or 128, all rows at multiples of 16 bytes.
cudaError_t LaunchWarpPrefill(const PrefillLaunch& launch, cudaStream_t stream);

// The same on Hopper, whose products of four warps and copies of whole tiles the other lacks.
struct HopperPrefillMaps {
  CUtensorMap queries;  // boxes of [128 rows, 64 columns], swizzled by 128 bytes
  CUtensorMap keys;     // the same of each head; zero from the end of the sequence on
  CUtensorMap values;   // the same
};
// Whether this build has it.
bool HasHopperPrefill();
cudaError_t LaunchHopperPrefill(const PrefillLaunch& launch, const HopperPrefillMaps& maps,
                                cudaStream_t stream);
// Where blocks are chosen.
cudaError_t LaunchHopperChosenPrefill(const PrefillLaunch& launch, const HopperPrefillMaps& maps,
                                      cudaStream_t stream);

}  // namespace retroinfer::cuda
