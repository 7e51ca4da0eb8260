// Whether a command fits what the executor has. A command may come from another process: nothing of
// it is used that was not checked, here or in the decoder (command_codec.h).
//
// Threads: the executor's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/executor/executor.h"
#include "gpu_worker/executor/held_sequence.h"
#include "gpu_worker/executor/step_command.h"
#include "gpu_worker/kv/block_copier.h"

namespace retroinfer {

class CommandChecker {
 public:
  // All of it outlives the checker.
  CommandChecker(Executor& executor, const BlockCopier& copier, const HeldSequences& held);

  // Returns: FAILED_PRECONDITION or INVALID_ARGUMENT with what does not fit.
  absl::Status Check(const StepCommand& command);
  // What the store or who commands says of the arena, before it is taken over.
  // Returns: INTERNAL with what cannot be.
  absl::Status CheckClaim(const HeldSequence& held, const StepCommand::Claim& claim) const;
  absl::Status CheckLengthening(const HeldSequence& held,
                                const StepCommand::Lengthening& more) const;

  // Whether the device and the background have done what the command builds on. An executor whose
  // state was not looked at when the command was made must not carry it out before.
  // REQUIRES: Check(command) returned OK.
  absl::StatusOr<bool> IsReady(const StepCommand& command);

 private:
  using Stage = HeldSequence::Stage;

  absl::StatusOr<HeldSequence*> Find(uint64_t id) const;
  absl::StatusOr<HeldSequence*> FindIn(Stage stage, uint64_t id) const;
  // Notes that the sequence is in a list. Returns: INVALID_ARGUMENT if it is in one already.
  absl::Status TakeOnce(uint64_t id);
  absl::Status CheckStage(Stage stage, std::span<const uint64_t> ids);

  absl::Status CheckOpen(const StepCommand::Open& open) const;
  absl::Status CheckEnds(const StepCommand& command);
  absl::Status CheckMemory(const StepCommand& command);
  absl::Status CheckBlocks(Stage stage, const StepCommand::Blocks& wanted);
  absl::Status CheckGiveBack(const StepCommand::Blocks& kept);
  absl::Status CheckSuspend(uint64_t id);
  absl::Status CheckLanes(const StepCommand& command);
  absl::Status CheckFinish(uint64_t id) const;
  absl::Status CheckSaves(const StepCommand& command) const;
  absl::Status CheckRows(const StepCommand& command);
  absl::Status CheckRow(const StepCommand::Row& row, const HeldSequence& held) const;
  // Of the rows of a sequence in a step: whether they end with a run.
  static absl::Status CheckRuns(const HeldSequence& held, int64_t num_rows);
  static int64_t MostTogether(const HeldSequence& held);
  // Whether the blocks that the sequence holds suffice for a token at `position`.
  static bool Fits(HeldSequence& held, int64_t position);

  absl::StatusOr<bool> IsClaimBuilt(const StepCommand::Claim& claim) const;
  absl::StatusOr<bool> AreUnused(const StepCommand& command);
  absl::StatusOr<bool> AreCopied(std::span<const uint64_t> ids) const;
  absl::StatusOr<bool> LanesAreOpen(const StepCommand& command) const;
  absl::StatusOr<bool> RowsAreReady(const StepCommand& command) const;

  Executor& executor_;
  const BlockCopier& copier_;
  const HeldSequences& held_;
  const int64_t vocab_size_;
  const uint32_t arena_pages_;
  std::vector<uint64_t> taken_;  // of the command that is checked
};

}  // namespace retroinfer
