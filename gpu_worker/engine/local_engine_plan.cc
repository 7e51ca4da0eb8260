// How a plan is carried out. Nothing is decided here, and nothing is looked at: a plan that was
// made for one worker could be carried out by several that hold parts of the model.
#include <algorithm>
#include <utility>

#include "common/clock/steady_now.h"
#include "common/log/check.h"
#include "gpu_worker/engine/local_engine.h"
#include "gpu_worker/engine/request_errors.h"
#include "gpu_worker/engine/scheduler/lane_rows.h"
#include "spdlog/spdlog.h"

namespace retroinfer {

void LocalEngine::CarryOut(const StepPlan& plan) {
  if (const absl::Status status = parts_.cache->CarryOut(plan.cache); !status.ok()) {
    LogCache(status);
  }
  LetGo(plan.let_go);
  for (const StepPlan::Ending& ending : plan.end) CarryOutEnding(ending);
  for (const uint64_t id : plan.grant) Grant(*Find(id));
  for (const uint64_t id : plan.put_back) PutBack(*Find(id));
  for (const uint64_t id : plan.leave) Leave(*Find(id));
  for (const uint64_t id : plan.rejoin) Rejoin(*Find(id));
  for (const uint64_t id : plan.suspend) Suspend(id);
  for (const uint64_t id : plan.grow) Grow(id);
  for (const uint64_t id : plan.resume) Resume(id);
  for (const uint64_t id : plan.admit) {
    Reserve(*Find(id), std::find(plan.ask.begin(), plan.ask.end(), id) != plan.ask.end());
  }
  for (const StepPlan::Group& group : plan.begin) BeginGroup(group);
  for (const StepPlan::Pass& pass : plan.passes) RunPass(pass);
  for (const StepPlan::Measure& measure : plan.measure) MeasurePrompt(measure);
  for (const uint64_t id : plan.finish) {
    if (LiveRequest* const live = Find(id); live != nullptr) FinishPrompt(*live);
  }
  RunDecodeStep(plan);
}

void LocalEngine::CarryOutEnding(const StepPlan::Ending& ending) {
  LiveRequest& live = *Find(ending.id);
  switch (ending.reason) {
    case StepPlan::EndReason::kAborted:
      return End(live, FinishReason::kCancelled);
    case StepPlan::EndReason::kLate:
      return End(live, FinishReason::kDeadline);
    case StepPlan::EndReason::kUnreachable:
      return End(live, FinishReason::kRefused,
                 DeadlineUnreachableError(absl::Seconds(ending.seconds),
                                          live.request.deadline - common::SteadyNow()));
    case StepPlan::EndReason::kFailed:
      return End(live, FinishReason::kError, live.failure);
    case StepPlan::EndReason::kNoRoom:
      return End(live, FinishReason::kError, live.no_room);
  }
}

// What the requests held comes free.
void LocalEngine::LetGo(std::span<const uint64_t> ids) {
  for (const uint64_t id : ids) {
    LiveRequest& live = *Find(id);
    if (live.copy.has_value()) parts_.suspended->Free(*live.copy);
    for (const auto& lane : lanes_) lane->Leave(live.kv);
    if (live.asked_store) {
      parts_.store->Release(id);
      ++num_releases_;
    }
    ReleaseRows(live);
    parts_.memory->Free(live.kv);
    tenants_.Release(live.tenant);
    prefixes_.Release(live.kv.prefix);
    std::erase_if(live_, [&live](const auto& one) { return one.get() == &live; });
  }
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
    description.members.push_back(MemberOf(DescribePrompt(*live)));
    live->is_in_lane = true;
    if (live->prefill_begun == absl::Time()) live->prefill_begun = common::SteadyNow();
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
    for (const CachedRead& read : run.reads) {
      described.cached += sequence.cached[read.index].num_tokens();
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
  const absl::Time now = common::SteadyNow();
  for (const SequenceKv* const sequence : lane.Live()) {
    LiveRequest& live = *Find(sequence->sequence_id);
    live.progressed = now;
    const int64_t done = lane.processed_tokens(*sequence);
    // The sink of a prompt's later part is computed again.
    counters.prompt_tokens +=
        static_cast<uint64_t>(std::max<int64_t>(0, done - live.prompt_tokens_done));
    live.prompt_tokens_done = std::max(live.prompt_tokens_done, done);
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
    } else if (live->policy->TakesInOrder(*sequence)) {
      live->is_in_lane = false;  // it comes back for the next part
      lane.Leave(*sequence);
      SaveBlocks(*live, live->kv.num_tokens);
    } else {
      live->part_is_read = true;  // it does when the background has done with this one
    }
  }
  if (members.empty()) return;
  const auto tokens = SampleFirsts(members);
  clock_->Synchronized({});
  if (!tokens.ok()) return EndGroup(lane, tokens.status());
  const absl::Time now = common::SteadyNow();
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
  if (live.state == RequestState::kPrefill && live.part_is_read) {
    live.policy->EndPart(live.kv);
    for (const auto& lane : lanes_) lane->Leave(live.kv);
    live.part_is_read = live.is_in_lane = false;
    return;
  }
  if (live.state != RequestState::kIndexing || live.PromptRowsLeft() > 0) return;
  const absl::StatusOr<bool> done = live.policy->FinishPrefill(live.kv);
  if (!done.ok()) return End(live, FinishReason::kError, done.status());
  if (!*done) return;
  for (const auto& lane : lanes_) lane->Leave(live.kv);
  live.state = RequestState::kDecoding;
  live.resident_since = common::SteadyNow();
  // What it has read it does not need again. A conversation's last turn is used together with what
  // this one leaves: released before that, it would be evicted first, and what follows it be lost.
  if (!live.asked_store) ReleaseRows(live);
  const int64_t whole_blocks = (live.kv.prompt_tokens - kSinkTokens) / kDenseBlockTokens;
  SaveBlocks(live, kSinkTokens + whole_blocks * kDenseBlockTokens);
}

// --- What later requests find

void LocalEngine::ReleaseRows(LiveRequest& live) {
  if (live.rows_id == 0) return;
  parts_.store->Release(live.rows_id);
  ++num_releases_;
  live.rows_id = 0;
}

// Saves what its window holds of tokens up to `end`, as far as it has names and is not saved yet.
void LocalEngine::SaveBlocks(LiveRequest& live, int64_t end) {
  const SequenceKv& kv = live.kv;
  if (saver_ == nullptr || !kv.lineage.names_any() || kv.dense_blocks.empty()) return;
  if (!parts_.store->attached() || parts_.store->memory_taken()) return;
  if (live.saved_begin != kv.window_begin) live.saved_end = kv.window_begin;
  live.saved_begin = kv.window_begin;
  size_t num_segments = 0;
  for (int64_t at = kSinkTokens; at < kv.window_begin; ++num_segments) {
    at += kv.extents[num_segments].num_tokens;
  }
  std::vector<NamedBlock> blocks =
      kv.lineage.Blocks(num_segments, kv.extents, kv.window_begin, end, live.saved_end);
  if (blocks.empty()) return;
  live.saved_end = std::max(live.saved_end, end);
  const uint64_t id = next_claim_id_++;
  saver_->Save(kv, id, std::move(blocks),
               [inbox = inbox_, id](absl::StatusOr<std::vector<Extent>> extents) {
                 inbox->Answer({id, std::move(extents)});
               });
}

// Of a request that ends with its prompt computed, all that it leaves.
void LocalEngine::SaveAtEnd(LiveRequest& live) {
  if (live.state != RequestState::kDecoding && live.state != RequestState::kIndexing) return;
  if (live.PromptRowsLeft() > 0) return;
  const int64_t tokens = std::max(live.kv.num_tokens, live.kv.prompt_tokens);
  const bool names_generated = live.kv.lineage.made_by().has_value();
  SaveBlocks(live, names_generated ? tokens : live.kv.prompt_tokens);
}

void LocalEngine::TendSaves() {
  if (saver_ != nullptr) num_releases_ += saver_->Tend();
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
                           .elapsed = common::SteadyNow() - live.prefill_begun});
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
    if (live->demand.Room(live->length()) <= 0) continue;
    batch_.push_back(live);
    if (const absl::Status status = parts_.memory->TellTables(*parts_.stream, live->kv);
        !status.ok()) {
      return EndBatch(status);
    }
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
  const absl::Time now = common::SteadyNow();
  for (size_t i = 0; i < batch_.size(); ++i) {
    LiveRequest& live = *batch_[i];
    if (live.state != RequestState::kDecoding) continue;  // an earlier row has ended it
    live.last_token = live.progressed = now;
    if (live.forced.has_value()) {
      EmitMeasured(live, (*tokens)[i]);
    } else {
      Emit(live, (*tokens)[i]);
    }
    if (live.state == RequestState::kDecoding) Advance(live);
  }
}

}  // namespace retroinfer
