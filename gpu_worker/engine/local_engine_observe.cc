// What the scheduler is told each round: the only place that looks at what the device, the
// background and the store have done. Nothing is decided here; what fails is part of a description.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/clock/steady_now.h"
#include "common/status/status_macros.h"
#include "gpu_worker/engine/local_engine.h"
#include "spdlog/spdlog.h"

namespace retroinfer {
namespace {

double ToSeconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

RequestPhase PhaseOf(const LiveRequest& live) {
  switch (live.state) {
    case RequestState::kWaiting:
      return RequestPhase::kWaiting;
    case RequestState::kReserving:
      return RequestPhase::kReserving;
    case RequestState::kPrefill:
      if (live.part_is_read) return RequestPhase::kSettling;
      return live.is_in_lane ? RequestPhase::kReading : RequestPhase::kReady;
    case RequestState::kIndexing:
      return RequestPhase::kSettling;
    case RequestState::kLeaving:
      return RequestPhase::kLeaving;
    case RequestState::kSuspended:
      return RequestPhase::kSuspended;
    case RequestState::kReturning:
      return RequestPhase::kReturning;
    case RequestState::kDecoding:
    case RequestState::kEnding:
      return RequestPhase::kDecoding;
  }
  return RequestPhase::kWaiting;
}

// Nothing ends it before it has generated all that it may.
bool GeneratesAll(const GenerationRequest& request) {
  const SamplingParams& sampling = request.sampling;
  const bool may_stop =
      !sampling.ignore_eos || !sampling.stop.empty() || !sampling.stop_token_ids.empty();
  return IsScoring(request) || !may_stop;
}

}  // namespace

void LocalEngine::Observe() {
  if (const absl::Status status = clock_->Poll(); !status.ok()) {
    LogLook("device", status);
  }
  input_.now = ToSeconds(common::SteadyNow());
  input_.aborts_all = cancel_all_;
  input_.forgets_costs = forget_costs_.exchange(false);
  input_.measured = clock_->TakeMeasured();
  if (input_.forgets_costs) input_.measured.clear();
  if (const absl::Status status = parts_.cache->Settle(); !status.ok()) LogCache(status);
  ObserveRequests();
  parts_.cache->Describe(input_.cache);  // with what requests give up now
  input_.lanes.resize(lanes_.size());
  for (size_t i = 0; i < lanes_.size(); ++i) DescribeLane(*lanes_[i], input_.lanes[i]);
  input_.free_dense_blocks = parts_.memory->dense_blocks().num_free();
  input_.free_meta_blocks = parts_.memory->meta_blocks().num_free();
  input_.free_table_rows = parts_.memory->table_rows().num_free();
  input_.free_suspended_blocks = parts_.suspended == nullptr ? 0 : parts_.suspended->num_free();
  input_.seconds_in_flight = clock_->seconds_in_flight();
  input_.free_passes = static_cast<int64_t>(clock_->free());
  input_.weights.assign(tenants_.weights().begin(), tenants_.weights().end());
  input_.new_tenants = tenants_.TakeNew();
  TellExpectedWait();
}

void LocalEngine::ObserveRequests() {
  CompareReady();
  input_.requests.clear();
  input_.unused.clear();
  for (const auto& live : live_) {
    if (live->state != RequestState::kEnding) {
      input_.requests.push_back(Describe(*live));
    } else if (IsUnused(*live)) {
      input_.unused.push_back(live->kv.sequence_id);
    }
  }
}

void LocalEngine::LogCache(const absl::Status& status) {
  if (const auto suppressed = cache_log_.Admit(common::SteadyNow()); suppressed.has_value()) {
    spdlog::error("block cache: {} ({} times since)", status.ToString(), *suppressed + 1);
  }
}

// Whether the memory of a request that has ended may be used for others: no copy of it is under
// way, and the policy has nothing left to do. Where that cannot be known it is given up waiting
// for.
bool LocalEngine::IsUnused(LiveRequest& live) {
  if (live.copy.has_value()) {
    const absl::StatusOr<bool> copied = parts_.suspended->IsDone(*live.copy);
    if (!copied.ok()) {
      spdlog::error("copies of sequence {}: {}", live.kv.sequence_id, copied.status().ToString());
    } else if (!*copied) {
      return false;
    }
  }
  if (saver_ != nullptr && saver_->IsSaving(live.kv.sequence_id)) return false;
  if (live.kv.table_row < 0 && live.num_suspensions == 0) return true;
  const absl::StatusOr<bool> released = live.policy->Release(live.kv);
  if (!released.ok()) {
    spdlog::error("release of sequence {}: {}", live.kv.sequence_id, released.status().ToString());
  }
  return released.value_or(true);
}

void LocalEngine::LogLook(const char* at, const absl::Status& status) {
  if (const auto suppressed = device_log_.Admit(common::SteadyNow()); suppressed.has_value()) {
    spdlog::error("looking at the {}: {} ({} times since)", at, status.ToString(), *suppressed + 1);
  }
}

void LocalEngine::TellExpectedWait() {
  constexpr absl::Duration kInterval = absl::Milliseconds(50);
  const absl::Time now = common::SteadyNow();
  if (now < next_expected_wait_) return;
  next_expected_wait_ = now + kInterval;
  inbox_->SetExpectedWait(absl::Seconds(scheduler_->ExpectedWait(input_)));
}

// What follows from the request alone.
RequestDescription LocalEngine::DescribePrompt(const LiveRequest& live) const {
  const PromptPart& part = live.kv.part;
  return {.id = live.kv.sequence_id,
          .phase = PhaseOf(live),
          .arrival = ToSeconds(live.submitted),
          .deadline = ToSeconds(live.request.deadline),
          .is_aborted = live.is_aborted,
          .priority = live.request.priority,
          .tenant = live.tenant,
          .prompt_tokens = part.num_context + part.end - part.begin,
          .cached_tokens = part.num_context + live.kv.read_end() - int64_t{kSinkTokens},
          .unshared_tokens = live.kv.read_end() - live.kv.shared_end,
          .prefix = live.prefix,
          .common_tokens = live.common_tokens,
          .context = live.kv.num_tokens,
          .wants_extents = !live.need.segment_tokens.empty(),
          .takes_in_order = live.takes_in_order,
          .has_more_parts = part.end < live.kv.prompt_tokens,
          .suspended_since = ToSeconds(live.suspended_since),
          .tokens_left = live.request.sampling.max_tokens - live.num_generated,
          .tokens_generated = live.num_generated,
          .length_is_known = GeneratesAll(live.request)};
}

// What it holds of the device's memory and may still need.
void LocalEngine::DescribeMemory(LiveRequest& live, RequestDescription& description) {
  const KvBlocks& wanted = live.demand.wanted();
  const KvBlocks& most = live.demand.most();
  const bool was_stalled = std::exchange(live.is_stalled, false);
  if (live.kv.table_row < 0) {
    description.dense_blocks = wanted.dense;
    description.meta_blocks = wanted.meta;
    description.more_dense_blocks = most.dense - wanted.dense;
    description.more_meta_blocks = most.meta - wanted.meta;
    return;
  }
  const KvBlocks held = live.Held();
  description.dense_blocks = held.dense;
  description.meta_blocks = parts_.memory->OwnMetaBlocks(live.kv);
  description.more_dense_blocks = std::max(0, most.dense - held.dense);
  description.more_meta_blocks = std::max(0, most.meta - held.meta);
  if (live.state != RequestState::kDecoding) return;
  const KvBlocks asked = live.Asked();
  description.asked_dense_blocks = asked.dense;
  description.asked_meta_blocks = asked.meta;
  description.room = live.demand.Room(live.length());
  live.is_stalled = description.room <= 0;
  if (live.is_stalled && !was_stalled) ++stats_.counters().memory_stalls;
}

RequestDescription LocalEngine::Describe(LiveRequest& live) {
  const bool is_to_be_read = live.state <= RequestState::kPrefill;
  if (!live.is_in_lane && is_to_be_read)
    live.kv.part = live.policy->NextPart(live.kv, lanes_[0]->max_tokens());
  RequestDescription description = DescribePrompt(live);
  DescribeMemory(live, description);
  const PromptPart& part = live.kv.part;
  if (part.attends_to_all) description.later_tokens = live.kv.prompt_tokens - part.end;
  // What a prompt's parts have read for it is nobody else's.
  const bool is_part =
      description.has_more_parts || part.begin > 0 || live.kv.read_end() > live.kv.cached_end;
  if (is_part && is_to_be_read) description.prefix = 0;
  description.is_new = std::exchange(live.is_new, false);
  if (description.is_new) {
    // What has names may all be found: what is computed at the least is the rest.
    if (live.kv.lineage.names_any()) {
      description.nameable_tokens = live.kv.prompt_tokens - 1 - int64_t{kSinkTokens};
    }
  }
  description.asks_store =
      description.wants_extents || (live.kv.lineage.names_any() && parts_.store->attached());
  description.arena_is_full = live.state == RequestState::kWaiting && live.arena_was_full &&
                              live.releases_when_asked == num_releases_;
  if (live.failure.ok()) live.failure = DescribeProgress(live, description);
  description.has_failed = !live.failure.ok();
  return description;
}

// How far the store, the background and the device are with it.
absl::Status LocalEngine::DescribeProgress(LiveRequest& live, RequestDescription& description) {
  switch (live.state) {
    case RequestState::kReserving:
      description.answer = live.answer;
      description.arena_may_get_room = live.answer == StoreAnswer::kNoRoom && ArenaMayGetRoom(live);
      return absl::OkStatus();
    case RequestState::kPrefill: {
      if (!live.part_is_read) return absl::OkStatus();
      ASSIGN_OR_RETURN(description.is_settled, live.policy->PromptTaken(live.kv));
      return absl::OkStatus();
    }
    case RequestState::kIndexing: {
      // Its rows stay in the lane until they are measured.
      if (live.PromptRowsLeft() > 0) return absl::OkStatus();
      ASSIGN_OR_RETURN(description.is_settled, live.policy->PromptTaken(live.kv));
      return absl::OkStatus();
    }
    case RequestState::kLeaving:
    case RequestState::kReturning: {
      ASSIGN_OR_RETURN(description.is_copied, parts_.suspended->IsDone(*live.copy));
      return absl::OkStatus();
    }
    case RequestState::kDecoding:
      return DescribeDecoding(live, description);
    default:
      return absl::OkStatus();
  }
}

// Whether a decoding request can take part in a step, and what it would take to let it step aside.
absl::Status LocalEngine::DescribeDecoding(LiveRequest& live, RequestDescription& description) {
  const bool is_saving = saver_ != nullptr && saver_->IsSaving(live.kv.sequence_id);
  if (live.forced.has_value()) {
    description.more_rows = std::min({live.forced->left(), live.policy->RowsTogether(live.kv),
                                      std::max<int64_t>(1, description.room)}) -
                            1;
  }
  if (parts_.suspended != nullptr) {
    ASSIGN_OR_RETURN(description.can_suspend, live.policy->CanStepAside(live.kv));
    description.can_suspend &= !is_saving;
    description.suspended_blocks = SuspendedKv::BlocksOf(live.kv);
    description.num_suspensions = live.num_suspensions;
    description.resident_since = ToSeconds(live.resident_since);
  }
  description.decoding_since = ToSeconds(live.first_token);
  ASSIGN_OR_RETURN(description.can_decode, live.policy->ReadyForStep(live.kv));
  // The window's oldest blocks are used again when a segment of theirs goes live.
  if (is_saving && live.policy->GoesLive(live.kv)) description.can_decode = false;
  description.goes_live = description.can_decode && live.policy->GoesLive(live.kv);
  return absl::OkStatus();
}

// How much the prompts that are ready have in common with the first of them that begins alike.
void LocalEngine::CompareReady() {
  absl::flat_hash_map<uint64_t, const LiveRequest*> first_of;
  for (const auto& live : live_) {
    const bool is_ready = live->state == RequestState::kPrefill && !live->is_in_lane;
    if (!is_ready || live->prefix == 0 || live->kv.num_cached_segments == 0) continue;
    const LiveRequest& first = *first_of.try_emplace(live->prefix, live.get()).first->second;
    if (live->common_with == first.kv.sequence_id) continue;
    live->common_with = first.kv.sequence_id;
    live->common_tokens = CommonTokens(live->request.prompt, first.request.prompt);
  }
}

void LocalEngine::DescribeLane(const PrefillLane& lane, LaneDescription& description) {
  description.max_tokens = lane.max_tokens();
  description.is_free = !lane.busy();
  description.layer = lane.layer();
  description.next_row = lane.next_row();
  description.rows_to_measure = 0;
  // The members are those of BeginGroup: their rows stay, whoever was dropped since.
  if (description.is_free) {
    description.members.clear();
    description.runs.clear();
  }
  if (description.is_free || lane.layer() == options_.plan.geometry.num_layers) {
    description.layers_open = 0;
    for (const SequenceKv* const sequence : lane.Live()) {
      description.rows_to_measure += Find(sequence->sequence_id)->PromptRowsLeft();
    }
    return;
  }
  const absl::StatusOr<uint32_t> open = lane.LayersOpen();
  if (!open.ok()) LogLook("background", open.status());
  description.layers_open = open.value_or(0);
}

}  // namespace retroinfer
