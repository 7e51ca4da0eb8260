#include "gpu_worker/engine/plan_runner.h"

#include <algorithm>
#include <utility>

#include "common/clock/steady_now.h"
#include "gpu_worker/engine/request_errors.h"
#include "spdlog/spdlog.h"

namespace retroinfer {

PlanRunner::PlanRunner(Parts parts)
    : parts_(std::move(parts)),
      live_(*parts_.live),
      executor_(*parts_.executor),
      exchange_(*parts_.exchange),
      delivery_(*parts_.delivery),
      counters_(*parts_.counters) {
  batch_.reserve(static_cast<size_t>(executor_.sizes().max_batch));
  rows_.reserve(static_cast<size_t>(executor_.sizes().max_batch));
}

LiveRequest* PlanRunner::Find(uint64_t sequence_id) {
  const auto found = std::find_if(live_.begin(), live_.end(), [sequence_id](const auto& live) {
    return live->sequence.id() == sequence_id;
  });
  return found == live_.end() ? nullptr : found->get();
}

LiveRequest* PlanRunner::FindIn(RequestPhase phase, uint64_t sequence_id) {
  LiveRequest* const live = Find(sequence_id);
  return live != nullptr && live->phase == phase ? live : nullptr;
}

// --- What is planned

void PlanRunner::CarryOut(const StepPlan& plan) {
  const auto each_in = [this](RequestPhase phase, const std::vector<uint64_t>& ids,
                              void (PlanRunner::*method)(LiveRequest&)) {
    for (const uint64_t id : ids) {
      if (LiveRequest* const live = FindIn(phase, id); live != nullptr) (this->*method)(*live);
    }
  };
  for (const uint64_t id : plan.let_go) LetGo(id);
  for (const StepPlan::Ending& ending : plan.end) CarryOutEnding(ending);
  each_in(RequestPhase::kReserving, plan.grant, &PlanRunner::Grant);
  each_in(RequestPhase::kReserving, plan.put_back, &PlanRunner::PutBack);
  each_in(RequestPhase::kLeaving, plan.leave, &PlanRunner::FinishSuspending);
  each_in(RequestPhase::kReturning, plan.rejoin, &PlanRunner::FinishResuming);
  each_in(RequestPhase::kDecoding, plan.suspend, &PlanRunner::Suspend);
  each_in(RequestPhase::kDecoding, plan.grow, &PlanRunner::Grow);
  each_in(RequestPhase::kSuspended, plan.resume, &PlanRunner::Resume);
  for (const uint64_t id : plan.admit) {
    const bool asks_store = std::find(plan.ask.begin(), plan.ask.end(), id) != plan.ask.end();
    if (LiveRequest* const live = FindIn(RequestPhase::kWaiting, id)) Admit(*live, asks_store);
  }
  for (const StepPlan::Group& group : plan.begin) BeginGroup(group);
  for (const StepPlan::Pass& pass : plan.passes) RunPass(pass);
  for (const StepPlan::Measure& measure : plan.measure) MeasurePrompts(measure);
  each_in(RequestPhase::kSettling, plan.finish, &PlanRunner::FinishPrompt);
  RunDecodeStep(plan);
}

// Frees all that the request holds.
void PlanRunner::LetGo(uint64_t id) {
  LiveRequest& live = *Find(id);
  if (live.sequence.copy.has_value()) executor_.FreeCopy(live.sequence);
  executor_.LeaveLanes(live.sequence);
  exchange_.Release(live);
  executor_.memory().Free(live.sequence.kv);
  parts_.tenants->Release(live.tenant);
  parts_.prefixes->Release(live.sequence.kv.prefix);
  std::erase_if(live_, [&live](const auto& one) { return one.get() == &live; });
}

void PlanRunner::CarryOutEnding(const StepPlan::Ending& ending) {
  LiveRequest& live = *Find(ending.id);
  switch (ending.reason) {
    case StepPlan::EndReason::kAborted:
      return delivery_.End(live, FinishReason::kCancelled);
    case StepPlan::EndReason::kLate:
      return delivery_.End(live, FinishReason::kDeadline);
    case StepPlan::EndReason::kUnreachable:
      return delivery_.End(live, FinishReason::kRefused,
                           DeadlineUnreachableError(absl::Seconds(ending.seconds),
                                                    live.request.deadline - common::SteadyNow()));
    case StepPlan::EndReason::kFailed:
      return delivery_.End(live, FinishReason::kError, live.failure);
    case StepPlan::EndReason::kArenaFull:
      return delivery_.End(live, FinishReason::kError, live.arena_error);
  }
}

// Reserves the device memory that the plan has counted. If an earlier action of this plan took that
// memory, the request stays kWaiting, for the next plan.
void PlanRunner::Admit(LiveRequest& live, bool asks_store) {
  Sequence& sequence = live.sequence;
  if (!executor_.memory().Reserve(live.demand.target(), sequence.kv)) return;
  live.demand.OnGranted();
  const ExecutorParts& parts = executor_.parts();
  auto sampling = SamplingState::Create(*parts.device, *parts.stream, live.request.sampling,
                                        live.request.prompt, parts_.eos_token_ids,
                                        parts.model->config().vocab_size);
  if (!sampling.ok()) return delivery_.End(live, FinishReason::kError, sampling.status());
  sequence.sampling = *std::move(sampling);
  live.answer = StoreAnswer::kNone;
  live.phase = RequestPhase::kReserving;
  if (exchange_.AskForExtents(live)) return;
  // A request that needs no extents is read without the store where there is none.
  if (!asks_store || !exchange_.AskForRows(live)) live.phase = RequestPhase::kReady;
}

void PlanRunner::Grant(LiveRequest& live) {
  SequenceKv& kv = live.sequence.kv;
  executor_.memory().ShareIndexes(kv);
  live.phase = RequestPhase::kReady;
  live.takes_in_order = live.sequence.policy->TakesInOrder(kv);
  counters_.prefix_cache_queries_tokens += static_cast<uint64_t>(kv.prompt_tokens);
  counters_.prefix_cache_hits_tokens += static_cast<uint64_t>(kv.cached_tokens());
}

// The arena is full: the request gives its blocks back, so that requests without extents can use
// them, and waits again.
void PlanRunner::PutBack(LiveRequest& live) {
  live.asked_store = false;
  live.arena_was_full = true;
  executor_.memory().Free(live.sequence.kv);
  live.demand.OnReleased(0);
  live.phase = RequestPhase::kWaiting;
}

void PlanRunner::Grow(LiveRequest& live) {
  if (executor_.memory().Grow(live.Asked(), live.sequence.kv)) live.demand.OnGranted();
}

// --- Suspension: the sequence keeps its extents and its sampling state, and gives up blocks, slots
// and its row of the tables. A request that ends meanwhile waits in kEnded for the copies.

void PlanRunner::Suspend(LiveRequest& live) {
  Sequence& sequence = live.sequence;
  const SuspendedKv& suspended = *executor_.parts().suspended;
  if (suspended.BlocksOf(sequence.kv) > suspended.num_free()) return;
  if (const absl::Status status = executor_.CopyOut(sequence); !status.ok()) {
    return delivery_.End(live, FinishReason::kError, status);
  }
  live.phase = RequestPhase::kLeaving;
  live.suspended_since = common::SteadyNow();
  ++counters_.preemptions;
  spdlog::info("request {}: preempted after {} tokens, for the {}. time; {} blocks are copied",
               live.request.request_id, live.num_generated, sequence.num_suspensions,
               sequence.copy->host_blocks.size());
}

// Reserves the device memory that the plan has counted.
void PlanRunner::Resume(LiveRequest& live) {
  if (!executor_.memory().Reserve(live.demand.target(), live.sequence.kv)) return;
  live.demand.OnGranted();
  live.phase = RequestPhase::kReturning;
  live.resident_since = common::SteadyNow();
  ++counters_.resumptions;
  if (const absl::Status status = executor_.CopyBack(live.sequence); !status.ok()) {
    return delivery_.End(live, FinishReason::kError, status);
  }
  spdlog::info("request {}: resumed after {}", live.request.request_id,
               absl::FormatDuration(common::SteadyNow() - live.suspended_since));
}

void PlanRunner::LogCopy(const LiveRequest& live, const char* way, absl::Time begun) const {
  const double bytes = static_cast<double>(live.sequence.copy->host_blocks.size() *
                                           executor_.parts().suspended->block_bytes());
  const double seconds = absl::ToDoubleSeconds(common::SteadyNow() - begun);
  spdlog::info("request {}: {:.0f} MB copied {} the host in {:.2f} ms, {:.1f} GB/s",
               live.request.request_id, bytes * 1e-6, way, 1e3 * seconds,
               bytes / std::max(seconds, 1e-6) * 1e-9);
}

void PlanRunner::FinishSuspending(LiveRequest& live) {
  LogCopy(live, "to", live.suspended_since);
  executor_.memory().Free(live.sequence.kv);
  live.demand.OnReleased(live.sequence.length());
  live.phase = RequestPhase::kSuspended;
}

void PlanRunner::FinishResuming(LiveRequest& live) {
  LogCopy(live, "from", live.resident_since);
  executor_.FreeCopy(live.sequence);
  live.phase = RequestPhase::kDecoding;
  live.resident_since = live.progressed = common::SteadyNow();
}

// --- Prompts

void PlanRunner::BeginGroup(const StepPlan::Group& group) {
  std::vector<LiveRequest*> requests;
  std::vector<Sequence*> members;
  for (const uint64_t id : group.members) {
    // A request that the plan admits and begins may have ended in Admit().
    LiveRequest* const live = FindIn(RequestPhase::kReady, id);
    if (live == nullptr) continue;
    live->phase = RequestPhase::kReading;
    if (live->prefill_begun == absl::Time()) live->prefill_begun = common::SteadyNow();
    requests.push_back(live);
    members.push_back(&live->sequence);
  }
  if (members.empty()) return;
  if (const absl::Status status = executor_.BeginGroup(group.lane, members); !status.ok()) {
    for (LiveRequest* const live : requests) delivery_.End(*live, FinishReason::kError, status);
    return;
  }
  parts_.observation->GroupBegan(group.lane, requests);
}

void PlanRunner::RunPass(const StepPlan::Pass& pass) {
  // A group may have ended, or have lost a member in BeginGroup(), since the pass was planned: then
  // the rows wait for a new plan.
  if (!executor_.CanRun(pass)) return;
  const PrefillLane& lane = executor_.lane(pass.lane);
  const absl::StatusOr<bool> is_computed = executor_.RunPass(pass);
  if (!is_computed.ok()) return EndGroup(lane, is_computed.status());
  for (const auto& [kv, failure] : executor_.TakeFailures(pass.lane)) {
    delivery_.End(*Find(kv->sequence_id), FinishReason::kError, failure);
  }
  const absl::Time now = common::SteadyNow();
  for (const SequenceKv* const kv : lane.Live()) {
    LiveRequest& live = *Find(kv->sequence_id);
    live.progressed = now;
    const int64_t done = lane.processed_tokens(*kv);
    // The sink is computed again for each later part of a prompt: it is not counted again.
    const int64_t more = std::max<int64_t>(0, done - live.prompt_tokens_done);
    counters_.prompt_tokens += static_cast<uint64_t>(more);
    live.prompt_tokens_done += more;
    delivery_.ReportProgress(live, done);
  }
  if (*is_computed) FinishGroup(pass.lane);
}

void PlanRunner::EndGroup(const PrefillLane& lane, const absl::Status& status) {
  for (const SequenceKv* const kv : lane.Live()) {
    delivery_.End(*Find(kv->sequence_id), FinishReason::kError, status);
  }
}

// The group is computed: prompts that end with it get their first tokens, others their next part.
void PlanRunner::FinishGroup(size_t lane_index) {
  const PrefillLane& lane = executor_.lane(lane_index);
  std::vector<LiveRequest*> requests;
  std::vector<Executor::FirstTokens> firsts;
  for (const SequenceKv* const kv : lane.Live()) {
    LiveRequest& live = *Find(kv->sequence_id);
    if (lane.FinishesPrompt(*kv)) {
      requests.push_back(&live);
      Executor::FirstTokens& first = firsts.emplace_back();
      first.sequence = &live.sequence;
      if (live.forced.has_value()) first.targets = live.forced->Firsts();
    } else if (live.sequence.policy->TakesInOrder(*kv)) {
      executor_.LeaveLanes(live.sequence);
      live.phase = RequestPhase::kReady;
      exchange_.Save(live, kv->num_tokens);
    } else {
      live.phase = RequestPhase::kSettling;
    }
  }
  if (requests.empty()) return;
  if (const absl::Status status = executor_.SampleFirsts(firsts); !status.ok()) {
    return EndGroup(lane, status);
  }
  const absl::Time now = common::SteadyNow();
  for (size_t i = 0; i < requests.size(); ++i) {
    LiveRequest& live = *requests[i];
    live.phase = RequestPhase::kSettling;
    live.first_token = live.last_token = now;
    live.first = std::move(firsts[i].drawn);
    if (live.forced.has_value()) live.forced->SetFirsts(std::move(firsts[i].measured));
    parts_.inbox->PromptRead(live.request.request_id);
  }
  parts_.publish();  // a client that sees a first token sees a request that runs
  for (LiveRequest* const live : requests) delivery_.EmitFirst(*live);
}

// Measures rows of the prompts of a lane's group, in order, as many at a time as a batch has.
void PlanRunner::MeasurePrompts(const StepPlan::Measure& measure) {
  const PrefillLane& lane = executor_.lane(measure.lane);
  if (!lane.busy() || lane.layer() != executor_.sizes().geometry.num_model_layers()) return;
  int64_t left = measure.num_rows;
  for (const SequenceKv* const kv : lane.Live()) {
    LiveRequest& live = *Find(kv->sequence_id);
    Sequence& sequence = live.sequence;
    while (left > 0 && live.phase != RequestPhase::kEnded && sequence.PromptRowsLeft() > 0) {
      const int64_t rows =
          std::min({left, int64_t{executor_.sizes().max_batch}, sequence.PromptRowsLeft()});
      left -= rows;
      const auto measured = executor_.MeasurePrompt(measure.lane, sequence, rows);
      if (!measured.ok()) {
        delivery_.End(live, FinishReason::kError, measured.status());
        break;
      }
      live.progressed = common::SteadyNow();
      delivery_.EmitPrompt(live, *measured);
    }
  }
}

// The background has finished a part of the prompt, or all of it: the request decodes from now on.
void PlanRunner::FinishPrompt(LiveRequest& live) {
  if (!live.has_first_token()) {
    executor_.EndPart(live.sequence);
    live.phase = RequestPhase::kReady;
    return;
  }
  if (live.sequence.PromptRowsLeft() > 0) return;
  const absl::StatusOr<bool> is_finished = executor_.FinishPrefill(live.sequence);
  if (!is_finished.ok()) return delivery_.End(live, FinishReason::kError, is_finished.status());
  if (!*is_finished) return;
  live.phase = RequestPhase::kDecoding;
  live.resident_since = common::SteadyNow();
  // The prompt does not need the rows that it has read again, unless the request holds extents:
  // then the rows are released with the extents. The store evicts what was released first, and a
  // later turn of the conversation needs both.
  if (!live.asked_store) exchange_.ReleaseRows(live);
  const int64_t whole_blocks = (live.sequence.kv.prompt_tokens - kSinkTokens) / kDenseBlockTokens;
  exchange_.Save(live, kSinkTokens + whole_blocks * kDenseBlockTokens);
}

// --- Decode steps

void PlanRunner::RunDecodeStep(const StepPlan& plan) {
  batch_.clear();
  for (const uint64_t id : plan.decode) {
    LiveRequest* const live = FindIn(RequestPhase::kDecoding, id);
    if (live == nullptr || live->demand.FreeTokens(live->sequence.length()) <= 0) continue;
    batch_.push_back(live);
  }
  if (batch_.empty()) return;
  // DecodeStep::Run requires the rows of one policy, and of one sequence, to be neighbours.
  std::sort(batch_.begin(), batch_.end(), [](const LiveRequest* a, const LiveRequest* b) {
    return std::pair(a->sequence.policy, a->sequence.id()) <
           std::pair(b->sequence.policy, b->sequence.id());
  });
  rows_.clear();
  int64_t ahead = 0;
  for (size_t i = 0; i < batch_.size(); ++i) {
    ahead = i > 0 && batch_[i - 1] == batch_[i] ? ahead + 1 : 0;
    rows_.push_back(RowOf(*batch_[i], ahead));
  }
  const absl::StatusOr<std::span<const StepResult>> results = executor_.Step(rows_);
  if (!results.ok()) {
    spdlog::error("decode step {}: {}", executor_.counters().decode_steps,
                  results.status().ToString());
    for (LiveRequest* const live : batch_)
      delivery_.End(*live, FinishReason::kError, results.status());
    return;
  }
  for (size_t i = 0; i < batch_.size(); ++i) {
    batch_[i]->kv_bytes_read += (*results)[i].bytes.read;
    batch_[i]->kv_bytes_full += (*results)[i].bytes.full;
    batch_[i]->unseen.Add((*results)[i].unseen);
  }
  const absl::Time now = common::SteadyNow();
  for (size_t i = 0; i < batch_.size(); ++i) TakeToken(*batch_[i], *(*results)[i].token, now);
}

StepRow PlanRunner::RowOf(LiveRequest& live, int64_t ahead) {
  Sequence& sequence = live.sequence;
  StepRow row{.sequence = &sequence.kv,
              .policy = sequence.policy,
              .sampling = &*sequence.sampling,
              .token = live.next_token,
              .position = sequence.kv.num_tokens + ahead};
  if (live.forced.has_value()) {
    row.token = live.forced->Fed(ahead);
    row.task = StepRow::Task::kMeasure;
    row.target = live.forced->Told(ahead);
  }
  return row;
}

void PlanRunner::TakeToken(LiveRequest& live, const OutputToken& token, absl::Time now) {
  if (live.phase != RequestPhase::kDecoding) return;  // an earlier row has ended it
  live.last_token = live.progressed = now;
  delivery_.Emit(live, token);
  if (live.phase != RequestPhase::kDecoding || !live.demand.OnGrown(live.sequence.length())) return;
  // Gives blocks back that the request will not need any more: what it holds may then be all that
  // it would ask for.
  executor_.memory().GiveBack(live.demand.peak().dense, live.sequence.kv);
  if (live.Asked() == KvBlocks()) live.demand.OnGranted();
}

}  // namespace retroinfer
