// How requests get what they need: admission, and the answers of the store.
#include <algorithm>
#include <optional>
#include <utility>

#include "common/status/error_reason.h"
#include "common/status/status_macros.h"
#include "gpu_worker/engine/local_engine.h"
#include "gpu_worker/engine/request_errors.h"
#include "gpu_worker/engine/segment_claim.h"

namespace retroinfer {

AttentionPolicy& LocalEngine::PolicyOf(const GenerationRequest& request) const {
  const bool is_prompt_only = IsScoring(request) && request.continuations.empty();
  return is_prompt_only ? prompt_only_ : parts_.policies.Of(request.attention.policy);
}

absl::Status LocalEngine::CheckFits(const GenerationRequest& request) const {
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t total = prompt + request.sampling.max_tokens;
  const KvNeed need = PolicyOf(request).Need(request.attention, prompt, total);
  uint64_t pages = 0;
  for (const uint32_t tokens : need.segment_tokens) {
    pages += SegmentLayout(options_.plan.geometry, tokens).max_pages;
  }
  if (need.lane_tokens != 0 && request.num_prompt_logprobs >= 0) {
    return common::WithReason(
        absl::InvalidArgumentError(
            "log-probabilities of a prompt need a policy that reads it whole: full or wave"),
        "INVALID_ATTENTION");
  }
  const int64_t lane_tokens = need.lane_tokens == 0 ? prompt : need.lane_tokens;
  const bool could_be_read = lane_tokens <= lanes_[0]->max_tokens();
  if (could_be_read && parts_.memory->CouldFit(need) && pages <= parts_.store->arena_pages() &&
      limits_.kv_capacity_tokens[request.attention.policy] > 0) {
    return absl::OkStatus();
  }
  if (need.lane_tokens != 0 && total <= limits_.kv_capacity_tokens[request.attention.policy]) {
    return SettingsExceededError(request.attention.policy, need.dense_blocks, lane_tokens,
                                 parts_.memory->dense_blocks().total(), lanes_[0]->max_tokens());
  }
  return CapacityExceededError(prompt, request.sampling.max_tokens, limits_.kv_capacity_tokens,
                               request.attention.policy);
}

// A request whose first token cannot come before its deadline ends before anything is done for it.
// `cached_tokens`: of its prompt, not computed.
bool LocalEngine::RefuseIfTooLate(LiveRequest& live, int64_t cached_tokens) {
  // Of what it is expected to take: costs of a busy machine vary, and nobody who could have made it
  // is to be refused.
  constexpr double kCertain = 0.7;
  if (live.request.deadline == absl::InfiniteFuture() || !scheduler_->knows_costs()) return false;
  RequestDescription description;
  if (!Describe(live, description)) return true;
  description.cached_tokens = cached_tokens;
  const absl::Duration needed =
      absl::Seconds(kCertain * scheduler_->EarliestFirstToken(input_, description));
  const absl::Duration left = live.request.deadline - absl::Now();
  // One that has passed already ends as any other does.
  if (needed <= left || left <= absl::ZeroDuration()) return false;
  End(live, FinishReason::kRefused, DeadlineUnreachableError(needed, left));
  return true;
}

// Takes the device memory that the plan has counted.
void LocalEngine::Reserve(LiveRequest& live) {
  if (!parts_.memory->Reserve(live.need, live.kv)) return;
  auto sampling = SamplingState::Create(*parts_.device, *parts_.stream, live.request,
                                        options_.eos_token_ids, parts_.model->config().vocab_size);
  if (!sampling.ok()) {
    End(live, FinishReason::kError, sampling.status());
    return;
  }
  live.sampling = *std::move(sampling);
  AskStore(live);
}

void LocalEngine::AskStore(LiveRequest& live) {
  std::optional<ReserveRequest> request = ClaimSegments(live.kv, live.need);
  live.takes_only_cached = request.has_value() && request->cached_only;
  // Without a store, what needs no extents does not wait for it.
  if (!request.has_value() || (live.takes_only_cached && !parts_.store->attached())) {
    live.state = RequestState::kPrefill;
    return;
  }
  live.state = RequestState::kReserving;
  live.asked_store = true;
  live.releases_when_asked = num_releases_;
  const uint64_t id = live.kv.sequence_id;
  parts_.store->Reserve(*std::move(request),
                        [inbox = inbox_, id](absl::StatusOr<std::vector<Extent>> extents) {
                          inbox->Answer({id, std::move(extents)});
                        });
}

void LocalEngine::TakeAnswer(ReserveAnswer answer) {
  LiveRequest* live = Find(answer.sequence_id);
  if (live == nullptr || live->state != RequestState::kReserving) return;
  if (answer.extents.ok() || live->takes_only_cached) {
    // What only looked for segments does without them.
    BeginPrefill(*live, std::move(answer.extents).value_or(std::vector<Extent>()));
    return;
  }
  if (!absl::IsResourceExhausted(answer.extents.status())) {
    End(*live, FinishReason::kError, answer.extents.status());
    return;
  }
  // The arena is full now. It will not be for ever: the request fits (CheckFits) and others end.
  // Should nobody else have held extents since it was asked, its free space is too fragmented.
  ++stats_.counters().allocation_failures;
  const bool others = std::any_of(live_.begin(), live_.end(), [live](const auto& other) {
    return other.get() != live && other->asked_store;
  });
  if (!others && live->releases_when_asked == num_releases_) {
    End(*live, FinishReason::kError, answer.extents.status());
    return;
  }
  live->asked_store = false;
  live->arena_was_full = true;
  parts_.memory->Free(live->kv);
  live->state = RequestState::kWaiting;
}

void LocalEngine::BeginPrefill(LiveRequest& live, std::vector<Extent> extents) {
  if (const absl::Status status =
          TakeExtents(std::move(extents), parts_.store->arena_pages(), live.kv);
      !status.ok()) {
    End(live, FinishReason::kError, status);
    return;
  }
  if (RefuseIfTooLate(live, live.kv.cached_tokens())) return;
  parts_.memory->ShareIndexes(live.kv);
  live.state = RequestState::kPrefill;
  live.takes_in_order = live.policy->TakesInOrder(live.kv);
  EngineStats& counters = stats_.counters();
  counters.prefix_cache_queries_tokens += static_cast<uint64_t>(live.kv.prompt_tokens);
  counters.prefix_cache_hits_tokens += static_cast<uint64_t>(live.kv.cached_tokens());
}

}  // namespace retroinfer
