#include "gpu_worker/engine/output_delivery.h"

#include <utility>

#include "common/clock/steady_now.h"
#include "gpu_worker/engine/request_errors.h"

namespace retroinfer {

void OutputDelivery::EmitPrompt(LiveRequest& live, std::span<const OutputToken> measured) {
  counters_.scored_prompt_tokens += measured.size();
  OutputDelta delta;
  delta.continuation = OutputDelta::kOfPrompt;
  delta.tokens.assign(measured.begin(), measured.end());
  events_.push_back({live.client, std::move(delta)});
  EmitFirst(live);
}

void OutputDelivery::EmitFirst(LiveRequest& live) {
  if (live.sequence->PromptRowsLeft() > 0) return;
  if (live.sequence->measures_prompt() && live.sequence->kv.prompt.size() == 1) {
    OutputDelta nothing;
    nothing.continuation = OutputDelta::kOfPrompt;
    events_.push_back({live.client, std::move(nothing)});
  }
  if (live.forced.has_value()) {
    EmitMeasured(live, live.forced->First());
  } else if (IsScoring(live.request)) {
    End(live, FinishReason::kLength);
  } else {
    EmitDrawn(live, *live.first);
  }
}

void OutputDelivery::Emit(LiveRequest& live, const DrawnToken& token) {
  if (live.forced.has_value()) {
    EmitMeasured(live, token.token);
  } else {
    EmitDrawn(live, token);
  }
}

void OutputDelivery::EmitDrawn(LiveRequest& live, const DrawnToken& drawn) {
  if (parts_.store->memory_taken()) return EndBecauseMemoryWasTaken(live);
  ++live.num_generated;
  ++counters_.generation_tokens;
  live.next_token = drawn.token.token;
  if (!drawn.allowed.ok()) return End(live, FinishReason::kError, drawn.allowed);
  live.sequence->kv.lineage.Append(drawn.token.token);
  if (live.drafting.has_value()) live.drafting->Append(drawn.token.token);
  // Where the constraint lets nothing follow, no end token needs to be drawn.
  bool stop = false;
  if (live.text.has_value()) {
    stop = live.text->Append(drawn.token);
  } else {
    stop = live.stop_tokens->Append(drawn.token.token);
    events_.push_back({live.client, drawn.token});
  }
  stop |= drawn.must_end;
  // Below max_tokens where an open-ended answer has grown as far as there was memory.
  const int64_t most = live.sequence->kv.total_tokens - live.sequence->kv.drawn_begin();
  if (stop || live.num_generated >= most) {
    return End(live, stop ? FinishReason::kStop : FinishReason::kLength);
  }
  EmitDelta(live);
}

void OutputDelivery::EmitDelta(LiveRequest& live) {
  if (!live.text.has_value()) return;
  if (OutputDelta delta = live.text->TakeDelta(); !delta.tokens.empty() || !delta.text.empty()) {
    events_.push_back({live.client, std::move(delta)});
  }
}

// A token of a continuation, and the first tokens of those that follow without a step of their own.
void OutputDelivery::EmitMeasured(LiveRequest& live, const OutputToken& token) {
  if (parts_.store->memory_taken()) return EndBecauseMemoryWasTaken(live);
  ForcedTokens& forced = *live.forced;
  const OutputToken* measured = &token;
  for (bool rewinds = false;;) {
    ++counters_.scored_tokens;
    ++live.num_generated;
    OutputDelta delta;
    delta.continuation = forced.continuation();
    delta.tokens.push_back(*measured);
    events_.push_back({live.client, std::move(delta)});
    forced.Count();
    if (forced.left() > 0) {
      if (rewinds) parts_.carry_out({.rewind = {live.sequence->id()}});
      return;
    }
    if (!forced.Next()) return End(live, FinishReason::kLength);
    // The next continuation's tokens overwrite this one's (AttentionPolicy::CanRewind).
    rewinds = live.phase == RequestPhase::kDecoding;
    measured = &forced.First();
  }
}

void OutputDelivery::ReportProgress(LiveRequest& live, int64_t processed_tokens) {
  if (!live.request.return_progress || processed_tokens == live.prompt_tokens_told) return;
  live.prompt_tokens_told = processed_tokens;
  const SequenceKv& kv = live.sequence->kv;
  events_.push_back(
      {live.client, PrefillProgress{.total_tokens = kv.drawn_begin(),
                                    .cached_tokens = kv.cached_tokens(),
                                    .processed_tokens = processed_tokens,
                                    .elapsed = common::SteadyNow() - live.prefill_begun}});
}

void OutputDelivery::EndBecauseMemoryWasTaken(LiveRequest& live) {
  End(live, FinishReason::kError,
      absl::UnavailableError("another worker has taken the memory of this one; try again"));
}

void OutputDelivery::End(LiveRequest& live, FinishReason reason, absl::Status status) {
  if (live.phase == RequestPhase::kEnded) return;
  if (live.text.has_value()) live.text->Flush();
  EmitDelta(live);
  if (!status.ok() && reason != FinishReason::kRefused) status = RequestFailure(status);
  // Before the client is told, whose next request finds then that its KV is on its way.
  if (status.ok()) parts_.exchange->SaveAtEnd(live);
  auto result = std::make_unique<GenerationResult>(ResultOf(live, reason, std::move(status)));
  live.phase = RequestPhase::kEnded;
  parts_.carry_out({.drop = {live.sequence->id()}});
  // One that was cancelled ends without waiting for the device.
  if (reason == FinishReason::kStop || reason == FinishReason::kLength)
    parts_.stats->RequireCacheStats();
  parts_.publish();
  // First free the id and only then tell the client, who may use it again at once.
  parts_.inbox->Forget(live.request.request_id);
  events_.push_back({std::move(live.client), std::move(result)});
}

}  // namespace retroinfer
