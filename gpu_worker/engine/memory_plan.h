// Splits the memory of a worker before anything is allocated: pure arithmetic, printed at start and
// by `retroinfer check`, which asks with the same input. What each component takes for its limits
// is said where it is allocated (MemoryOf() of the component); the plan adds up.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv/kv_geometry.h"
#include "common/kv/kv_head_range.h"
#include "gpu_worker/device/memory_need.h"
#include "gpu_worker/executor/draft_model.h"
#include "gpu_worker/kv/attention_settings.h"
#include "gpu_worker/model/model_config.h"
#include "gpu_worker/ops/backend/backend_needs.h"
#include "gpu_worker/wave_index/wave_index_settings.h"

namespace retroinfer {

// Rows of the largest pass. Twice as many as fill an H100's multiprocessors with blocks of
// attention: a sparse prompt's heads keep lists of very different lengths, and the longest one
// bounds a pass (5.12 s with 1,024 rows, 4.86 with 2,048 for 117,760 tokens of an 8B; exact prompts
// gain 1 %).
inline constexpr int64_t kMaxPrefillRows = 2048;

// The same where `num_ranks` ranks share a model: each has as many times fewer heads. A block of
// prefill attention has 128 queries of one head: of the 8 heads that four ranks leave to each,
// 1,024 rows are 64 blocks, half of an H100.
inline constexpr int64_t PrefillRows(int num_ranks) {
  return std::max<int64_t>(kMaxPrefillRows, int64_t{1024} * num_ranks);
}

struct MemoryPlanInput {
  ModelConfig model;
  KvFormat kv_format;
  BackendNeeds backend{};
  WaveIndexSettings index;
  // Of the device, as the weights take it; where they are not loaded, the size of their files.
  size_t weight_bytes = 0;
  int64_t max_model_len = 0;  // tokens, prompt + generated + synthetic
  // Longest prompt that is read as one; 0: max_model_len. Policies that read in parts take longer.
  int64_t max_whole_prompt = 0;
  // Of those, tokens that no lane computes (gpu_worker/measuring/synthetic), and what making them
  // takes.
  int64_t synthetic_tokens = 0;
  size_t synthetic_bytes = 0;
  int32_t max_batch = 0;                   // requests that decode together
  int32_t tail_run = 1;                    // AttentionSettings::tail_run; 0: chosen
  int64_t prefill_rows = kMaxPrefillRows;  // of a pass, at most
  uint32_t arena_pages = 0;
  size_t available_bytes = 0;  // device memory for everything below, weights included
  // Nobody else has a use for what is left of that; else it is left to the page cache and the rest
  // of the machine.
  bool owns_memory = false;
  size_t dense_kv_bytes = 0;      // of dense blocks; 0: chosen
  size_t block_cache_bytes = 0;   // of slots; 0: chosen
  bool preemption = false;        // requests may be suspended for others
  size_t suspended_kv_bytes = 0;  // host memory for the KV of suspended requests; 0: chosen

  KvHeadRange heads;  // of the arena's KV heads, that `model` has

  // A small model that drafts (executor/draft_model.h), beside it in the same memory.
  struct Draft {
    ModelConfig model;
    size_t weight_bytes = 0;  // as the other model's
  };
  std::optional<Draft> draft;

  KvGeometry geometry() const { return model.geometry(kv_format); }
};

// What a part of the worker allocates.
struct ComponentMemory {
  std::string_view name;
  MemoryNeed need;
};

// How much of everything there is. Components are created with these numbers.
struct MemoryPlan {
  KvGeometry geometry;
  KvHeadRange heads;  // of the arena's KV heads, that `geometry` has
  size_t weight_bytes = 0;
  int32_t dense_blocks = 0;
  int32_t meta_blocks = 0;
  uint32_t num_slots = 0;
  uint32_t num_transient_slots = 0;
  uint32_t arena_pages = 0;
  int64_t max_model_len = 0;
  int64_t synthetic_tokens = 0;
  int64_t long_lane_tokens = 0;             // of the first prefill lane
  int64_t short_lane_tokens = 0;            // of the second one
  int64_t prefill_rows = 0;                 // of a pass, at most
  int32_t max_batch = 0;                    // requests that decode together
  int32_t tail_run = 1;                     // AttentionSettings::tail_run
  int32_t max_step_rows = 0;                // of a decode step: of all requests, and a run
  int32_t max_sequences = 0;                // that hold memory at a time
  int32_t max_open_segments = 0;            // under construction at a time
  std::optional<DraftModel::Sizes> draft;   // none: there is no draft model
  PolicyCapacities capacity_tokens;         // largest context of each policy
  std::vector<ComponentMemory> components;  // all but the weights
  MemoryNeed need;                          // the sum of these, and the weights
  size_t unused_bytes = 0;                  // of what was available
  // Host blocks for the KV of suspended requests. With owns_memory (a GPU) they take no device
  // memory; on a CPU they take what all else leaves.
  int32_t suspended_blocks = 0;

  // What a context of `tokens` leaves for a request's prompt and output: all but what is synthetic.
  int64_t OfRequests(int64_t tokens) const {
    return std::max<int64_t>(0, tokens - synthetic_tokens);
  }
  size_t total_bytes() const { return need.total(); }
  size_t suspended_bytes() const;  // of the host
  // One line for each purpose and "KV capacity: N tokens".
  std::string ToString() const;
};

// Of the bytes of a GPU that a worker may take, those to plan with: workspaces of libraries,
// graphs, and what the driver adds to allocations are in no plan.
size_t PlannableGpuBytes(size_t bytes);

// Tokens of context whose segments fit into `arena_pages`, whatever their clusters look like.
// `geometry` is the arena's.
int64_t ArenaCapacityTokens(const KvGeometry& geometry, uint32_t arena_pages);

// Weights, activations and the index of the whole arena come first; then dense KV for one context
// of max_model_len with policy `full` and max_batch windows. But slots get at least half (without
// owns_memory: a sixteenth) of what the weights leave, where they can use that. With owns_memory,
// slots also get all the rest, up to one for each page of the arena, and dense KV what is left
// then, up to max_batch contexts of max_model_len. What dense_kv_bytes or block_cache_bytes says
// holds. With preemption, the host keeps room for the windows of a batch, up to 2 GiB, or for one
// context of dense_below where that is more; without owns_memory only as far as bytes are not used.
//
// Returns RESOURCE_EXHAUSTED, with what is needed, what there is and what to change, if the weights
// and one sequence do not fit; as DraftModel::SizesFor.
absl::StatusOr<MemoryPlan> PlanMemory(const MemoryPlanInput& input);

}  // namespace retroinfer
