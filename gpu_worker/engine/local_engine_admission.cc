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

// Takes the device memory that the plan has counted.
void LocalEngine::Reserve(LiveRequest& live, bool asks_store) {
  if (!parts_.memory->Reserve(live.demand.wanted(), live.kv)) return;
  live.demand.Take();
  auto sampling = SamplingState::Create(*parts_.device, *parts_.stream, live.request,
                                        options_.eos_token_ids, parts_.model->config().vocab_size);
  if (!sampling.ok()) {
    End(live, FinishReason::kError, sampling.status());
    return;
  }
  live.sampling = *std::move(sampling);
  live.answer = StoreAnswer::kNone;
  live.state = RequestState::kReserving;
  std::optional<ReserveRequest> request = ClaimSegments(live.kv, live.need);
  // Without a store, what needs no extents does not wait for it.
  if (!request.has_value()) {
    if (!asks_store || !AskForRows(live)) live.state = RequestState::kPrefill;
    return;
  }
  live.asked_store = true;
  live.releases_when_asked = num_releases_;
  const uint64_t id = live.kv.sequence_id;
  parts_.store->Reserve(*std::move(request),
                        [inbox = inbox_, id](absl::StatusOr<std::vector<Extent>> extents) {
                          inbox->Answer({id, std::move(extents)});
                        });
}

// The same for one that decodes and asks for more.
void LocalEngine::Grow(uint64_t id) {
  LiveRequest* const live = Find(id);
  if (live == nullptr || live->state != RequestState::kDecoding) return;
  if (parts_.memory->Grow(live->Asked(), live->kv)) live->demand.Take();
}

// It has come further: it may ask for more, or has what it would ask for. What it will not need any
// more comes free.
void LocalEngine::Advance(LiveRequest& live) {
  if (!live.demand.Advance(live.length())) return;
  parts_.memory->GiveBack(live.demand.most().dense, live.kv);
  if (live.Asked() == KvBlocks()) live.demand.Take();
}

// Asks for KV of the prompt that is in no segment whose index the request can share. Returns
// whether there may be any.
bool LocalEngine::AskForRows(LiveRequest& live) {
  if (saver_ == nullptr || live.request.num_prompt_logprobs >= 0) return false;
  std::optional<ReserveRequest> request = ClaimRows(live.kv, next_claim_id_);
  if (!request.has_value()) return false;
  const uint64_t id = live.rows_id = next_claim_id_++;
  parts_.store->Reserve(*std::move(request),
                        [inbox = inbox_, id](absl::StatusOr<std::vector<Extent>> extents) {
                          inbox->Answer({id, std::move(extents)});
                        });
  return true;
}

// Notes what the store has answered; what follows from that is planned.
void LocalEngine::TakeAnswer(ReserveAnswer answer) {
  if (saver_ != nullptr && saver_->TakeAnswer(answer.sequence_id, answer.extents)) return;
  const auto found = std::find_if(live_.begin(), live_.end(), [&answer](const auto& one) {
    return one->kv.sequence_id == answer.sequence_id || one->rows_id == answer.sequence_id;
  });
  LiveRequest* const live = found == live_.end() ? nullptr : found->get();
  if (live == nullptr || live->state != RequestState::kReserving) return;
  const uint32_t arena_pages = parts_.store->arena_pages();
  if (live->rows_id == answer.sequence_id) {
    // Without rows it computes them.
    live->answer = StoreAnswer::kGranted;
    if (!answer.extents.ok()) return;
    live->failure =
        TakeRows(*answer.extents, arena_pages, parts_.memory->sizes().geometry, live->kv);
  } else if (answer.extents.ok()) {
    live->failure = TakeExtents(*std::move(answer.extents), arena_pages, live->kv);
    if (!live->failure.ok() || !AskForRows(*live)) live->answer = StoreAnswer::kGranted;
  } else if (absl::IsResourceExhausted(answer.extents.status())) {
    live->answer = StoreAnswer::kNoRoom;
    live->no_room = answer.extents.status();
    ++stats_.counters().allocation_failures;
  } else {
    live->failure = answer.extents.status();
  }
}

bool LocalEngine::ArenaMayGetRoom(const LiveRequest& live) const {
  return live.releases_when_asked != num_releases_ || (saver_ != nullptr && saver_->busy()) ||
         std::any_of(live_.begin(), live_.end(), [&live](const auto& other) {
           return other.get() != &live && (other->asked_store || other->rows_id != 0);
         });
}

void LocalEngine::PutBack(LiveRequest& live) {
  live.asked_store = false;
  live.arena_was_full = true;
  parts_.memory->Free(live.kv);
  live.demand.Leave(0);
  live.state = RequestState::kWaiting;
}

void LocalEngine::Grant(LiveRequest& live) {
  parts_.memory->ShareIndexes(live.kv);
  live.state = RequestState::kPrefill;
  live.takes_in_order = live.policy->TakesInOrder(live.kv);
  EngineStats& counters = stats_.counters();
  counters.prefix_cache_queries_tokens += static_cast<uint64_t>(live.kv.prompt_tokens);
  counters.prefix_cache_hits_tokens += static_cast<uint64_t>(live.kv.cached_tokens());
}

}  // namespace retroinfer
