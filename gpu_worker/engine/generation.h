// A request for generation and what comes back: the engine's side of the generation API, free of
// gRPC.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/tenant/tenant.h"
#include "gpu_worker/executor/output_token.h"
#include "gpu_worker/executor/sampling_params.h"
#include "gpu_worker/kv/attention_settings.h"

namespace retroinfer {

// Which KV of earlier requests a request may read, and leaves to later ones.
enum class KvReuse : uint8_t {
  kExact,      // what prefill computes: tokens are those of a request that finds nothing
  kGenerated,  // also what decode steps made under the same attention settings
};

// A request for the log-probabilities of tokens that are given, of the prompt or behind it, has no
// text as its output. Without continuations, and with max_tokens 0, it is about its prompt alone.
struct GenerationRequest {
  std::string request_id;       // unique among live requests
  std::vector<int32_t> prompt;  // at least one token, each in the vocabulary
  SamplingParams sampling;
  AttentionSettings attention;
  std::string cache_salt;  // shares KV with requests of the same salt only
  KvReuse reuse = KvReuse::kExact;
  bool shares_kv = true;  // false: its KV gets no names, and it reads none that has one
  bool drafts = true;     // steps may try drafts of its next tokens, where the engine does that
  std::vector<int32_t> prediction;  // what the answer may be like, for drafts; may be empty
  int32_t priority = 0;             // lower runs first; equal: the tenant that was served least
  // The tenant that is charged, and whose limits hold. Null: the tenant without a name.
  std::shared_ptr<const common::Tenant> tenant;
  // Nobody has named max_tokens: it is what is left of the model's length. Memory is reserved as
  // the answer grows (AnswerGrowth), and an answer for which none can be had any more ends with
  // kLength.
  bool open_ended = false;
  bool return_progress = false;
  // Log-probabilities of the prompt's own tokens, as num_logprobs has those of generated ones.
  int32_t num_prompt_logprobs = -1;
  // Not empty: nothing is drawn. Each is measured as what follows the prompt, one after the other,
  // in the steps that would have drawn it. max_tokens is the length of the longest, and of
  // `sampling` only num_logprobs counts besides. More than one: Engine::CanMeasureTogether().
  std::vector<std::vector<int32_t>> continuations;
  absl::Time deadline = absl::InfiniteFuture();
};

// Whether it measures what it is given and draws nothing.
inline bool IsScoring(const GenerationRequest& request) {
  return !request.continuations.empty() ||
         (request.sampling.max_tokens == 0 && request.num_prompt_logprobs >= 0);
}

enum class FinishReason {
  kStop,
  kLength,
  kCancelled,
  kDeadline,
  kError,
  kRefused,  // before any work: the result's status says why
};
std::string_view FinishReasonName(FinishReason reason);

struct PrefillProgress {
  int64_t total_tokens = 0;      // of the prompt
  int64_t cached_tokens = 0;     // taken from committed segments
  int64_t processed_tokens = 0;  // prompt tokens whose share of all layers is done
  absl::Duration elapsed;        // since prefill began
};

// What one step adds to a request's output.
struct OutputDelta {
  std::string text;  // complete characters only; may be empty
  std::vector<OutputToken> tokens;
  // Index into GenerationRequest::continuations, or kOfPrompt: tokens of the prompt, from the
  // second token on. Those come before all others; a prompt of one token has one delta without
  // tokens.
  int32_t continuation = 0;
  static constexpr int32_t kOfPrompt = -1;
};

// The share of the softmax mass that decode steps did not attend to exactly, as the policy predicts
// it (AttentionPolicy::LastStepUnseen), over the steps that told. It says how much was left to
// estimates, not how wrong they were.
struct UnseenMass {
  double mean = 0;
  double largest = 0;
};

struct GenerationResult {
  absl::Status status;  // an error only with FinishReason::kError and kRefused
  FinishReason reason = FinishReason::kStop;
  std::string matched_stop;    // the stop string that ended it; empty otherwise
  int32_t matched_token = -1;  // the stop token or EOS that ended it; -1 otherwise
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t cached_generated_tokens = 0;  // cached tokens from the first on whose KV is not exact
  int64_t completion_tokens = 0;
  int64_t drafts_accepted = 0;  // of these tokens, drafted ones: they took no step of their own
  int64_t drafts_rejected = 0;  // drafted tokens that a step has tried, and that were not drawn
  int32_t num_suspensions = 0;  // how often the request was suspended
  uint64_t seed = 0;
  absl::Duration queue_time;
  absl::Duration prefill_time;
  absl::Duration time_to_first_token;  // since submission; zero if there was none
  absl::Duration decode_time;          // from the first token to the last
  // Bytes of KV and index that decode steps read over those of full attention, at most 1.
  double kv_read_ratio = 0;
  // None without a decode step, and where the policy cannot tell.
  std::optional<UnseenMass> unseen;
};

// Receives the output of one request.
//
// Threads: called on a thread of the engine's for this (OutputThread), one call at a time; must
// return at once, since all requests share the thread. OnFinish is the last call and always comes,
// exactly once.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  virtual void OnProgress(const PrefillProgress& progress) = 0;
  virtual void OnOutput(const OutputDelta& delta) = 0;
  virtual void OnFinish(const GenerationResult& result) = 0;
};

}  // namespace retroinfer
