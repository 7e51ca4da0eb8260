// Splits the memory of a worker before anything is allocated: pure arithmetic, printed at start and
// by `retroinfer check`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/kv/kv_geometry.h"

namespace retroinfer {

struct MemoryPlanInput {
  KvGeometry geometry;
  int64_t hidden_size = 0;
  int64_t vocab_size = 0;
  size_t activation_bytes_per_element = 4;
  size_t weight_bytes = 0;
  int64_t max_model_len = 0;  // tokens, prompt + generated + synthetic
  // Of those, tokens that no lane computes (gpu_worker/synthetic), and what making them takes.
  int64_t synthetic_tokens = 0;
  size_t synthetic_bytes = 0;
  int32_t max_batch = 0;    // decode rows
  int64_t dense_below = 0;  // tokens; shorter contexts stay dense
  uint32_t arena_pages = 0;
  size_t available_bytes = 0;    // device memory for everything below, weights included
  size_t dense_kv_bytes = 0;     // 0: chosen
  size_t block_cache_bytes = 0;  // see DefaultBlockCacheBytes
};

struct MemoryPlan {
  KvGeometry geometry;
  size_t weight_bytes = 0;
  size_t activation_bytes = 0;  // prefill lanes, decode rows, logits, synthetic contexts
  int32_t dense_blocks = 0;
  int32_t meta_blocks = 0;
  uint32_t num_slots = 0;
  uint32_t num_transient_slots = 0;
  uint32_t arena_pages = 0;
  int64_t max_model_len = 0;
  int64_t synthetic_tokens = 0;
  int64_t short_lane_tokens = 0;  // of the second prefill lane
  int32_t max_batch = 0;
  int64_t full_capacity_tokens = 0;  // largest context of policy `full`
  int64_t wave_capacity_tokens = 0;  // largest context of policy `wave`

  // What a context of `tokens` leaves for a request's prompt and output: all but what is synthetic.
  int64_t OfRequests(int64_t tokens) const {
    return std::max<int64_t>(0, tokens - synthetic_tokens);
  }
  size_t dense_bytes() const;
  size_t meta_bytes() const;
  size_t block_cache_bytes() const;  // slots, transient slots, page table and stamps
  size_t total_bytes() const;
  // One line for each purpose and "KV capacity: N tokens".
  std::string ToString() const;
};

// Bytes for slots where nobody says how many: whole pages of `bytes`, some at least. The store must
// know the number of slots before the worker knows the arena, so it does not depend on the latter.
size_t DefaultBlockCacheBytes(size_t bytes);

// Tokens of context whose segments fit into `arena_pages`, whatever their clusters look like.
int64_t ArenaCapacityTokens(const KvGeometry& geometry, uint32_t arena_pages);

// Returns RESOURCE_EXHAUSTED, with what is needed, what there is and what to change, if the weights
// and one sequence do not fit.
absl::StatusOr<MemoryPlan> PlanMemory(const MemoryPlanInput& input);

}  // namespace retroinfer
