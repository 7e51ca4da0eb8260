// What the scheduler is told each round, and how its plan is carried out. Nothing is decided here:
// a plan that was made for one worker could be carried out by several that hold parts of the model.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/time/clock.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "gpu_worker/engine/local_engine.h"
#include "gpu_worker/engine/scheduler/lane_rows.h"
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

}  // namespace

// --- What it is told

void LocalEngine::Observe() {
  if (const absl::Status status = clock_->Poll(); !status.ok()) {
    LogLook("device", status);
  }
  if (forget_costs_.exchange(false)) scheduler_->costs() = CostModel();
  input_.now = ToSeconds(absl::Now());
  input_.aborts_all = cancel_all_;
  CompareReady();
  input_.requests.clear();
  for (const auto& live : live_) {
    if (live->state == RequestState::kEnding) continue;
    RequestDescription description;
    if (Describe(*live, description)) input_.requests.push_back(description);
  }
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

void LocalEngine::LogLook(const char* at, const absl::Status& status) {
  if (const auto suppressed = device_log_.Admit(absl::Now()); suppressed.has_value()) {
    spdlog::error("looking at the {}: {} ({} times since)", at, status.ToString(), *suppressed + 1);
  }
}

void LocalEngine::TellExpectedWait() {
  constexpr absl::Duration kInterval = absl::Milliseconds(50);
  const absl::Time now = absl::Now();
  if (now < next_expected_wait_) return;
  next_expected_wait_ = now + kInterval;
  inbox_->SetExpectedWait(absl::Seconds(scheduler_->ExpectedWait(input_)));
}

// Returns false if the request ended instead.
bool LocalEngine::Describe(LiveRequest& live, RequestDescription& description) {
  if (!live.is_in_lane) live.kv.part = live.policy->NextPart(live.kv, lanes_[0]->max_tokens());
  const PromptPart& part = live.kv.part;
  description = {.id = live.kv.sequence_id,
                 .phase = PhaseOf(live),
                 .arrival = ToSeconds(live.submitted),
                 .priority = live.request.priority,
                 .tenant = live.tenant,
                 .prompt_tokens = part.num_context + part.end - part.begin,
                 .cached_tokens = part.num_context + live.kv.cached_tokens(),
                 .prefix = live.prefix,
                 .common_tokens = live.common_tokens,
                 .context = live.kv.num_tokens,
                 .dense_blocks = live.need.dense_blocks,
                 .meta_blocks = live.need.meta_blocks,
                 .wants_extents = !live.need.segment_tokens.empty(),
                 .takes_in_order = live.takes_in_order,
                 .has_more_parts = part.end < live.kv.prompt_tokens};
  description.asks_store =
      description.wants_extents || (!live.kv.prefix.names.empty() && parts_.store->attached());
  description.deadline = ToSeconds(live.request.deadline);
  description.is_aborted = live.is_aborted;
  // Its rows stay in the lane until they are measured.
  if (live.state == RequestState::kIndexing && live.PromptRowsLeft() == 0) {
    const absl::StatusOr<bool> taken = live.policy->PromptTaken(live.kv);
    if (!taken.ok()) {
      End(live, FinishReason::kError, taken.status());
      return false;
    }
    description.is_settled = *taken;
  }
  description.arena_is_full = live.state == RequestState::kWaiting && live.arena_was_full &&
                              live.releases_when_asked == num_releases_;
  description.suspended_since = ToSeconds(live.suspended_since);
  if (live.state == RequestState::kLeaving) {
    description.meta_blocks = parts_.memory->OwnMetaBlocks(live.kv);
  }
  if (live.state != RequestState::kDecoding) return true;
  if (live.forced.has_value()) {
    description.more_rows = std::min(live.forced->left(), live.policy->RowsTogether(live.kv)) - 1;
  }
  if (parts_.suspended != nullptr && !DescribeSuspension(live, description)) return false;
  const absl::StatusOr<bool> ready = live.policy->ReadyForStep(live.kv);
  if (!ready.ok()) {
    End(live, FinishReason::kError, ready.status());
    return false;
  }
  description.decoding_since = ToSeconds(live.first_token);
  description.can_decode = *ready;
  description.goes_live = *ready && live.policy->GoesLive(live.kv);
  return true;
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

// What it would take to let a decoding request step aside. Returns false if it ended instead.
bool LocalEngine::DescribeSuspension(LiveRequest& live, RequestDescription& description) {
  const absl::StatusOr<bool> can_suspend = live.policy->CanStepAside(live.kv);
  if (!can_suspend.ok()) {
    End(live, FinishReason::kError, can_suspend.status());
    return false;
  }
  description.can_suspend = *can_suspend;
  description.meta_blocks = parts_.memory->OwnMetaBlocks(live.kv);
  description.suspended_blocks = SuspendedKv::BlocksOf(live.kv);
  description.num_suspensions = live.num_suspensions;
  description.resident_since = ToSeconds(live.resident_since);
  description.tokens_left = live.request.sampling.max_tokens - live.num_generated;
  return true;
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

// --- What it plans

void LocalEngine::CarryOut(const StepPlan& plan) {
  for (const StepPlan::Ending& ending : plan.end) {
    // What aborts a call is often its own deadline.
    End(*Find(ending.id), ending.is_late ? FinishReason::kDeadline : FinishReason::kCancelled);
  }
  for (const uint64_t id : plan.suspend) Suspend(id);
  for (const uint64_t id : plan.resume) Resume(id);
  for (const uint64_t id : plan.admit) Reserve(*Find(id));
  for (const StepPlan::Group& group : plan.begin) BeginGroup(group);
  for (const StepPlan::Pass& pass : plan.passes) RunPass(pass);
  for (const StepPlan::Measure& measure : plan.measure) MeasurePrompt(measure);
  for (const uint64_t id : plan.finish) {
    if (LiveRequest* const live = Find(id); live != nullptr) FinishPrompt(*live);
  }
  RunDecodeStep(plan);
}

void LocalEngine::BeginGroup(const StepPlan::Group& group) {
  PrefillLane& lane = *lanes_[group.lane];
  LaneDescription& description = input_.lanes[group.lane];
  std::vector<PrefillLane::Member> members;
  description.members.clear();
  for (const uint64_t id : group.members) {
    LiveRequest* const live = Find(id);
    // One that the scheduler saw may have ended as it got its memory.
    if (live == nullptr || live->state != RequestState::kPrefill) continue;
    RequestDescription request;
    if (!Describe(*live, request)) continue;
    description.members.push_back(MemberOf(request));
    live->is_in_lane = true;
    if (live->prefill_begun == absl::Time()) live->prefill_begun = absl::Now();
    members.push_back({.prompt = live->request.prompt,
                       .sequence = &live->kv,
                       .policy = live->policy,
                       .keeps_all_rows = live->request.num_prompt_logprobs >= 0});
  }
  if (members.empty()) return;
  clock_->Begin();
  if (const absl::Status status = lane.Begin(members); !status.ok()) {
    for (const PrefillLane::Member& member : members) {
      End(*Find(member.sequence->sequence_id), FinishReason::kError, status);
    }
    return;
  }
  DescribeRuns(lane, description);
}

// What the members' rows are, now that it is known what they have in common.
void LocalEngine::DescribeRuns(const PrefillLane& lane, LaneDescription& description) {
  description.runs.clear();
  for (const PrefillRun& run : lane.runs()) {
    const LaneDescription::Member& member = description.members[run.members.front()];
    LaneDescription::Run& described = description.runs.emplace_back();
    described = {.rows = run.num_rows, .depth = run.first_position, .tenant = member.tenant};
    const SequenceKv& sequence = Find(member.id)->kv;
    for (const SegmentRead& read : run.reads) {
      described.cached += sequence.prefix.segments[read.segment].num_tokens;
    }
    if (sequence.part.num_context == 0) continue;
    // Of a part, what it needs of the ones before it.
    described.depth += sequence.part.num_context - sequence.part.begin;
    described.cached = sequence.part.num_context;
  }
}

void LocalEngine::RunPass(const StepPlan::Pass& pass) {
  PrefillLane& lane = *lanes_[pass.lane];
  // A group may have ended, or have lost a member as it began: its other rows wait for a new plan.
  if (!lane.busy() || lane.layer() != pass.layer || lane.next_row() != pass.first_row ||
      lane.next_row() + pass.num_rows > lane.num_rows()) {
    return;
  }
  clock_->Begin();
  const PrefillLane::Counters before = lane.counters();
  const absl::StatusOr<PrefillLane::Outcome> outcome =
      lane.RunPass(pass.num_rows, sampler_->logits(static_cast<int32_t>(lane.Live().size())));
  const absl::Status status = outcome.ok() ? clock_->Enqueued(pass.work) : outcome.status();
  if (!status.ok()) return EndGroup(lane, status);
  for (const auto& [sequence, failure] : lane.TakeFailures()) {
    End(*Find(sequence->sequence_id), FinishReason::kError, failure);
  }
  EngineStats& counters = stats_.counters();
  counters.prefix_bytes_read += lane.counters().staged_bytes - before.staged_bytes;
  counters.prefix_bytes_shared += lane.counters().shared_bytes - before.shared_bytes;
  counters.prefill_rows_shared += lane.counters().shared_rows - before.shared_rows;
  const absl::Time now = absl::Now();
  for (const SequenceKv* const sequence : lane.Live()) {
    LiveRequest& live = *Find(sequence->sequence_id);
    live.progressed = now;
    const int64_t done = lane.processed_tokens(*sequence);
    counters.prompt_tokens += static_cast<uint64_t>(done - live.prompt_tokens_done);
    live.prompt_tokens_done = done;
  }
  ReportProgress(lane);
  if (*outcome == PrefillLane::Outcome::kDone) FinishGroup(lane);
}

void LocalEngine::EndGroup(PrefillLane& lane, const absl::Status& status) {
  for (const SequenceKv* const sequence : lane.Live()) {
    End(*Find(sequence->sequence_id), FinishReason::kError, status);
  }
}

// The parts of a group are computed: first tokens of the prompts that end with them.
void LocalEngine::FinishGroup(PrefillLane& lane) {
  std::vector<LiveRequest*> members;
  for (const SequenceKv* const sequence : lane.Live()) {
    LiveRequest* const live = Find(sequence->sequence_id);
    if (lane.FinishesPrompt(*sequence)) {
      members.push_back(live);
    } else {
      live->is_in_lane = false;  // it comes back for the next part
      lane.Leave(*sequence);
    }
  }
  if (members.empty()) return;
  const auto tokens = SampleFirsts(members);
  clock_->Synchronized({});
  if (!tokens.ok()) return EndGroup(lane, tokens.status());
  const absl::Time now = absl::Now();
  for (LiveRequest* const live : members) {
    live->state = RequestState::kIndexing;
    live->first_token = live->last_token = now;
    inbox_->PromptRead(live->request.request_id);
  }
  UpdateStats();  // who sees a first token sees a request that runs
  for (size_t i = 0; i < members.size(); ++i) {
    members[i]->first = (*tokens)[i];
    EmitFirst(*members[i]);
  }
}

// Its prompt is done with: it decodes from now on. One that has ended, or whose rows wait to be
// measured, does not.
void LocalEngine::FinishPrompt(LiveRequest& live) {
  if (live.state != RequestState::kIndexing || live.PromptRowsLeft() > 0) return;
  const absl::StatusOr<bool> done = live.policy->FinishPrefill(live.kv);
  if (!done.ok()) return End(live, FinishReason::kError, done.status());
  if (!*done) return;
  for (const auto& lane : lanes_) lane->Leave(live.kv);
  live.state = RequestState::kDecoding;
  live.resident_since = absl::Now();
  if (live.takes_only_cached && live.asked_store) {
    parts_.store->Release(live.kv.sequence_id);
    ++num_releases_;
    live.asked_store = false;
  }
}

void LocalEngine::ReportProgress(const PrefillLane& lane) {
  for (const SequenceKv* const sequence : lane.Live()) {
    LiveRequest& live = *Find(sequence->sequence_id);
    const int64_t done = lane.processed_tokens(*sequence);
    if (!live.request.return_progress || done == live.prompt_tokens_told) continue;
    live.prompt_tokens_told = done;
    live.sink->OnProgress({.total_tokens = static_cast<int64_t>(live.request.prompt.size()),
                           .cached_tokens = live.kv.cached_tokens(),
                           .processed_tokens = done,
                           .elapsed = absl::Now() - live.prefill_begun});
  }
}

void LocalEngine::EndBatch(const absl::Status& status) {
  spdlog::error("decode step {}: {}", stats_.counters().decode_steps, status.ToString());
  for (LiveRequest* const live : batch_) End(*live, FinishReason::kError, status);
}

void LocalEngine::RunDecodeStep(const StepPlan& plan) {
  batch_.clear();
  Work work{.steps = 1};
  for (const uint64_t id : plan.decode) {
    LiveRequest* const live = Find(id);
    if (live == nullptr || live->state != RequestState::kDecoding) continue;
    batch_.push_back(live);
    work.step_rows += 1;
    work.step_context += static_cast<double>(live->kv.num_tokens);
  }
  if (batch_.empty()) return;
  clock_->Begin();
  if (const absl::Status status = parts_.cache->BeginStep(); !status.ok()) {
    return EndBatch(status);
  }
  const absl::StatusOr<std::span<const OutputToken>> tokens = decode_step_->Run(std::span(batch_));
  EngineStats& counters = stats_.counters();
  ++counters.decode_steps;
  const DecodeStep::Counters step = decode_step_->counters();
  counters.decode_host_seconds = static_cast<double>(step.host_ns) * 1e-9;
  counters.decode_graphs_recorded = step.graphs.recorded;
  counters.decode_graphs_launched = step.graphs.launched;
  if (!tokens.ok()) {
    return EndBatch(tokens.status());
  }
  clock_->Synchronized(work);
  const absl::Time now = absl::Now();
  for (size_t i = 0; i < batch_.size(); ++i) {
    LiveRequest& live = *batch_[i];
    if (live.state != RequestState::kDecoding) continue;  // an earlier row has ended it
    live.last_token = live.progressed = now;
    if (live.forced.has_value()) {
      EmitMeasured(live, (*tokens)[i]);
    } else {
      Emit(live, (*tokens)[i]);
    }
  }
}

}  // namespace retroinfer
