// How rank 0 and the others agree before the first command: who they are, what memory all of them
// plan with, and that all have it.
//
// Threads: one, that of the channels.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gpu_worker/ranks/rank_channel.h"
#include "gpu_worker/ranks/rank_messages.h"

namespace retroinfer {

// How long another rank may take, after rank 0 has come as far.
struct HandshakeLimits {
  absl::Duration limit = absl::Minutes(30);
  std::function<void()> on_wait;  // called now and then while rank 0 waits; may be empty
};

// Takes the hellos of the ranks of `channels`, 1 and above, and returns what all of them can plan
// with; `own` is rank 0's.
//
// Returns: FAILED_PRECONDITION, with the rank, for another program, model or kind of device than
//          rank 0 has; the failure of a rank that has failed; UNAVAILABLE if one is gone,
//          DEADLINE_EXCEEDED if it takes too long.
absl::StatusOr<SharedPlan> MeetRanks(std::span<RankChannel* const> channels, const RankHello& own,
                                     const HandshakeLimits& limits);

// Sends each rank what to plan with, and the descriptors of the arena and of its data plane:
// descriptors[r - 1] are rank r's.
absl::Status HandOverMemory(std::span<RankChannel* const> channels, const SharedPlan& memory,
                            std::span<const std::vector<int>> descriptors);

// Waits until all ranks have their memory.
//
// Returns: FAILED_PRECONDITION if a rank has planned otherwise than rank 0, whose plan is `plan`,
//          which is MemoryPlan::ToString(); as MeetRanks().
absl::Status AwaitReady(std::span<RankChannel* const> channels, std::string_view plan,
                        const HandshakeLimits& limits);

}  // namespace retroinfer
