#include "gpu_worker/engine/live_request.h"

#include <algorithm>
#include <utility>

#include "common/clock/steady_now.h"

namespace retroinfer {

DraftedText DraftedTextOf(const LiveRequest& live) {
  return {.id = live.sequence->id(),
          .prompt = live.drafting->prompt(),
          .answer = live.drafting->answer()};
}

RequestCounts CountRequests(const LiveRequests& live) {
  RequestCounts counts;
  for (const auto& request : live) {
    if (request->phase == RequestPhase::kEnded) continue;
    const bool is_admitted =
        request->phase != RequestPhase::kWaiting && request->phase != RequestPhase::kReserving;
    counts.stalled += request->is_stalled ? 1 : 0;
    counts.suspended += request->sequence->copy.has_value() ? 1 : 0;
    const bool has_begun = request->prefill_begun != absl::Time();
    (is_admitted ? counts.running : counts.waiting) += 1;
    if (has_begun) continue;
    if (is_admitted) ++counts.waiting_for_prefill;
    counts.oldest_waiting = std::min(counts.oldest_waiting, request->submitted);
  }
  return counts;
}

void UnseenSum::Add(std::optional<double> share) {
  if (!share.has_value()) return;
  ++num_steps_;
  sum_ += *share;
  largest_ = std::max(largest_, *share);
}

std::optional<UnseenMass> UnseenSum::Result() const {
  if (num_steps_ == 0) return std::nullopt;
  return UnseenMass{.mean = sum_ / static_cast<double>(num_steps_), .largest = largest_};
}

void PrepareOutput(LiveRequest& live, std::shared_ptr<GenerationSink> sink,
                   const Tokenizer& tokenizer, std::span<const int32_t> eos_token_ids) {
  const SamplingParams& sampling = live.request.sampling;
  live.client = std::make_shared<ClientOutput>();
  live.client->sink = std::move(sink);
  if (!sampling.stop.empty()) {
    live.text.emplace(tokenizer, sampling, eos_token_ids);
    return;
  }
  live.client->text.emplace(tokenizer, sampling, eos_token_ids);
  live.stop_tokens.emplace(sampling, eos_token_ids);
}

GenerationResult ResultOf(const LiveRequest& live, FinishReason reason, absl::Status status) {
  const bool any_output = live.num_generated > 0;
  const absl::Time now = common::SteadyNow();
  const bool began = live.prefill_begun != absl::Time();
  return {
      .status = std::move(status),
      .reason = reason,
      .matched_stop = live.text.has_value() ? live.text->matched_stop() : "",
      .matched_token =
          live.text.has_value() ? live.text->matched_token() : live.stop_tokens->matched(),
      .prompt_tokens = std::ssize(live.sequence->kv.whole_prompt()),
      .cached_tokens = live.sequence->kv.cached_tokens(),
      .cached_generated_tokens = std::max<int64_t>(
          0, live.sequence->kv.cached_end - live.sequence->kv.lineage.exact_end()),
      .completion_tokens = live.num_generated,
      .drafts_accepted = live.drafts_accepted,
      .drafts_rejected = live.drafts_rejected,
      .num_suspensions = live.sequence->num_suspensions,
      .seed = live.request.sampling.seed,
      .queue_time = (began ? live.prefill_begun : now) - live.submitted,
      .prefill_time =
          began ? std::min(live.first_token, now) - live.prefill_begun : absl::ZeroDuration(),
      .time_to_first_token = any_output ? live.first_token - live.submitted : absl::ZeroDuration(),
      .decode_time = any_output ? live.last_token - live.first_token : absl::ZeroDuration(),
      // Near a retrieval ratio of 1 wave reads its index besides all of the KV.
      .kv_read_ratio =
          live.kv_bytes_full > 0 ? std::min(live.kv_bytes_read / live.kv_bytes_full, 1.0) : 0,
      .unseen = live.unseen.Result()};
}

}  // namespace retroinfer
