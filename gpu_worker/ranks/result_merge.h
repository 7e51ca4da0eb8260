// What came of one command on all ranks. The worst counts: a sequence that fails on one rank fails,
// and so does a step. All else must be the same on each, since it follows from the commands.
//
// Threads: any.
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/executor/command_result.h"

namespace retroinfer {

// Adds what came of the command on rank `rank` to `own`, which is rank 0's. What a sequence that
// fails has done is left out.
//
// Returns: FAILED_PRECONDITION with the first difference if the ranks do not do the same any more.
absl::Status MergeResult(int rank, const CommandResult& other, CommandResult& own);

}  // namespace retroinfer
