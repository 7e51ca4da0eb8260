// A rank above 0: a process that has its part of a model, and does what rank 0 says.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "common/shm/unique_fd.h"
#include "gpu_worker/assembly/served_engine_options.h"
#include "gpu_worker/ranks/rank_channel.h"

namespace retroinfer {

// Makes the backend, at the same time as the other ranks, by `shared`, the memory that their
// devices share (ops/collective/rank_memory.h). Loads its part of the model, takes the memory that
// rank 0 hands over, and carries out its commands until it ends. When rank 0 is gone, `on_orphaned`
// is called on a thread of its own: the calling thread may wait for a device that waits for rank
// 0's. What fails is told to rank 0 as well.
//
// Returns: OK at the end of rank 0; as LoadServedEngine(); as RankFollower::Run().
absl::Status ServeRank(const ServedEngineOptions& options, common::UniqueFd shared,
                       RankChannel& channel, std::function<void()> on_orphaned);

}  // namespace retroinfer
