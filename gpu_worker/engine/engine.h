// Runs generation requests: admission, prefill, decode steps, sampling, output.
//
// Threads: all methods may be called from any thread. The engine works on a thread of its own,
// which calls the sinks.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/engine/draft_source.h"
#include "gpu_worker/engine/generation.h"

namespace retroinfer {

struct EngineLimits {
  int64_t max_model_len = 0;            // prompt + generated tokens of one request
  PolicyCapacities kv_capacity_tokens;  // largest context that each policy can hold
  int32_t max_batch = 0;                // decode batch
  int64_t max_live_requests = 0;        // waiting and running
};

// A snapshot for metrics and `retroinfer ps`. Counters grow only; the rest is of now.
struct EngineStats {
  int64_t requests_running = 0;              // admitted
  int64_t requests_waiting = 0;              // not yet
  int64_t requests_waiting_for_prefill = 0;  // running requests whose prompt is not begun
  absl::Time oldest_waiting =
      absl::InfiniteFuture();  // when the oldest request without a first pass was submitted
  // When the engine had nothing to do, or last did something, by its latest report.
  absl::Time last_progress = absl::InfiniteFuture();
  int64_t requests_suspended = 0;  // running requests that are suspended
  int64_t suspended_kv_bytes = 0;  // host memory that holds their KV
  int64_t requests_stalled = 0;    // running requests that decode and lack device memory
  int64_t dense_blocks_used = 0, dense_blocks_total = 0;
  int64_t meta_blocks_used = 0, meta_blocks_total = 0;
  int64_t slots_used = 0, slots_total = 0;
  int64_t table_rows_used = 0;  // sequences that hold a row of the block tables
  // Allocated now on the device, by MemoryPurpose.
  std::array<int64_t, static_cast<size_t>(MemoryPurpose::kCount)> device_memory_bytes{};
  uint64_t prompt_tokens = 0, generation_tokens = 0;
  uint64_t scored_prompt_tokens = 0, scored_tokens = 0;  // measured: of prompts, continuations
  uint64_t prefix_cache_queries_tokens = 0;              // prompt tokens that were looked for
  uint64_t prefix_cache_hits_tokens = 0;                 // prompt tokens that were found cached
  // KV of cached tokens: read from the arena for prompts, and not read once more because prompts
  // that share it were read together. Rows of layers that were computed for several prompts at
  // once, counted for each but one.
  uint64_t prefix_bytes_read = 0, prefix_bytes_shared = 0, prefill_rows_shared = 0;
  uint64_t page_hits = 0, page_misses = 0, page_transients = 0, page_evictions = 0;
  uint64_t evictions_kept = 0;
  uint64_t page_fills = 0;       // admitted as they were written
  uint64_t arena_bytes_in = 0;   // read from the arena (over PCIe where there is one)
  uint64_t arena_bytes_out = 0;  // written to the arena
  uint64_t segments_built = 0;
  uint64_t segments_late = 0;  // segments that a request had to wait for before its next token
  uint64_t store_reconnects = 0;
  uint64_t allocation_failures = 0;
  uint64_t preemptions = 0, resumptions = 0;  // times that requests were suspended, and resumed
  uint64_t memory_stalls = 0;  // times that a request stalled for lack of device memory
  uint64_t decode_steps = 0;
  uint64_t drafts_accepted = 0, drafts_rejected = 0;  // drafted tokens that steps have tried
  // The same by DraftSource.
  std::array<uint64_t, kNumDraftSources> accepted_by_source{}, rejected_by_source{};
  uint64_t draft_model_steps = 0;
  // Busy time of the engine's thread: waiting for the device or for work is left out.
  double busy_seconds = 0;
  double decode_host_seconds = 0;  // busy time within decode steps, without masks
  double decode_mask_seconds = 0;  // for masks of constraints, while the device computes
  uint64_t decode_graphs_recorded = 0, decode_graphs_launched = 0;  // steps run as one piece
  bool store_attached = false;
  bool ready = false;  // model loaded, warm, and attached to the store
};

// How long the request that waits longest has waited; zero if none waits.
inline absl::Duration OldestWaiting(const EngineStats& stats, absl::Time now) {
  return std::max(now - stats.oldest_waiting, absl::ZeroDuration());
}

// How long the engine has done nothing although there are requests; zero if there are none.
inline absl::Duration SinceProgress(const EngineStats& stats, absl::Time now) {
  if (stats.requests_running + stats.requests_waiting == 0) return absl::ZeroDuration();
  return std::max(now - stats.last_progress, absl::ZeroDuration());
}

class Engine {
 public:
  virtual ~Engine() = default;

  // Queues a request. Its sink gets everything from here on, OnFinish last.
  //
  // Returns, without calling the sink:
  //   INVALID_ARGUMENT     empty prompt, token outside the vocabulary, bad sampling value, prompt +
  //                        max_tokens longer than the model: with the numbers
  //   RESOURCE_EXHAUSTED   CAPACITY_EXCEEDED: can never fit into this server's memory (with the
  //                        largest that can), or QUEUE_FULL
  //   ALREADY_EXISTS       REQUEST_ID_IN_USE
  //   UNAVAILABLE          DRAINING
  virtual absl::Status Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) = 0;

  // Whether one request can measure several continuations of so many tokens behind such a prompt,
  // which is read once for all then. Otherwise each needs a request of its own.
  virtual bool CanMeasureTogether(const AttentionSettings& attention, int64_t prompt_tokens,
                                  int64_t continuation_tokens) const = 0;

  // Ends a request within one step, with FinishReason::kCancelled, or kDeadline if that has passed.
  // Returns false if it is unknown.
  virtual bool Abort(std::string_view request_id) = 0;

  // Refuses new requests from now on, lets the live ones finish until `deadline`, then cancels the
  // rest. Returns when none is left. A second call, on another thread, brings the deadline forward.
  virtual void Drain(absl::Time deadline) = 0;

  virtual const EngineLimits& limits() const = 0;
  // Has everything that a request did whose OnFinish was called.
  virtual EngineStats stats() const = 0;
};

}  // namespace retroinfer
