#include "gpu_worker/engine/observation.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/clock/steady_now.h"
#include "common/status/status_macros.h"
#include "gpu_worker/scheduler/lane_rows.h"

namespace retroinfer {
namespace {

double ToSeconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

// Whether nothing ends the request before it has generated all that it may.
bool GeneratesAll(const GenerationRequest& request) {
  const SamplingParams& sampling = request.sampling;
  const bool may_stop =
      !sampling.ignore_eos || !sampling.stop.empty() || !sampling.stop_token_ids.empty();
  return IsScoring(request) || (!may_stop && !request.open_ended);
}

// Tells each ready prompt how many leading tokens it has in common with the oldest ready one of its
// prefix group.
void CompareReady(const LiveRequests& all) {
  absl::flat_hash_map<uint64_t, const LiveRequest*> first_of;
  for (const auto& live : all) {
    const bool is_shared = live->prefix != 0 && live->sequence->kv.num_cached_segments != 0;
    if (live->phase != RequestPhase::kReady || !is_shared) continue;
    const LiveRequest& first = *first_of.try_emplace(live->prefix, live.get()).first->second;
    if (live->common_with == first.sequence->id()) continue;
    live->common_with = first.sequence->id();
    live->common_tokens = CommonTokens(live->sequence->kv.prompt, first.sequence->kv.prompt);
  }
}

}  // namespace

Observation::Observation(const Sources& sources) : sources_(sources), executor_(*sources.executor) {
  input_.lanes.resize(executor_.num_lanes());
}

// Where misses are attended in the arena, the first step of a prompt's end has few rows: they leave
// in the block cache most of what the others ask for, and no list of misses overflows
// (WaveDecode::StepTask::fetches_first).
// The rows of a run ask for the same pages.
int64_t Observation::MostMoreGiven(const SequenceKv& kv, int64_t rows_of_run) const {
  const int64_t first_rows = std::max<int64_t>(8, rows_of_run);
  const bool is_first = kv.given_left() == kv.given_tokens;
  if (!is_first || executor_.parts().ops->block_cache().uses_transient_slots()) {
    return kv.given_tokens;
  }
  return first_rows - 1;
}

const SchedulerInput& Observation::Observe(const LiveRequests& live, bool aborts_all,
                                           bool forgets_costs) {
  executor_.Look();
  WorkClock& clock = executor_.clock();
  input_.now = ToSeconds(common::SteadyNow());
  input_.aborts_all = aborts_all;
  input_.forgets_costs = forgets_costs;
  input_.measured = clock.TakeMeasured();
  if (forgets_costs) input_.measured.clear();
  CompareReady(live);
  input_.requests.clear();
  input_.unused.clear();
  for (const auto& one : live) {
    if (one->phase != RequestPhase::kEnded) {
      input_.requests.push_back(Describe(*one, live));
    } else if (!sources_.exchange->IsSaving(one->sequence->id()) &&
               executor_.IsUnused(*one->sequence)) {
      input_.unused.push_back(one->sequence->id());
    }
  }
  for (size_t i = 0; i < input_.lanes.size(); ++i) executor_.DescribeLane(i, input_.lanes[i]);
  const KvMemory& memory = executor_.memory();
  input_.free_dense_blocks = memory.dense_blocks().num_free();
  input_.free_meta_blocks = memory.meta_blocks().num_free();
  input_.free_table_rows = memory.table_rows().num_free();
  const SuspendedKv* const suspended = executor_.parts().suspended.get();
  input_.free_suspended_blocks = suspended == nullptr ? 0 : suspended->num_free();
  DraftModel* const draft_model = executor_.parts().draft_model.get();
  input_.draft_untried = sources_.draft_model->untried;
  input_.draft_reading = draft_model == nullptr ? 0 : draft_model->reading();
  input_.seconds_in_flight = clock.seconds_in_flight();
  input_.free_passes = static_cast<int64_t>(clock.free());
  const TenantDirectory& tenants = *sources_.tenants;
  input_.weights.assign(tenants.weights().begin(), tenants.weights().end());
  input_.new_tenants = sources_.tenants->TakeNew();
  return input_;
}

void Observation::GroupBegan(size_t lane, std::span<LiveRequest* const> members) {
  LaneDescription& description = input_.lanes[lane];
  description.members.clear();
  for (const LiveRequest* const member : members) {
    description.members.push_back(MemberOf(DescribePrompt(*member)));
  }
  executor_.DescribeRuns(lane, description);
}

// Describes what follows from the request and its prompt alone.
RequestDescription Observation::DescribePrompt(const LiveRequest& live) const {
  const SequenceKv& kv = live.sequence->kv;
  const PromptPart& part = kv.part;
  // What is read behind a head that is cached; the segments' tokens nobody reads.
  const int64_t left_out = kv.reads_all() ? kv.shared_end - int64_t{kSinkTokens} : 0;
  return {.id = live.sequence->id(),
          .phase = live.phase,
          .arrival = ToSeconds(live.submitted),
          .deadline = ToSeconds(live.request.deadline),
          .is_aborted = live.is_aborted,
          .priority = live.request.priority,
          .tenant = live.tenant,
          .prompt_tokens = part.num_context + part.end - part.begin - left_out,
          .cached_tokens = part.num_context + kv.read_end() - int64_t{kSinkTokens} - left_out,
          .unshared_tokens = kv.read_end() - kv.shared_end,
          .prefix = live.prefix,
          .common_tokens = live.common_tokens,
          .context = kv.num_tokens,
          .wants_extents = !live.need.segment_tokens.empty(),
          .takes_in_order = live.takes_in_order,
          .sparse_from = kv.settings.prefill == PrefillKind::kSparse
                             ? executor_.sizes().sparse.dense_before
                             : LaneDescription::kNeverSparse,
          .has_more_parts = part.end < kv.prompt_tokens,
          .given_tokens = live.phase < RequestPhase::kDecoding ? kv.given_tokens : kv.given_left(),
          .given_depth = kv.given_tokens > 0 ? kv.prompt_tokens : 0,
          .suspended_since = ToSeconds(live.suspended_since),
          .tokens_left = kv.total_tokens - kv.drawn_begin() - live.num_generated,
          .tokens_generated = live.num_generated,
          .length_is_known = GeneratesAll(live.request)};
}

// What the request holds of the device's memory and may still need.
void Observation::DescribeMemory(LiveRequest& live, RequestDescription& description) {
  const KvBlocks& target = live.demand.target();
  const KvBlocks& peak = live.demand.peak();
  const bool was_stalled = std::exchange(live.is_stalled, false);
  if (live.sequence->kv.table_row < 0) {
    description.dense_blocks = target.dense;
    description.meta_blocks = target.meta;
    description.more_dense_blocks = peak.dense - target.dense;
    description.more_meta_blocks = peak.meta - target.meta;
    return;
  }
  const KvBlocks held = live.Held();
  description.dense_blocks = held.dense;
  description.meta_blocks = executor_.memory().OwnMetaBlocks(live.sequence->kv);
  description.more_dense_blocks = std::max(0, peak.dense - held.dense);
  description.more_meta_blocks = std::max(0, peak.meta - held.meta);
  if (live.phase != RequestPhase::kDecoding) return;
  const KvBlocks asked = live.Asked();
  description.asked_dense_blocks = asked.dense;
  description.asked_meta_blocks = asked.meta;
  description.free_tokens = live.demand.FreeTokens(live.sequence->length());
  live.is_stalled = description.free_tokens <= 0;
  if (live.is_stalled && !was_stalled) ++sources_.counters->memory_stalls;
}

RequestDescription Observation::Describe(LiveRequest& live, const LiveRequests& all) {
  SequenceKv& kv = live.sequence->kv;
  // The part that is read next may change until a lane begins it: other requests commit KV
  // meanwhile.
  if (live.phase <= RequestPhase::kReady) {
    kv.part = live.sequence->policy->NextPart(kv, executor_.lane(0).max_tokens());
  }
  RequestDescription description = DescribePrompt(live);
  DescribeMemory(live, description);
  description.measures_given = live.forced.has_value();
  if (kv.part.attends_to_all) description.later_tokens = kv.prompt_tokens - kv.part.end;
  // A prompt that is read in parts shares no read: the lane's KV of its earlier parts is its own.
  const bool is_part =
      description.has_more_parts || kv.part.begin > 0 || kv.read_end() > kv.cached_end;
  if (is_part && !live.has_first_token()) description.prefix = 0;
  description.is_new = std::exchange(live.is_new, false);
  // Every token that has a name may be found cached. The sink and the last token are computed in
  // any case.
  if (description.is_new && kv.lineage.names_any() && !kv.reads_whole) {
    const int64_t computed = kv.given_tokens > 0 ? 0 : 1;
    description.nameable_tokens = kv.prompt_tokens - computed - int64_t{kSinkTokens};
  }
  description.asks_store =
      description.wants_extents || (kv.lineage.names_any() && sources_.store->attached());
  description.arena_is_full = live.phase == RequestPhase::kWaiting && live.arena_was_full &&
                              !sources_.exchange->AnyReleasedSince(live);
  if (live.failure.ok()) live.failure = DescribeProgress(live, all, description);
  description.has_failed = !live.failure.ok();
  return description;
}

// How far the store, the background and the device are with the request.
absl::Status Observation::DescribeProgress(LiveRequest& live, const LiveRequests& all,
                                           RequestDescription& description) {
  Sequence& sequence = *live.sequence;
  switch (live.phase) {
    case RequestPhase::kReserving:
      description.answer = live.answer;
      description.arena_may_free_pages =
          live.answer == StoreAnswer::kArenaFull && sources_.exchange->MayFreePages(live, all);
      return absl::OkStatus();
    case RequestPhase::kSettling: {
      // The prompt's rows stay in the lane until they are measured.
      if (sequence.PromptRowsLeft() > 0) return absl::OkStatus();
      ASSIGN_OR_RETURN(description.is_settled, sequence.policy->PromptTaken(sequence.kv));
      return absl::OkStatus();
    }
    case RequestPhase::kLeaving:
    case RequestPhase::kReturning: {
      ASSIGN_OR_RETURN(description.is_copied, executor_.IsCopied(sequence));
      return absl::OkStatus();
    }
    case RequestPhase::kDecoding:
      return DescribeDecoding(live, description);
    default:
      return absl::OkStatus();
  }
}

// What the draft model could add to the request's next step.
void Observation::DescribeModel(LiveRequest& live, int64_t most_more,
                                RequestDescription& description) const {
  ModelDrafting* const drafting = live.drafting->model();
  DraftModel* const draft_model = executor_.parts().draft_model.get();
  if (drafting == nullptr || draft_model == nullptr) return;
  const DraftModel::State state = draft_model->StateOf(DraftedTextOf(live));
  if (!state.has_room) return;
  description.by_model = {.rows = std::min({DraftModel::kMostDrafted, most_more,
                                            std::max<int64_t>(1, description.tokens_left) - 1}),
                          .chance = drafting->chance(),
                          .unread = state.unread,
                          .behind = state.behind};
}

// Whether a decoding request can take part in a step, and what suspending it would take.
absl::Status Observation::DescribeDecoding(LiveRequest& live, RequestDescription& description) {
  Sequence& sequence = *live.sequence;
  AttentionPolicy& policy = *sequence.policy;
  if (!sequence.kv.has_stepped()) {
    description.cold_tokens = executor_.memory().ColdTokens(sequence.kv);
  }
  const bool is_saving = sources_.exchange->IsSaving(sequence.id());
  const int64_t most_more =
      std::min(policy.RowsTogether(sequence.kv), std::max<int64_t>(1, description.free_tokens)) - 1;
  if (const int64_t given = sequence.kv.given_left(); given > 0) {
    description.rows_of_run = policy.RowsOfRun(sequence.kv);
    description.more_rows =
        std::min({given - 1, most_more, MostMoreGiven(sequence.kv, description.rows_of_run)});
    // Whole runs alone; the first one needs no more memory than its first row does.
    const int64_t run = std::min(given, description.rows_of_run);
    if (description.more_rows + 1 < given) {
      description.more_rows -= (description.more_rows + 1) % description.rows_of_run;
    }
    description.more_rows = std::max(description.more_rows, run - 1);
    description.measures_given = true;
  } else if (live.forced.has_value()) {
    description.more_rows = std::min(live.forced->left() - 1, most_more);
  } else if (live.drafting.has_value()) {
    description.more_rows = std::min({std::ssize(live.drafting->draft()), most_more,
                                      std::max<int64_t>(1, description.tokens_left) - 1});
    description.draft_chance = live.drafting->chance();
    DescribeModel(live, most_more, description);
  }
  if (executor_.parts().suspended != nullptr) {
    ASSIGN_OR_RETURN(description.can_suspend, policy.CanSuspend(sequence.kv));
    description.can_suspend &= !is_saving;
    description.suspended_blocks = executor_.parts().suspended->BlocksOf(sequence.kv);
    description.num_suspensions = sequence.num_suspensions;
    description.resident_since = ToSeconds(live.resident_since);
  }
  description.decoding_since = ToSeconds(live.first_token);
  ASSIGN_OR_RETURN(description.can_decode, policy.ReadyForStep(sequence.kv));
  // When a segment goes live, the window's oldest blocks are reused: the saver may still read them.
  if (is_saving && policy.GoesLive(sequence.kv)) description.can_decode = false;
  description.goes_live = description.can_decode && policy.GoesLive(sequence.kv);
  return absl::OkStatus();
}

}  // namespace retroinfer
