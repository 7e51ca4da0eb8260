// A request from its submission to the last byte that it held.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gpu_worker/engine/block_demand.h"
#include "gpu_worker/engine/client_event.h"
#include "gpu_worker/engine/drafting.h"
#include "gpu_worker/engine/forced_tokens.h"
#include "gpu_worker/engine/generation.h"
#include "gpu_worker/engine/output_processor.h"
#include "gpu_worker/engine/stop_tokens.h"
#include "gpu_worker/executor/command_result.h"
#include "gpu_worker/executor/draft_window.h"
#include "gpu_worker/executor/sequence.h"
#include "gpu_worker/scheduler/step_plan.h"

namespace retroinfer {

// What a request's decode steps told of the mass that they did not attend to exactly.
class UnseenSum {
 public:
  // Adds one step's share; none: not known.
  void Add(std::optional<double> share);
  std::optional<UnseenMass> Result() const;

 private:
  int64_t num_steps_ = 0;
  double sum_ = 0;
  double largest_ = 0;
};

struct LiveRequest {
  GenerationRequest request;
  std::shared_ptr<ClientOutput> client;  // the output thread's; null once the request has ended
  RequestPhase phase = RequestPhase::kWaiting;
  uint32_t tenant = 0;  // TenantDirectory's number
  uint64_t prefix = 0;  // PrefixDirectory's number
  // Leading tokens that the prompt has in common with that of the request `common_with`, a
  // sequence's id: RequestDescription::common_tokens.
  uint64_t common_with = 0;
  int64_t common_tokens = 0;

  // The command runner's, from the submission until it is let go. In the executor's own process the
  // engine looks at it; it is changed by commands alone, but for the names of its KV and for what
  // the store has answered until that is claimed.
  Sequence* sequence = nullptr;
  KvNeed need;         // for the request's whole life
  BlockDemand demand;  // device blocks that the request should hold now
  bool is_aborted = false;
  bool is_new = true;           // in no description yet
  absl::Status failure;         // what failed for the request, until a plan ends the request
  bool takes_in_order = false;  // AttentionPolicy::TakesInOrder, as far as is known

  // The store (SegmentExchange).
  bool asked_store = false;          // for extents, which must be released
  uint64_t rows_id = 0;              // the name of its claim on rows; 0: none
  bool wants_whole = false;          // segments of which only the index is there do not do
  bool arena_was_full = false;       // the last answer was StoreAnswer::kArenaFull
  uint64_t releases_when_asked = 0;  // SegmentExchange's count of releases at that time
  StoreAnswer answer = StoreAnswer::kNone;
  absl::Status arena_error;  // what the store said with StoreAnswer::kArenaFull
  // Of an open-ended answer (AnswerGrowth): the last name in which extents were asked for, and the
  // answer, until it is taken.
  uint64_t growth_id = 0;  // 0: nothing is asked for
  std::optional<absl::StatusOr<std::vector<Extent>>> growth_answer;
  uint64_t releases_at_growth = 0;  // SegmentExchange's count of releases when it was asked
  bool growth_was_refused = false;  // the arena was full then
  bool growth_is_over = false;      // the device's memory could never hold more
  // Blocks of the window that are saved, or were given to the saver: from where the window began
  // then, up to this position.
  int64_t saved_begin = 0;
  int64_t saved_end = 0;

  // Output.
  // Says what ends the request. Of a request with stop strings, which are found in its text, `text`
  // does, and makes the text at once; of any other `stop_tokens`, and the text is the output
  // thread's.
  std::optional<OutputProcessor> text;
  std::optional<StopTokens> stop_tokens;
  int32_t next_token = -1;             // sampled last; its KV does not exist yet
  int64_t num_generated = 0;           // or measured, of continuations
  std::optional<DrawnToken> first;     // told when the prompt is measured, too
  std::optional<ForcedTokens> forced;  // of a request that measures continuations
  std::optional<Drafting> drafting;    // of one whose steps may have rows for drafts
  int64_t drafts_accepted = 0;         // tokens that were drafted, and drawn
  int64_t drafts_rejected = 0;         // ... and not: fed for nothing
  bool head_is_read = false;           // of a prompt whose end is given to steps
  int64_t prompt_tokens_done = 0;      // prompt tokens that the statistics have counted
  int64_t prompt_tokens_told = -1;     // prompt tokens that the client was told of

  bool is_stalled = false;  // decodes, and lacks memory for the next token
  absl::Time submitted;
  absl::Time prefill_begun;
  absl::Time first_token = absl::InfiniteFuture();
  absl::Time last_token;
  absl::Time resident_since;   // when it began to decode or was resumed last
  absl::Time suspended_since;  // when it was suspended last
  absl::Time progressed;       // when a pass or a token of it was finished last
  double kv_bytes_read = 0;
  double kv_bytes_full = 0;
  UnseenSum unseen;

  // Whether the whole prompt is computed, and what follows it sampled.
  bool has_first_token() const { return first_token != absl::InfiniteFuture(); }
  // Device blocks that the request holds, and further blocks that it asks for.
  KvBlocks Held() const {
    return {.dense = static_cast<int32_t>(sequence->kv.dense_blocks.size()),
            .meta = static_cast<int32_t>(sequence->kv.meta_blocks.size())};
  }
  KvBlocks Asked() const {
    const KvBlocks held = Held();
    return {.dense = std::max(0, demand.target().dense - held.dense),
            .meta = std::max(0, demand.target().meta - held.meta)};
  }
};

using LiveRequests = std::deque<std::unique_ptr<LiveRequest>>;  // in order of arrival

// What a draft model is to follow. REQUIRES: live.drafting has a value.
DraftedText DraftedTextOf(const LiveRequest& live);

struct RequestCounts {
  int64_t running = 0;              // admitted
  int64_t waiting = 0;              // not yet
  int64_t waiting_for_prefill = 0;  // running requests whose prompt is not begun
  int64_t suspended = 0;            // running requests whose KV is in host memory
  int64_t stalled = 0;              // running requests that decode and lack memory
  absl::Time oldest_waiting =
      absl::InfiniteFuture();  // when the oldest without a first pass was submitted
};
RequestCounts CountRequests(const LiveRequests& live);

// Readies what turns the request's tokens into text, and says when they end it.
void PrepareOutput(LiveRequest& live, std::shared_ptr<GenerationSink> sink,
                   const Tokenizer& tokenizer, std::span<const int32_t> eos_token_ids);

// Returns what a request that ends now has to say.
GenerationResult ResultOf(const LiveRequest& live, FinishReason reason, absl::Status status);

}  // namespace retroinfer
