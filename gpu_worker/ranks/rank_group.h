// The other ranks, as rank 0 sees them: each command goes to all of them before rank 0 carries it
// out, and what came of it on all is waited for behind that.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gpu_worker/executor/command_runner.h"
#include "gpu_worker/ranks/rank_channel.h"
#include "gpu_worker/ranks/rank_messages.h"
#include "gpu_worker/ranks/rank_watch.h"

namespace retroinfer {

// A rank that is gone, does not answer in time, or does not do what rank 0 does, is lost: then
// `on_lost` is called, once, with its number and why, on any thread. It is expected to end the
// process. If it returns, no rank gets or answers anything more, and commands that are carried out
// afterwards fail.
//
// Threads: the hooks are called by the engine's thread; the other methods any.
// Owns:    the thread of the watch. The channels outlive the group.
class RankGroup {
 public:
  struct Options {
    CodecLimits limits;
    absl::Duration answer_limit = absl::Minutes(2);  // from a command to the answers of all ranks
    // A rank has written its part of a segment. An error loses the rank.
    std::function<absl::Status(int rank, const WrittenSegment&)> on_written;
    std::function<void(int rank, absl::Status)> on_lost;
  };

  // What a rank has said last, and how long rank 0 has waited for its answers.
  struct Report {
    RankStats stats;
    double waited_seconds = 0;
  };

  // `channels` are those of ranks 1, 2 and so on, which are ready for commands.
  static absl::StatusOr<std::unique_ptr<RankGroup>> Start(std::vector<RankChannel*> channels,
                                                          Options options);
  // The ranks are told to end.
  ~RankGroup();

  // For the runner of rank 0's commands (LocalEngineOptions::hooks).
  CommandHooks Hooks();
  // All ranks log their block caches afresh: a store has restarted.
  void RequestSnapshots();

  int num_ranks() const { return static_cast<int>(channels_.size()) + 1; }
  // By rank, from 1.
  std::vector<Report> Reports() const;

 private:
  RankGroup(std::vector<RankChannel*> channels, Options options)
      : channels_(std::move(channels)), options_(std::move(options)), reports_(channels_.size()) {}

  void Send(const StepCommand& command);
  void TakeAnswers(CommandResult& result);
  absl::Status TakeAnswer(size_t index, CommandResult& result);
  void NoteRejected(const CommandResult& result);
  void Lose(size_t index, absl::Status status);

  const std::vector<RankChannel*> channels_;
  const Options options_;
  std::unique_ptr<RankWatch> watch_;
  std::vector<TakenBack> taken_back_;  // of the last step, to go with the next command; engine's
  std::atomic<bool> is_lost_ = false;

  absl::Mutex send_mutex_;
  mutable absl::Mutex mutex_;
  std::vector<Report> reports_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace retroinfer
