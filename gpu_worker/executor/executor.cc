#include "gpu_worker/executor/executor.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "common/clock/steady_now.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "spdlog/spdlog.h"

namespace retroinfer {

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(ExecutorParts parts, const Sizes& sizes,
                                                           const CostModel& costs) {
  auto executor = absl::WrapUnique(new Executor(std::move(parts), sizes));
  RETURN_IF_ERROR(executor->CreateWorkspaces(costs));
  return executor;
}

absl::Status Executor::CreateWorkspaces(const CostModel& costs) {
  ASSIGN_OR_RETURN(sampler_, Sampler::Create(*parts_.device, parts_.ops->model(), *parts_.stream,
                                             sizes_.max_batch, parts_.model->config().vocab_size));
  ASSIGN_OR_RETURN(decode_step_,
                   DecodeStep::Create(*parts_.device, *parts_.stream, *parts_.model, *sampler_,
                                      sizes_.max_batch, parts_.windows.get()));
  for (const int64_t max_tokens : sizes_.lane_tokens) {
    ASSIGN_OR_RETURN(auto lane, PrefillLane::Create({.device = parts_.device,
                                                     .ops = parts_.ops,
                                                     .stream = parts_.stream,
                                                     .model = parts_.model,
                                                     .arena = parts_.cache->device_arena(),
                                                     .windows = parts_.windows.get(),
                                                     .heads = parts_.memory->sizes().heads,
                                                     .sparse = sizes_.sparse},
                                                    sizes_.geometry, max_tokens, sizes_.max_rows,
                                                    sizes_.max_batch));
    lanes_.push_back(std::move(lane));
  }
  members_.resize(lanes_.size());
  ASSIGN_OR_RETURN(clock_, WorkClock::Create(*parts_.device, *parts_.stream, costs));
  return absl::OkStatus();
}

Executor::Counters Executor::counters() const {
  Counters counters{.decode_steps = num_steps_,
                    .draft_steps = num_draft_steps_,
                    .step = decode_step_->counters(),
                    .prefill = {}};
  for (const auto& lane : lanes_) {
    counters.prefill.staged_bytes += lane->counters().staged_bytes;
    counters.prefill.shared_bytes += lane->counters().shared_bytes;
    counters.prefill.computed_rows += lane->counters().computed_rows;
    counters.prefill.shared_rows += lane->counters().shared_rows;
  }
  return counters;
}

// --- Prompts

absl::Status Executor::BeginGroup(size_t lane, std::span<Sequence* const> members) {
  members_[lane].assign(members.begin(), members.end());
  std::vector<PrefillLane::Member> prompts;
  for (Sequence* const member : members) {
    prompts.push_back({.prompt = member->kv.prompt,
                       .sequence = &member->kv,
                       .policy = member->policy,
                       .keeps_all_rows = member->measures_prompt()});
  }
  clock_->Begin();
  return lanes_[lane]->Begin(prompts);
}

bool Executor::CanRun(const StepPlan::Pass& pass) const {
  const PrefillLane& lane = *lanes_[pass.lane];
  return lane.busy() && lane.layer() == pass.layer && lane.next_row() == pass.first_row &&
         lane.next_row() + pass.num_rows <= lane.num_rows() &&
         lane.WholeUnits(pass.num_rows) == pass.num_rows;
}

absl::StatusOr<bool> Executor::RunPass(const StepPlan::Pass& pass) {
  PrefillLane& lane = *lanes_[pass.lane];
  clock_->Begin();
  ASSIGN_OR_RETURN(
      const PrefillLane::Outcome outcome,
      lane.RunPass(pass.num_rows, sampler_->logits(static_cast<int32_t>(lane.Live().size()))));
  RETURN_IF_ERROR(clock_->Enqueued(pass.work));
  return outcome == PrefillLane::Outcome::kDone;
}

// The sampler's logits hold one row for each member, which every round reads anew: a round draws or
// measures one token of each. Members without a target left draw again; that result is dropped,
// since drawing depends on the position alone.
absl::Status Executor::SampleFirsts(std::span<FirstTokens> members) {
  std::vector<SamplingState*> states;
  size_t num_rounds = 1;
  for (const FirstTokens& member : members) {
    states.push_back(&*member.sequence->sampling);
    num_rounds = std::max(num_rounds, member.targets.size());
  }
  std::vector<int32_t> targets(members.size());
  for (size_t round = 0; round < num_rounds; ++round) {
    for (size_t i = 0; i < members.size(); ++i) {
      targets[i] = round < members[i].targets.size() ? members[i].targets[round] : -1;
    }
    ASSIGN_OR_RETURN(const std::span<const OutputToken> tokens, sampler_->Sample(states, targets));
    for (size_t i = 0; i < members.size(); ++i) {
      if (targets[i] >= 0) members[i].measured.push_back(tokens[i]);
      if (round == 0) members[i].drawn = tokens[i];
    }
  }
  clock_->Synchronized({});
  return absl::OkStatus();
}

absl::StatusOr<std::span<const OutputToken>> Executor::MeasurePrompt(size_t lane,
                                                                     Sequence& sequence,
                                                                     int64_t rows) {
  const int64_t first = sequence.prompt_rows_measured;
  const std::span<const int32_t> targets =
      sequence.kv.prompt.subspan(static_cast<size_t>(first) + 1, static_cast<size_t>(rows));
  clock_->Begin();
  RETURN_IF_ERROR(
      lanes_[lane]->FillLogits(sequence.kv, first, sampler_->logits(static_cast<int32_t>(rows))));
  ASSIGN_OR_RETURN(const std::span<const OutputToken> measured,
                   sampler_->Measure(targets, sequence.num_prompt_logprobs));
  clock_->Synchronized({.measured_rows = static_cast<double>(rows)});
  sequence.prompt_rows_measured += rows;
  return measured;
}

void Executor::EndPart(Sequence& sequence) {
  sequence.policy->EndPart(sequence.kv);
  LeaveLanes(sequence);
}

absl::StatusOr<bool> Executor::FinishPrefill(Sequence& sequence) {
  ASSIGN_OR_RETURN(const bool is_finished, sequence.policy->FinishPrefill(sequence.kv));
  if (is_finished) LeaveLanes(sequence);
  return is_finished;
}

void Executor::Drop(const Sequence& sequence) {
  for (const auto& lane : lanes_) lane->Drop(sequence.kv);
}

void Executor::LeaveLanes(const Sequence& sequence) {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i]->Leave(sequence.kv);
    std::erase(members_[i], &sequence);
  }
}

// --- Decode steps

absl::StatusOr<std::span<const StepResult>> Executor::Step(std::span<const StepRow> rows) {
  Work work{.steps = 1};
  for (const StepRow& row : rows) {
    RETURN_IF_ERROR(parts_.memory->TellTables(*parts_.stream, *row.sequence));
    work += WorkOf(row);
  }
  clock_->Begin();
  RETURN_IF_ERROR(parts_.cache->BeginStep());
  ++num_steps_;
  ASSIGN_OR_RETURN(const std::span<const StepResult> results, decode_step_->Run(rows));
  clock_->Synchronized(work);
  NoteAttended(rows, results);
  if (parts_.partial != nullptr) RETURN_IF_ERROR(AskForLacking(rows, results));
  return results;
}

// As the scheduler counts the row (scheduler/step_row_work.h).
Work Executor::WorkOf(const StepRow& row) const {
  const SequenceKv& kv = *row.sequence;
  const auto context = static_cast<double>(kv.num_tokens);
  Work work;
  if (row.position < kv.drawn_begin()) {
    work.tail_rows = 1;
    work.tail_context = context;
  } else {
    work.step_rows = 1;
    work.step_context = context;
  }
  if (!kv.has_stepped()) work.cold_context = static_cast<double>(parts_.memory->ColdTokens(kv));
  return work;
}

// What a first row that came to an absent page has fetched is a part of what such rows retrieve.
void Executor::NoteAttended(std::span<const StepRow> rows, std::span<const StepResult> results) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const SequenceKv& kv = *rows[i].sequence;
    if (rows[i].position == kv.prompt_tokens && !results[i].lacked) parts_.memory->Attended(kv);
  }
}

absl::Status Executor::AskForLacking(std::span<const StepRow> rows,
                                     std::span<const StepResult> results) {
  std::vector<uint64_t> lacking;
  for (size_t i = 0; i < rows.size(); ++i) {
    const uint64_t id = rows[i].sequence->sequence_id;
    // Rows of one sequence are neighbours.
    if (results[i].lacked && (lacking.empty() || lacking.back() != id)) lacking.push_back(id);
  }
  return parts_.partial->AskFor(std::move(lacking));
}

// --- Drafts of a small model

absl::Status Executor::ReadForDrafts(const DraftedText& text, int64_t rows) {
  const int64_t before = parts_.draft_model->StateOf(text).unread;
  clock_->Begin();
  RETURN_IF_ERROR(parts_.draft_model->Read(text, rows));
  const int64_t after = parts_.draft_model->StateOf(text).unread;
  clock_->Synchronized({.draft_reads = static_cast<double>(std::max<int64_t>(1, before - after))});
  return absl::OkStatus();
}

// Steps of a number of rows that is new take longer than they will: what they took says nothing.
absl::StatusOr<std::vector<std::vector<int32_t>>> Executor::Draft(
    std::span<const DraftModel::Ask> asks) {
  clock_->Begin();
  ASSIGN_OR_RETURN(DraftModel::Drafts drafts, parts_.draft_model->Draft(asks));
  num_draft_steps_ += static_cast<uint64_t>(drafts.num_steps);
  if (drafts.is_settled) {
    clock_->Synchronized({.draft_steps = static_cast<double>(drafts.num_steps),
                          .draft_rows = static_cast<double>(drafts.num_rows)});
  } else {
    clock_->Forget();
  }
  return std::move(drafts.tokens);
}

// --- Suspension

absl::Status Executor::CopyOut(Sequence& sequence) {
  ASSIGN_OR_RETURN(sequence.copy, parts_.suspended->CopyOut(sequence.kv));
  sequence.policy->OnSuspend(sequence.kv);
  ++sequence.num_suspensions;
  return absl::OkStatus();
}

absl::Status Executor::CopyBack(Sequence& sequence) {
  return parts_.suspended->CopyBack(sequence.kv, *sequence.copy, [&sequence](Stream& stream) {
    return sequence.policy->OnResume(sequence.kv, stream);
  });
}

absl::StatusOr<bool> Executor::IsCopied(const Sequence& sequence) const {
  return parts_.suspended->IsDone(*sequence.copy);
}

void Executor::FreeCopy(Sequence& sequence) {
  parts_.suspended->Free(*sequence.copy);
  sequence.copy.reset();
}

// --- What the device has done

void Executor::Log(common::LogRateLimiter& limiter, const char* what, const absl::Status& status) {
  if (status.ok()) return;
  if (const auto suppressed = limiter.Admit(common::SteadyNow()); suppressed.has_value()) {
    spdlog::error("{}: {} ({} times since)", what, status.ToString(), *suppressed + 1);
  }
}

void Executor::Look() {
  Log(device_log_, "looking at the device", clock_->Poll());
  Log(cache_log_, "block cache", parts_.cache->Settle());
}

void Executor::TendCache() { Log(cache_log_, "block cache", parts_.cache->Tend()); }

bool Executor::IsUnused(Sequence& sequence) {
  if (sequence.copy.has_value()) {
    const absl::StatusOr<bool> is_copied = IsCopied(sequence);
    if (!is_copied.ok()) {
      spdlog::error("copies of sequence {}: {}", sequence.id(), is_copied.status().ToString());
    } else if (!*is_copied) {
      return false;
    }
  }
  // A sequence that has never had memory is unknown to its policy.
  if (sequence.kv.table_row < 0 && sequence.num_suspensions == 0) return true;
  const absl::StatusOr<bool> is_released = sequence.policy->Release(sequence.kv);
  if (!is_released.ok()) {
    spdlog::error("release of sequence {}: {}", sequence.id(), is_released.status().ToString());
  }
  return is_released.value_or(true);
}

const Sequence* Executor::MemberOf(size_t lane, const SequenceKv& kv) const {
  const auto& members = members_[lane];
  const auto found = std::find_if(members.begin(), members.end(),
                                  [&kv](const Sequence* member) { return &member->kv == &kv; });
  RI_CHECK(found != members.end());
  return *found;
}

void Executor::DescribeLane(size_t index, LaneDescription& description) {
  const PrefillLane& lane = *lanes_[index];
  description.max_tokens = lane.max_tokens();
  description.is_free = !lane.busy();
  description.layer = lane.layer();
  description.next_row = lane.next_row();
  description.rows_to_measure = 0;
  // description.members stay those of BeginGroup(): the rows of dropped members are computed, too.
  if (description.is_free) {
    description.members.clear();
    description.runs.clear();
  }
  if (description.is_free || lane.layer() == sizes_.geometry.num_model_layers()) {
    description.layers_open = 0;
    for (const SequenceKv* const kv : lane.Live()) {
      description.rows_to_measure += MemberOf(index, *kv)->PromptRowsLeft();
    }
    return;
  }
  const absl::StatusOr<uint32_t> open = lane.LayersOpen();
  Log(device_log_, "looking at the background", open.status());
  description.layers_open = open.value_or(0);
}

void Executor::DescribeRuns(size_t index, LaneDescription& description) const {
  description.runs.clear();
  for (const PrefillRun& run : lanes_[index]->runs()) {
    const size_t member = run.members.front();
    LaneDescription::Run& described = description.runs.emplace_back();
    described = {.rows = run.num_rows,
                 .depth = run.first_position,
                 .tenant = description.members[member].tenant};
    if (run.is_sparse) described.sparse_from = sizes_.sparse.dense_before;
    const SequenceKv& sequence = members_[index][member]->kv;
    for (const CachedRead& read : run.reads) {
      described.cached += sequence.cached[read.index].num_tokens();
    }
    if (sequence.part.num_context == 0) continue;
    // A later part reads the context that its policy keeps of the earlier parts.
    described.depth += sequence.part.num_context - sequence.part.begin;
    described.cached = sequence.part.num_context;
  }
}

}  // namespace retroinfer
