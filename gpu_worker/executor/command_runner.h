// Carries out commands, and keeps the sequences that they name. All that changes a sequence on the
// device comes by a command: whoever is given the same commands computes the same tokens.
//
// Threads: the executor's.
// Owns:    the sequences, and the copier of their blocks. The executor outlives the runner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/attention/prompt_only_policy.h"
#include "gpu_worker/executor/command_checker.h"
#include "gpu_worker/executor/command_result.h"
#include "gpu_worker/executor/drawing.h"
#include "gpu_worker/executor/executor.h"
#include "gpu_worker/executor/held_sequence.h"
#include "gpu_worker/executor/step_command.h"
#include "gpu_worker/kv/block_copier.h"

namespace retroinfer {

// Called on the runner's thread with each command that is accepted, before anything of it is done,
// and with what came of it, to which it may add what came of the command elsewhere. Each may be
// empty.
struct CommandHooks {
  std::function<void(const StepCommand&)> on_command;
  std::function<void(CommandResult&)> on_result;
};

class CommandRunner {
 public:
  // `arena` is what extents lie in, as the host sees it.
  static absl::StatusOr<std::unique_ptr<CommandRunner>> Create(Executor& executor,
                                                               std::span<std::byte> arena,
                                                               CommandHooks hooks = {},
                                                               Drawing drawing = Drawing::kHere);

  // Carries the command out, and takes the prompts and the settings of sequences that it opens.
  // `result` gets what came of it, in place of what it had. An error of the device makes sequences
  // fail, or the step.
  void CarryOut(StepCommand& command, CommandResult& result);
  // As CommandChecker::IsReady(). Returns: why CarryOut() would refuse the command.
  absl::StatusOr<bool> IsReady(const StepCommand& command);
  // What an executor does between two commands whose engine is in another process: looks at the
  // device and the background, tends the block cache, and begins to let go of what was dropped.
  void Tend();

  Executor& executor() { return executor_; }
  // With Drawing::kElsewhere, once a step: the newest `num_rows` rows of the sequence are drafts
  // that were not drawn. Until then all rows of a step count.
  //
  // Returns: FAILED_PRECONDITION if its last step had no more rows than that, or it has taken some
  //          back already; nothing is changed then.
  absl::Status TakeBack(uint64_t id, int64_t num_rows);

  Drawing drawing() const { return drawing_; }
  // Null: it is not known. Stays where it is until it is let go.
  Sequence* Find(uint64_t id);
  const BlockCopier& copier() const { return *copier_; }
  // Any thread.
  AttentionPolicy& PolicyOf(PolicyKind kind, bool is_prompt_only) const;

 private:
  using Stage = HeldSequence::Stage;

  CommandRunner(Executor& executor, std::unique_ptr<BlockCopier> copier, CommandHooks hooks,
                Drawing drawing);

  HeldSequence& At(uint64_t id) { return *held_.at(id); }
  void Fail(uint64_t id, absl::Status status);

  void Open(StepCommand::Open& open);
  void Drop(HeldSequence& held);
  void LetGo(uint64_t id);
  void ChangeMemory(const StepCommand& command);
  void Claim(const StepCommand::Claim& claim);
  void Lengthen(const StepCommand::Lengthening& more);
  void FreeBlocks(HeldSequence& held, Stage next);
  void Suspend(HeldSequence& held);
  void Resume(HeldSequence& held, const KvBlocks& blocks);
  void Admit(HeldSequence& held, const KvBlocks& blocks);
  void BeginGroup(const StepCommand::Group& group);
  void RunPass(const StepCommand::Pass& pass);
  void FailLane(size_t lane, const absl::Status& status);
  void FinishGroup(size_t lane);
  void Measure(const StepCommand::Measure& measure);
  void Finish(HeldSequence& held);
  void Save(const StepCommand::Save& save);
  void RunStep(std::span<const StepCommand::Row> rows);
  // Takes what came of the rows of one sequence, of which rows[first] is the first. Returns their
  // end.
  size_t TakeRows(std::span<const StepCommand::Row> rows, std::span<const StepResult> results,
                  size_t first);
  DrawnToken Count(Sequence& sequence, OutputToken token) const;

  Executor& executor_;
  const std::unique_ptr<BlockCopier> copier_;
  const CommandHooks hooks_;
  const Drawing drawing_;
  mutable PromptOnlyPolicy prompt_only_;  // has no state
  HeldSequences held_;
  CommandChecker checker_;
  CommandResult* result_ = nullptr;  // of the command that is carried out
  std::vector<StepRow> rows_;        // of the step that is carried out
};

}  // namespace retroinfer
