// What a rank above 0 does: carries out the commands of rank 0, in order, until that ends.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gpu_worker/executor/command_runner.h"
#include "gpu_worker/ranks/rank_channel.h"
#include "gpu_worker/ranks/rank_messages.h"
#include "gpu_worker/ranks/written_segments.h"

namespace retroinfer {

// Threads: one, the executor's.
// Owns:    nothing; all parts outlive it.
class RankFollower {
 public:
  struct Parts {
    RankChannel* channel = nullptr;
    CommandRunner* commands = nullptr;  // with Drawing::kElsewhere
    WrittenSegments* written = nullptr;
    CodecLimits limits;
  };
  explicit RankFollower(const Parts& parts) : parts_(parts) {}

  // Answers each command when it is carried out. What rank 0 plans follows from what its own device
  // and background have done: here a command waits until these are as far.
  //
  // Returns: OK if rank 0 has ended, or is gone; else what it sent that cannot be, which is told to
  //          rank 0 as well. Nothing was done of a command that was refused.
  absl::Status Run();

 private:
  absl::Status Take(const RankMessage& message);
  absl::Status Answer(const RankMessage& message);
  // Returns false if rank 0 is gone.
  absl::StatusOr<bool> WaitUntilReady(const StepCommand& command);
  RankStats Stats();

  const Parts parts_;
  bool has_ended_ = false;
  absl::Time next_stats_ = absl::InfinitePast();
  RankStats stats_;
};

}  // namespace retroinfer
