// Splits the memory of a worker before anything is allocated: pure arithmetic, printed at start and
// by `retroinfer check`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/kv/kv_geometry.h"
#include "gpu_worker/attention/attention_settings.h"

namespace retroinfer {

struct MemoryPlanInput {
  KvGeometry geometry;
  int64_t hidden_size = 0;
  int64_t num_query_heads = 0;
  int64_t vocab_size = 0;
  size_t activation_bytes_per_element = 4;
  size_t weight_bytes = 0;
  int64_t max_model_len = 0;  // tokens, prompt + generated + synthetic
  // Longest prompt that is read as one; 0: max_model_len. Policies that read in parts take longer.
  int64_t max_whole_prompt = 0;
  // Of those, tokens that no lane computes (gpu_worker/synthetic), and what making them takes.
  int64_t synthetic_tokens = 0;
  size_t synthetic_bytes = 0;
  int32_t max_batch = 0;    // decode rows
  int64_t dense_below = 0;  // tokens; shorter contexts stay dense
  uint32_t arena_pages = 0;
  bool uses_transient_slots = true;  // Ops::uses_transient_slots()
  size_t available_bytes = 0;        // device memory for everything below, weights included
  // Nobody else has a use for what is left of that; else it is left to the page cache and the rest
  // of the machine.
  bool owns_memory = false;
  size_t dense_kv_bytes = 0;      // 0: chosen
  size_t block_cache_bytes = 0;   // of slots; 0: chosen
  bool preemption = false;        // requests may step aside for others
  size_t suspended_kv_bytes = 0;  // of the host's memory, for their KV; 0: chosen
};

struct MemoryPlan {
  KvGeometry geometry;
  size_t weight_bytes = 0;
  size_t activation_bytes = 0;  // prefill lanes, selection, logits, synthetic contexts
  int32_t dense_blocks = 0;
  int32_t meta_blocks = 0;
  uint32_t num_slots = 0;
  uint32_t num_transient_slots = 0;
  uint32_t arena_pages = 0;
  int64_t max_model_len = 0;
  int64_t synthetic_tokens = 0;
  int64_t long_lane_tokens = 0;   // of the first prefill lane
  int64_t short_lane_tokens = 0;  // of the second one
  int32_t max_batch = 0;
  PolicyCapacities capacity_tokens;  // largest context of each policy
  size_t unused_bytes = 0;           // of what was available
  // Of the host, which is beside all that where owns_memory: as many dense blocks of requests that
  // step aside.
  int32_t suspended_blocks = 0;

  // What a context of `tokens` leaves for a request's prompt and output: all but what is synthetic.
  int64_t OfRequests(int64_t tokens) const {
    return std::max<int64_t>(0, tokens - synthetic_tokens);
  }
  size_t dense_bytes() const;
  size_t meta_bytes() const;
  size_t block_cache_bytes() const;  // slots, transient slots, page table and stamps
  size_t total_bytes() const;
  size_t suspended_bytes() const;  // of the host
  // One line for each purpose and "KV capacity: N tokens".
  std::string ToString() const;
};

// Of the bytes of a GPU that a worker may take, those to plan with: workspaces of libraries,
// activations of a step and graphs are in no plan.
size_t PlannableGpuBytes(size_t bytes);

// Tokens of context whose segments fit into `arena_pages`, whatever their clusters look like.
int64_t ArenaCapacityTokens(const KvGeometry& geometry, uint32_t arena_pages);

// Weights, activations and the index of the whole arena come first; then dense KV for one context
// of max_model_len with policy `full` and max_batch windows. But slots get at least half (without
// owns_memory: a sixteenth) of what the weights leave, where they can use that. With owns_memory,
// slots also get all the rest, up to one for each page of the arena, and dense KV what is left
// then, up to max_batch contexts of max_model_len. What dense_kv_bytes or block_cache_bytes says
// holds. With preemption, the host keeps room for the windows of a batch, or for one context of
// dense_below where that is more; without owns_memory only as far as bytes are not used.
//
// Returns RESOURCE_EXHAUSTED, with what is needed, what there is and what to change, if the weights
// and one sequence do not fit.
absl::StatusOr<MemoryPlan> PlanMemory(const MemoryPlanInput& input);

}  // namespace retroinfer
