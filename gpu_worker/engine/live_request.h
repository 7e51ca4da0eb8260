// A request from its submission to the last byte that it held.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "gpu_worker/attention/attention_policy.h"
#include "gpu_worker/engine/block_demand.h"
#include "gpu_worker/engine/forced_tokens.h"
#include "gpu_worker/engine/generation.h"
#include "gpu_worker/engine/output_processor.h"
#include "gpu_worker/engine/sampler.h"
#include "gpu_worker/engine/scheduler/step_plan.h"
#include "gpu_worker/kv/suspended_kv.h"

namespace retroinfer {

enum class RequestState {
  kWaiting,    // in the queue; holds nothing
  kReserving,  // has its blocks; extents asked of the store
  kPrefill,    // has all it needs; waits for its prompt to be read, or is in a lane
  kIndexing,   // prompt computed, first token out; its last segments are being built
  kDecoding,   // takes part in decode steps
  kLeaving,    // steps aside: its KV is being copied out of the blocks that it still holds
  kSuspended,  // has stepped aside: its KV is in host memory and in the arena
  kReturning,  // has blocks again, into which its KV is being copied
  kEnding,     // finished towards the client; background work may still hold its memory
};

// What a request's decode steps told of the mass that they did not attend to exactly.
class UnseenSum {
 public:
  // Of one step; none: not known.
  void Add(std::optional<double> share);
  std::optional<UnseenMass> Result() const;

 private:
  int64_t num_steps_ = 0;
  double sum_ = 0;
  double largest_ = 0;
};

struct LiveRequest {
  GenerationRequest request;
  std::shared_ptr<GenerationSink> sink;
  RequestState state = RequestState::kWaiting;
  uint32_t tenant = 0;  // TenantDirectory's number
  uint64_t prefix = 0;  // PrefixDirectory's number
  // Leading tokens of the prompt that another one has, too: RequestDescription::common_tokens, and
  // of whom.
  uint64_t common_with = 0;  // a sequence's id
  int64_t common_tokens = 0;

  AttentionPolicy* policy = nullptr;
  SequenceKv kv;
  KvNeed need;         // for its whole life
  BlockDemand demand;  // of that, what it should hold of the device
  bool is_in_lane = false;
  bool part_is_read = false;  // kPrefill, in a lane: the background has yet to finish with it
  bool is_aborted = false;
  bool is_new = true;                // in no description yet
  absl::Status failure;              // of what was done for it, until a plan ends it
  bool takes_in_order = false;       // AttentionPolicy::TakesInOrder, as far as is known
  bool asked_store = false;          // Reserve was called: Release must be, too
  uint64_t rows_id = 0;              // in whose name it asked for rows (ClaimRows); 0: it did not
  bool arena_was_full = false;       // when it was asked last
  uint64_t releases_when_asked = 0;  // LocalEngine::num_releases_ then
  StoreAnswer answer = StoreAnswer::kNone;
  absl::Status no_room;  // what the store said, of kNoRoom
  std::optional<SamplingState> sampling;
  std::unique_ptr<OutputProcessor> output;
  int32_t next_token = -1;           // sampled last; its KV does not exist yet
  int64_t num_generated = 0;         // or measured, of continuations
  std::optional<OutputToken> first;  // drawn; told when the prompt is measured, too

  // Of a request that measures: its continuations, and rows of its prompt that are done.
  std::optional<ForcedTokens> forced;
  int64_t prompt_rows_measured = 0;
  // Tokens with KV behind its prompt.
  int64_t length() const { return kv.num_tokens - kv.prompt_tokens; }
  // What it has of the device's blocks, and what it asks for beyond that.
  KvBlocks Held() const {
    return {.dense = static_cast<int32_t>(kv.dense_blocks.size()),
            .meta = static_cast<int32_t>(kv.meta_blocks.size())};
  }
  KvBlocks Asked() const {
    const KvBlocks held = Held();
    return {.dense = std::max(0, demand.wanted().dense - held.dense),
            .meta = std::max(0, demand.wanted().meta - held.meta)};
  }
  // Each row but the last one measures the token behind it.
  int64_t PromptRowsLeft() const {
    if (request.num_prompt_logprobs < 0) return 0;
    return std::ssize(request.prompt) - 1 - prompt_rows_measured;
  }

  // Blocks of its window that are saved or were given to the saver: from where the window began
  // then, up to this position.
  int64_t saved_begin = 0;
  int64_t saved_end = 0;

  std::optional<SuspendedKv::Copy> copy;  // while it is aside
  bool is_stalled = false;                // decodes, and lacks memory for the next token
  int32_t num_suspensions = 0;            // so far
  absl::Time resident_since;              // when it began to decode or came back last
  absl::Time suspended_since;             // when it stepped aside last

  absl::Time submitted;
  absl::Time prefill_begun;
  absl::Time first_token = absl::InfiniteFuture();
  absl::Time last_token;
  absl::Time progressed;            // when a slice or a token of it was finished last
  int64_t prompt_tokens_done = 0;   // of its prompt, as far as they are in the statistics
  int64_t prompt_tokens_told = -1;  // the same, as far as the client was told
  double kv_bytes_read = 0;
  double kv_bytes_full = 0;
  UnseenSum unseen;
};

using LiveRequests = std::deque<std::unique_ptr<LiveRequest>>;  // in order of arrival

struct RequestCounts {
  int64_t running = 0;                                 // admitted
  int64_t waiting = 0;                                 // not yet
  int64_t waiting_for_prefill = 0;                     // of those that run: not begun
  int64_t suspended = 0;                               // of those that run: stepped aside
  int64_t stalled = 0;                                 // of those that run: decode, lack memory
  absl::Time oldest_waiting = absl::InfiniteFuture();  // when the oldest of either was submitted
};
RequestCounts CountRequests(const LiveRequests& live);

// Returns what a request that ends now has to say.
GenerationResult ResultOf(const LiveRequest& live, FinishReason reason, absl::Status status);

}  // namespace retroinfer
