// What gpu_worker does as a rank above 0. It is started by the gpu_worker that is rank 0
// (ranks/rank_process.h) with the arguments of that one and its number behind them; no person gives
// that number, so it is no setting.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/server/worker_options.h"

namespace retroinfer {

// The program and the arguments that start a rank of the same settings.
std::vector<std::string> RankProgram(int argc, const char* const* argv);

// The number of the rank that "--rank=N" as the last argument says, and takes that argument away;
// nothing without it.
//
// Returns: INVALID_ARGUMENT if it is none, or if no rank 0 has started this process.
absl::StatusOr<std::optional<int>> TakeRank(int* argc, const char* const* argv);

// Serves rank 0 until that ends. Returns the exit status of the process.
int RunRank(const WorkerOptions& options);

}  // namespace retroinfer
