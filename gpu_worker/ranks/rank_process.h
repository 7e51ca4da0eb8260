// The process of a rank above 0, as rank 0 starts and ends it.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gpu_worker/ranks/rank_channel.h"

namespace retroinfer {

// The process gets the socket as descriptor 3 and what it shares with the devices of other ranks as
// descriptor 4, and ends when that is closed, however rank 0 ends.
// It has a process group of its own, so that Ctrl-C at the terminal reaches rank 0 only, and takes
// no signal that rank 0 has blocked.
//
// Threads: one.
// Owns:    process and socket. The destructor closes the socket and waits for the process to
//          end, which is killed if that takes long.
class RankProcess {
 public:
  static constexpr int kSocket = 3;
  static constexpr int kMemory = 4;

  // Starts the program of `arguments`, a path in front, with this process's environment and
  // output, and a copy of the descriptor `memory`.
  //
  // Returns: NOT_FOUND, PERMISSION_DENIED and so on if it cannot be executed.
  static absl::StatusOr<std::unique_ptr<RankProcess>> Start(std::vector<std::string> arguments,
                                                            int memory);
  ~RankProcess();

  RankChannel& channel() { return *channel_; }
  pid_t pid() const { return pid_; }
  void Signal(int signal);
  // How it has ended: "exit code 1", "signal 9 (Killed)", or that it has not within `timeout`.
  std::string DescribeEnd(absl::Duration timeout);

 private:
  RankProcess() = default;
  bool Wait(absl::Duration timeout);  // returns whether it has ended

  std::unique_ptr<RankChannel> channel_;
  pid_t pid_ = -1;
  bool has_ended_ = false;
  int wait_status_ = 0;
};

}  // namespace retroinfer
