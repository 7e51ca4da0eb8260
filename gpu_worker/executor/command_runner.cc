#include "gpu_worker/executor/command_runner.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer {

absl::StatusOr<std::unique_ptr<CommandRunner>> CommandRunner::Create(Executor& executor,
                                                                     std::span<std::byte> arena,
                                                                     CommandHooks hooks,
                                                                     Drawing drawing) {
  const ExecutorParts& parts = executor.parts();
  ASSIGN_OR_RETURN(auto copier,
                   BlockCopier::Create(*parts.device, *parts.stream, executor.memory(), arena));
  return absl::WrapUnique(
      new CommandRunner(executor, std::move(copier), std::move(hooks), drawing));
}

CommandRunner::CommandRunner(Executor& executor, std::unique_ptr<BlockCopier> copier,
                             CommandHooks hooks, Drawing drawing)
    : executor_(executor),
      copier_(std::move(copier)),
      hooks_(std::move(hooks)),
      drawing_(drawing),
      checker_(executor, *copier_, held_) {
  rows_.reserve(static_cast<size_t>(executor.sizes().max_batch));
}

Sequence* CommandRunner::Find(uint64_t id) {
  const auto found = held_.find(id);
  return found == held_.end() ? nullptr : &found->second->sequence;
}

AttentionPolicy& CommandRunner::PolicyOf(PolicyKind kind, bool is_prompt_only) const {
  if (is_prompt_only) return prompt_only_;
  return executor_.parts().policies.Of(kind);
}

absl::StatusOr<bool> CommandRunner::IsReady(const StepCommand& command) {
  RETURN_IF_ERROR(checker_.Check(command));
  return checker_.IsReady(command);
}

void CommandRunner::Tend() {
  executor_.Look();
  executor_.TendCache();
  for (const auto& [id, held] : held_) {
    if (held->is_dropped) executor_.IsUnused(held->sequence);
  }
}

void CommandRunner::Fail(uint64_t id, absl::Status status) {
  Drop(At(id));
  result_->failed.push_back({id, std::move(status)});
}

void CommandRunner::CarryOut(StepCommand& command, CommandResult& result) {
  result.Clear();
  result.refused = checker_.Check(command);
  if (!result.refused.ok()) return;
  result_ = &result;
  if (hooks_.on_command) hooks_.on_command(command);
  for (StepCommand::Open& open : command.open) Open(open);
  for (const uint64_t id : command.drop) Drop(At(id));
  for (const uint64_t id : command.let_go) LetGo(id);
  ChangeMemory(command);
  for (const StepCommand::Group& group : command.begin) BeginGroup(group);
  for (const StepCommand::Pass& pass : command.passes) RunPass(pass);
  for (const StepCommand::Measure& measure : command.measure) Measure(measure);
  for (const uint64_t id : command.finish) Finish(At(id));
  for (const StepCommand::Save& save : command.save) Save(save);
  for (const uint64_t id : command.end_save) copier_->End(id);
  RunStep(command.rows);
  if (hooks_.on_result) hooks_.on_result(result);
}

// --- Sequences

void CommandRunner::Open(StepCommand::Open& open) {
  auto held = std::make_unique<HeldSequence>();
  held->prompt = std::move(open.prompt);
  held->sampling = std::move(open.sampling);
  held->eos_token_ids = std::move(open.eos_token_ids);
  held->first_targets = std::move(open.first_targets);
  Sequence& sequence = held->sequence;
  sequence.policy = &PolicyOf(open.attention.policy, open.is_prompt_only);
  sequence.num_prompt_logprobs = open.num_prompt_logprobs;
  SequenceKv& kv = sequence.kv;
  kv.sequence_id = open.id;
  kv.settings = open.attention;
  const std::span<const int32_t> whole = held->prompt;
  kv.prompt = whole.first(whole.size() - static_cast<size_t>(open.given_tokens));
  kv.given_tokens = open.given_tokens;
  kv.prompt_tokens = std::ssize(kv.prompt);
  kv.total_tokens = open.total_tokens;
  kv.reads_whole = sequence.measures_prompt();
  held_.emplace(open.id, std::move(held));
}

void CommandRunner::Drop(HeldSequence& held) {
  held.is_dropped = true;
  executor_.Drop(held.sequence);
}

// Frees all that the sequence holds.
void CommandRunner::LetGo(uint64_t id) {
  Sequence& sequence = At(id).sequence;
  if (sequence.copy.has_value()) executor_.FreeCopy(sequence);
  executor_.LeaveLanes(sequence);
  executor_.memory().Free(sequence.kv);
  if (PartialSegments* const partial = executor_.parts().partial.get(); partial != nullptr) {
    partial->LetGo(id);
  }
  held_.erase(id);
}

// --- Memory

void CommandRunner::ChangeMemory(const StepCommand& command) {
  for (const StepCommand::Claim& claim : command.claim) Claim(claim);
  for (const uint64_t id : command.put_back) FreeBlocks(At(id), Stage::kOpen);
  for (const uint64_t id : command.leave) FreeBlocks(At(id), Stage::kSuspended);
  for (const uint64_t id : command.rejoin) {
    executor_.FreeCopy(At(id).sequence);
    At(id).stage = Stage::kDecoding;
  }
  for (const uint64_t id : command.rewind) {
    SequenceKv& kv = At(id).sequence.kv;
    kv.num_tokens = kv.prompt_tokens;
  }
  for (const StepCommand::Blocks& kept : command.give_back) {
    At(kept.id).reach = 0;
    executor_.memory().GiveBack(kept.blocks.dense, At(kept.id).sequence.kv);
  }
  for (const StepCommand::Lengthening& more : command.lengthen) Lengthen(more);
  for (const uint64_t id : command.suspend) Suspend(At(id));
  for (const StepCommand::Blocks& more : command.grow) {
    if (!executor_.memory().Grow(more.blocks, At(more.id).sequence.kv)) {
      result_->without_memory.push_back(more.id);
    }
  }
  for (const StepCommand::Blocks& wanted : command.resume) Resume(At(wanted.id), wanted.blocks);
  for (const StepCommand::Blocks& wanted : command.admit) Admit(At(wanted.id), wanted.blocks);
}

void CommandRunner::Claim(const StepCommand::Claim& claim) {
  HeldSequence& held = At(claim.id);
  if (absl::Status status = checker_.CheckClaim(held, claim); !status.ok()) {
    return Fail(claim.id, std::move(status));
  }
  SequenceKv& kv = held.sequence.kv;
  kv.extents = claim.extents;
  kv.num_cached_segments = claim.num_cached_segments;
  kv.cached = claim.cached;
  const size_t num_cached = kv.num_cached_segments;
  kv.shared_end = num_cached == 0 ? int64_t{kSinkTokens} : kv.cached[num_cached - 1].token_end();
  kv.cached_end = kv.read_end();
  executor_.memory().ShareIndexes(kv);
  if (PartialSegments* const partial = executor_.parts().partial.get(); partial != nullptr) {
    partial->Claim(claim.id, kv.extents);
  }
}

void CommandRunner::Lengthen(const StepCommand::Lengthening& more) {
  HeldSequence& held = At(more.id);
  if (absl::Status status = checker_.CheckLengthening(held, more); !status.ok()) {
    return Fail(more.id, std::move(status));
  }
  SequenceKv& kv = held.sequence.kv;
  kv.extents = more.extents;
  kv.growths = more.growths;
  kv.total_tokens = more.total_tokens;
  executor_.parts().segments->Grow(kv);
}

void CommandRunner::FreeBlocks(HeldSequence& held, Stage next) {
  executor_.memory().Free(held.sequence.kv);
  held.reach = 0;
  held.stage = next;
}

void CommandRunner::Suspend(HeldSequence& held) {
  Sequence& sequence = held.sequence;
  if (executor_.parts().suspended->BlocksOf(sequence.kv) >
      executor_.parts().suspended->num_free()) {
    result_->without_memory.push_back(sequence.id());
    return;
  }
  if (absl::Status status = executor_.CopyOut(sequence); !status.ok()) {
    return Fail(sequence.id(), std::move(status));
  }
  held.stage = Stage::kLeaving;
}

void CommandRunner::Resume(HeldSequence& held, const KvBlocks& blocks) {
  Sequence& sequence = held.sequence;
  if (!executor_.memory().Reserve(blocks, sequence.kv)) {
    result_->without_memory.push_back(sequence.id());
    return;
  }
  held.stage = Stage::kReturning;
  if (absl::Status status = executor_.CopyBack(sequence); !status.ok()) {
    Fail(sequence.id(), std::move(status));
  }
}

void CommandRunner::Admit(HeldSequence& held, const KvBlocks& blocks) {
  Sequence& sequence = held.sequence;
  if (!executor_.memory().Reserve(blocks, sequence.kv)) {
    result_->without_memory.push_back(sequence.id());
    return;
  }
  held.stage = Stage::kAdmitted;
  const ExecutorParts& parts = executor_.parts();
  auto sampling = SamplingState::Create(*parts.device, *parts.stream, held.sampling, held.prompt,
                                        held.eos_token_ids, parts.model->config().vocab_size);
  if (!sampling.ok()) return Fail(sequence.id(), sampling.status());
  sequence.sampling = *std::move(sampling);
}

// --- Prompts

void CommandRunner::BeginGroup(const StepCommand::Group& group) {
  std::vector<Sequence*> members;
  for (const uint64_t id : group.members) {
    HeldSequence& held = At(id);
    if (held.is_dropped) continue;  // an earlier list has failed for it
    held.stage = Stage::kReading;
    members.push_back(&held.sequence);
  }
  if (members.empty()) return;
  const absl::Status status = executor_.BeginGroup(group.lane, members);
  if (status.ok()) return;
  for (const Sequence* const member : members) Fail(member->id(), status);
}

// If a group has lost a member since the pass was planned, the rows wait for a new command.
void CommandRunner::RunPass(const StepCommand::Pass& pass) {
  if (!executor_.CanRun(pass)) return;
  const PrefillLane& lane = executor_.lane(pass.lane);
  const absl::StatusOr<bool> is_computed = executor_.RunPass(pass);
  if (!is_computed.ok()) return FailLane(pass.lane, is_computed.status());
  for (const auto& [kv, failure] : executor_.TakeFailures(pass.lane)) {
    Fail(kv->sequence_id, failure);
  }
  for (const SequenceKv* const kv : lane.Live()) {
    result_->progress.push_back({kv->sequence_id, lane.processed_tokens(*kv)});
  }
  if (*is_computed) FinishGroup(pass.lane);
}

void CommandRunner::FailLane(size_t lane, const absl::Status& status) {
  for (const SequenceKv* const kv : executor_.lane(lane).Live()) Fail(kv->sequence_id, status);
}

// The group is computed: prompts that end with it get their first tokens, others their next part.
void CommandRunner::FinishGroup(size_t lane_index) {
  const PrefillLane& lane = executor_.lane(lane_index);
  std::vector<Executor::FirstTokens> firsts;
  for (const SequenceKv* const kv : lane.Live()) {
    HeldSequence& held = At(kv->sequence_id);
    CommandResult::Read read{.id = kv->sequence_id, .num_tokens = kv->num_tokens};
    if (lane.FinishesPrompt(*kv)) {
      held.stage = Stage::kRead;
      if (kv->given_tokens > 0) {
        read.end = CommandResult::Read::End::kHead;
        result_->read.push_back(std::move(read));
        continue;
      }
      firsts.push_back({.sequence = &held.sequence, .targets = held.first_targets});
      continue;
    }
    if (held.sequence.policy->TakesInOrder(*kv)) {
      executor_.LeaveLanes(held.sequence);
      held.stage = Stage::kAdmitted;
      read.end = CommandResult::Read::End::kPartInOrder;
    } else {
      held.stage = Stage::kPartRead;
    }
    result_->read.push_back(std::move(read));
  }
  if (firsts.empty()) return;
  if (const absl::Status status = executor_.SampleFirsts(firsts); !status.ok()) {
    return FailLane(lane_index, status);
  }
  for (Executor::FirstTokens& first : firsts) {
    CommandResult::Read& read = result_->read.emplace_back();
    read.id = first.sequence->id();
    read.end = CommandResult::Read::End::kPrompt;
    read.num_tokens = first.sequence->kv.num_tokens;
    if (first.targets.empty()) read.first = Count(*first.sequence, std::move(first.drawn));
    read.measured = std::move(first.measured);
  }
}

// Measures rows of the prompts of a lane's group, in order, as many at a time as a batch has.
void CommandRunner::Measure(const StepCommand::Measure& measure) {
  const PrefillLane& lane = executor_.lane(measure.lane);
  if (!lane.busy() || lane.layer() != executor_.sizes().geometry.num_model_layers()) return;
  int64_t left = measure.num_rows;
  for (const SequenceKv* const kv : lane.Live()) {
    Sequence& sequence = At(kv->sequence_id).sequence;
    while (left > 0 && sequence.PromptRowsLeft() > 0) {
      const int64_t rows =
          std::min({left, int64_t{executor_.sizes().max_batch}, sequence.PromptRowsLeft()});
      left -= rows;
      const auto measured = executor_.MeasurePrompt(measure.lane, sequence, rows);
      if (!measured.ok()) {
        Fail(sequence.id(), measured.status());
        break;
      }
      std::vector<CommandResult::Measured>& all = result_->measured;
      if (all.empty() || all.back().id != sequence.id()) all.push_back({sequence.id(), {}});
      all.back().tokens.insert(all.back().tokens.end(), measured->begin(), measured->end());
    }
  }
}

// The background has finished a part of the prompt, or all of it: the sequence decodes from now on.
void CommandRunner::Finish(HeldSequence& held) {
  Sequence& sequence = held.sequence;
  if (held.stage == Stage::kPartRead) {
    executor_.EndPart(sequence);
    held.stage = Stage::kAdmitted;
    return;
  }
  if (sequence.PromptRowsLeft() > 0) return;
  const absl::StatusOr<bool> is_finished = executor_.FinishPrefill(sequence);
  if (!is_finished.ok()) return Fail(sequence.id(), is_finished.status());
  if (!*is_finished) return;
  held.stage = Stage::kDecoding;
  result_->finished.push_back(sequence.id());
}

// The sequence does not suffer: its blocks are not found by others, that is all.
void CommandRunner::Save(const StepCommand::Save& save) {
  const SequenceKv& kv = At(save.id).sequence.kv;
  absl::Status status = copier_->Begin(save.save_id, kv, save.blocks);
  if (!status.ok()) result_->unsaved.push_back({save.save_id, std::move(status)});
}

// --- Decode steps

DrawnToken CommandRunner::Count(Sequence& sequence, OutputToken token) const {
  DrawnToken drawn{.token = std::move(token), .allowed = {}};
  if (drawing_ == Drawing::kElsewhere) return drawn;
  drawn.allowed = sequence.sampling->Count(drawn.token.token);
  drawn.must_end = sequence.sampling->MustEnd();
  return drawn;
}

void CommandRunner::RunStep(std::span<const StepCommand::Row> rows) {
  if (rows.empty()) return;
  rows_.clear();
  for (const StepCommand::Row& row : rows) {
    HeldSequence& held = At(row.id);
    const SequenceKv& kv = held.sequence.kv;
    rows_.push_back({.sequence = &held.sequence.kv,
                     .policy = held.sequence.policy,
                     .sampling = &*held.sequence.sampling,
                     .token = row.token,
                     .position = row.position,
                     .task = held.draws() ? StepRow::Task::kDraw : StepRow::Task::kMeasure,
                     .target = row.target});
    if (row.position + 1 >= kv.drawn_begin()) continue;
    rows_.back().task = StepRow::Task::kMeasure;
    rows_.back().target = kv.GivenAt(row.position + 1 - kv.num_tokens);
  }
  const absl::StatusOr<std::span<const StepResult>> results = executor_.Step(rows_);
  result_->step = results.status();
  if (!results.ok()) return;
  for (size_t i = 0; i < rows.size();) i = TakeRows(rows, *results, i);
}

// What a row draws depends on its position and on the tokens before it, not on what shares its step
// (docs/decisions/0094-several-tokens-a-step.md): a draft that is what the row before it has drawn
// would have been fed in the next step, so that its own row's token is what that step would draw.
// Of rows behind another draft nothing is kept: their KV is beyond the sequence's end, where the
// next rows are written, and nothing in the background has read it.
size_t CommandRunner::TakeRows(std::span<const StepCommand::Row> rows,
                               std::span<const StepResult> results, size_t first) {
  HeldSequence& held = At(rows[first].id);
  const int64_t drawn_begin = held.sequence.kv.drawn_begin();
  bool is_kept = true;
  bool lacks = false;
  size_t i = first;
  for (; i < rows.size() && rows[i].id == rows[first].id; ++i) {
    const StepResult& result = results[i];
    CommandResult::Row& row = result_->rows.emplace_back();
    row = {.id = rows[i].id, .drawn = {}, .bytes = result.bytes, .unseen = result.unseen};
    row.is_given = rows[i].position + 1 < drawn_begin;
    // Rows behind one without its pages have attended to what it left.
    lacks = lacks || result.lacked;
    row.is_unread = lacks;
    if (lacks) --held.sequence.kv.num_tokens;
    if (lacks || row.is_given) continue;
    row.drawn.token = *result.token;
    if (!held.draws() || drawing_ == Drawing::kElsewhere) continue;
    if (i > first && rows[i].position >= drawn_begin) {
      const DrawnToken& before = result_->rows[result_->rows.size() - 2].drawn;
      is_kept = is_kept && before.allowed.ok() && !before.must_end &&
                before.token.token == rows[i].token && result.is_drawn;
    }
    row.is_rejected = !is_kept;
    if (is_kept) {
      row.drawn = Count(held.sequence, std::move(row.drawn.token));
    } else {
      --held.sequence.kv.num_tokens;
    }
  }
  const bool has_drafts = held.draws() && rows[first].position >= drawn_begin;
  held.num_drafts = has_drafts ? static_cast<int64_t>(i - first) - 1 : 0;
  return i;
}

absl::Status CommandRunner::TakeBack(uint64_t id, int64_t num_rows) {
  const auto found = held_.find(id);
  const int64_t most = found == held_.end() ? 0 : found->second->num_drafts;
  if (drawing_ == Drawing::kHere || num_rows < 1 || num_rows > most) {
    return absl::FailedPreconditionError(absl::StrCat(
        "sequence ", id, ": ", num_rows, " rows are taken back of at most ", most, " drafts"));
  }
  found->second->num_drafts = 0;
  found->second->sequence.kv.num_tokens -= num_rows;
  return absl::OkStatus();
}

}  // namespace retroinfer
