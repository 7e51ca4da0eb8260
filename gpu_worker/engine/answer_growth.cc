#include "gpu_worker/engine/answer_growth.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gpu_worker/engine/segment_claim.h"
#include "spdlog/spdlog.h"

namespace retroinfer {
namespace {

int64_t MostTokens(const LiveRequest& live) {
  return live.sequence->kv.drawn_begin() + live.request.sampling.max_tokens;
}

int64_t NextTotal(const LiveRequest& live) {
  return std::min(live.sequence->kv.total_tokens + AnswerGrowth::kStretch, MostTokens(live));
}

}  // namespace

int64_t AnswerGrowth::TokensAtFirst(const GenerationRequest& request) {
  const int64_t most = request.sampling.max_tokens;
  return request.open_ended ? std::min(most, kStretch) : most;
}

void AnswerGrowth::Tend(LiveRequests& live) {
  for (const auto& one : live) {
    if (one->request.open_ended && one->phase == RequestPhase::kDecoding) Tend(*one);
  }
}

void AnswerGrowth::Tend(LiveRequest& live) {
  const SequenceKv& kv = live.sequence->kv;
  const bool is_near = kv.total_tokens - kv.num_tokens <= kAhead;
  if (!is_near || kv.total_tokens >= MostTokens(live) || live.growth_is_over) return;
  if (live.growth_answer.has_value()) return TakeAnswer(live);
  if (live.growth_id != 0) return;  // the answer is on its way
  if (live.growth_was_refused && !exchange_.AnyReleasedSinceGrowth(live)) return;
  // Without preemption, requests were admitted because all of them fit to their ends.
  if (commands_.executor().parts().suspended == nullptr) {
    live.growth_is_over = true;
    return;
  }
  Ask(live, NextTotal(live));
}

void AnswerGrowth::Ask(LiveRequest& live, int64_t total_tokens) {
  const SequenceKv& kv = live.sequence->kv;
  const KvNeed need = live.sequence->policy->Need(kv.settings, kv.prompt_tokens, total_tokens);
  if (!commands_.executor().memory().CouldFit(need)) {
    live.growth_is_over = true;
    spdlog::info("request {}: the device's memory holds {} tokens of its answer and no more",
                 live.request.request_id, kv.total_tokens - kv.prompt_tokens);
    return;
  }
  const std::span<const uint32_t> segments = need.segment_tokens;
  if (segments.size() == kv.extents.size()) return GrowTo(live, total_tokens);
  exchange_.AskForGrowth(live, segments.subspan(kv.extents.size()));
}

void AnswerGrowth::TakeAnswer(LiveRequest& live) {
  absl::StatusOr<std::vector<Extent>> extents = *std::exchange(live.growth_answer, std::nullopt);
  const uint64_t holder = std::exchange(live.growth_id, 0);
  live.growth_was_refused = !extents.ok();
  // Nothing is held in that name then. A store that is gone may be back before the stretch ends.
  if (!extents.ok()) return;
  SequenceKv& kv = live.sequence->kv;
  const int64_t total = NextTotal(live);
  const KvNeed need = live.sequence->policy->Need(kv.settings, kv.prompt_tokens, total);
  live.failure = TakeGrowth(*extents, need.segment_tokens.size() - kv.extents.size(), holder,
                            arena_pages_, kv);
  if (live.failure.ok()) GrowTo(live, total);
}

void AnswerGrowth::GrowTo(LiveRequest& live, int64_t total_tokens) {
  const SequenceKv& kv = live.sequence->kv;
  StepCommand command;
  command.lengthen.push_back({.id = kv.sequence_id,
                              .total_tokens = total_tokens,
                              .extents = kv.extents,
                              .growths = kv.growths});
  CommandResult result;
  commands_.CarryOut(command, result);
  live.failure = std::move(result.refused);
  if (!result.failed.empty()) live.failure = std::move(result.failed.front().status);
  if (!live.failure.ok()) return;
  live.need = live.sequence->policy->Need(kv.settings, kv.prompt_tokens, total_tokens);
  live.demand.Lengthen(live.sequence->length(), total_tokens - kv.prompt_tokens);
}

}  // namespace retroinfer
