// Measuring tokens that are given instead of drawing any: of prompts, from the rows that prefill
// has computed, and of continuations, in decode steps.
#include <algorithm>
#include <utility>

#include "common/clock/steady_now.h"
#include "common/status/status_macros.h"
#include "gpu_worker/engine/local_engine.h"

namespace retroinfer {

bool LocalEngine::CanMeasureTogether(const AttentionSettings& attention, int64_t prompt_tokens,
                                     int64_t continuation_tokens) const {
  return parts_.policies.Of(attention.policy)
      .CanRewind(attention, prompt_tokens, prompt_tokens + continuation_tokens);
}

// What a group's prompts end with is in the sampler's logits: first tokens of all continuations are
// measured there.
absl::StatusOr<std::vector<OutputToken>> LocalEngine::SampleFirsts(
    std::span<LiveRequest* const> members) {
  std::vector<SamplingState*> states;
  for (LiveRequest* const live : members) states.push_back(&*live->sampling);
  std::vector<OutputToken> drawn;
  std::vector<int32_t> forced(members.size());
  bool is_more = true;
  while (is_more) {
    for (size_t i = 0; i < members.size(); ++i) {
      const std::optional<ForcedTokens>& tokens = members[i]->forced;
      const bool is_told = tokens.has_value() && tokens->num_firsts() < tokens->num_continuations();
      forced[i] = is_told ? tokens->FirstTold(tokens->num_firsts()) : -1;
    }
    const auto sampled = sampler_->Sample(states, forced);
    if (!sampled.ok()) return sampled.status();
    if (drawn.empty()) drawn.assign(sampled->begin(), sampled->end());
    is_more = false;
    for (size_t i = 0; i < members.size(); ++i) {
      if (forced[i] < 0) continue;
      ForcedTokens& tokens = *members[i]->forced;
      tokens.AddFirst((*sampled)[i]);
      is_more |= tokens.num_firsts() < tokens.num_continuations();
    }
  }
  return drawn;
}

// What follows the prompt, once nothing of the prompt is left to measure.
void LocalEngine::EmitFirst(LiveRequest& live) {
  if (live.PromptRowsLeft() > 0) return;
  if (live.request.num_prompt_logprobs >= 0 && live.request.prompt.size() == 1) {
    OutputDelta nothing;
    nothing.continuation = OutputDelta::kOfPrompt;
    live.sink->OnOutput(nothing);
  }
  if (live.forced.has_value()) {
    EmitMeasured(live, live.forced->First());
  } else if (IsScoring(live.request)) {
    End(live, FinishReason::kLength);
  } else {
    Emit(live, *live.first);
  }
}

void LocalEngine::Deliver(LiveRequest& live, OutputDelta delta) {
  live.num_generated += std::ssize(delta.tokens);
  live.sink->OnOutput(delta);
}

void LocalEngine::EmitMeasured(LiveRequest& live, const OutputToken& token) {
  if (parts_.store->memory_taken()) return EndBecauseMemoryWasTaken(live);
  ForcedTokens& forced = *live.forced;
  const OutputToken* measured = &token;
  while (true) {
    stats_.counters().scored_tokens += 1;
    OutputDelta delta;
    delta.continuation = forced.continuation();
    delta.tokens.push_back(*measured);
    Deliver(live, std::move(delta));
    forced.Count();
    if (forced.left() > 0) return;
    if (!forced.Next()) return End(live, FinishReason::kLength);
    // The next continuation's tokens take the places of this one's (AttentionPolicy::CanRewind).
    if (live.state == RequestState::kDecoding) live.kv.num_tokens = live.kv.prompt_tokens;
    measured = &forced.First();
  }
}

void LocalEngine::MeasurePrompt(const StepPlan::Measure& measure) {
  const PrefillLane& lane = *lanes_[measure.lane];
  if (!lane.busy() || lane.layer() != options_.plan.geometry.num_layers) return;
  const int64_t batch = options_.plan.max_batch;
  int64_t left = measure.num_rows;
  for (const SequenceKv* const sequence : lane.Live()) {
    LiveRequest& live = *Find(sequence->sequence_id);
    while (left > 0 && live.state != RequestState::kEnding && live.PromptRowsLeft() > 0) {
      const int64_t rows = std::min({left, batch, live.PromptRowsLeft()});
      if (const absl::Status status = MeasureRows(lane, live, rows); !status.ok()) {
        End(live, FinishReason::kError, status);
      }
      left -= rows;
    }
  }
}

// The next rows of one prompt, as many as a batch has places.
absl::Status LocalEngine::MeasureRows(const PrefillLane& lane, LiveRequest& live, int64_t rows) {
  const int64_t first = live.prompt_rows_measured;
  const std::span<const int32_t> told =
      std::span(live.request.prompt)
          .subspan(static_cast<size_t>(first) + 1, static_cast<size_t>(rows));
  clock_->Begin();
  RETURN_IF_ERROR(lane.FillLogits(live.kv, first, sampler_->logits(static_cast<int32_t>(rows))));
  ASSIGN_OR_RETURN(const std::span<const OutputToken> measured,
                   sampler_->Measure(told, live.request.num_prompt_logprobs));
  clock_->Synchronized({.measured_rows = static_cast<double>(rows)});
  live.prompt_rows_measured += rows;
  live.progressed = common::SteadyNow();
  stats_.counters().scored_prompt_tokens += static_cast<uint64_t>(rows);
  OutputDelta delta;
  delta.continuation = OutputDelta::kOfPrompt;
  delta.tokens.assign(measured.begin(), measured.end());
  live.sink->OnOutput(delta);
  EmitFirst(live);
  return absl::OkStatus();
}

}  // namespace retroinfer
