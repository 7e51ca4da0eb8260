// Which GPU each rank of a model computes on (--device), and whether the machine has them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/assembly/served_engine_options.h"

namespace retroinfer {

// The number of the GPU of options.rank: of "cuda:N" N and those behind it, of "cuda:N,M,..." the
// rank's own, else the rank's number.
//
// Returns: INVALID_ARGUMENT for other lists, or one of another length than there are ranks.
absl::StatusOr<int> GpuOfRank(const ServedEngineOptions& options);

// Whether each rank has a GPU, all of one kind, before any is started: `gpus` are the names of the
// machine's, by number. OK for ranks that compute on the CPU: with --device auto, where `gpus` is
// empty.
//
// Returns: FAILED_PRECONDITION with the first rank that has none, or another than rank 0; as
//          GpuOfRank.
absl::Status CheckGpusOfRanks(const ServedEngineOptions& options,
                              const std::vector<std::string>& gpus);

}  // namespace retroinfer
