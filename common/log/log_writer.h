// Writes log lines to a descriptor on a thread of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/shm/unique_fd.h"

namespace retroinfer::common {

// Who logs never waits for who reads the log: lines are queued, and those for which the queue has
// no room, or which cannot be written, are left out and counted. As soon as lines go through again,
// the log says how many are missing.
//
// Threads: any. The writing thread takes no signals, and does not delay the end of the process:
//          when this object goes while a write is stuck, the thread is left behind.
class LogWriter {
 public:
  struct Options {
    size_t queue_bytes = size_t{1} << 20;
    // How long the destructor waits for lines to be written.
    absl::Duration farewell = absl::Seconds(1);
    // Makes the line that says how many lines are missing, with its newline.
    std::function<std::string(uint64_t num_dropped)> describe_dropped;
  };

  LogWriter(UniqueFd fd, Options options);
  ~LogWriter();

  // Queues `line`, which has its newline. Never blocks on the descriptor.
  void Write(std::string line);
  // Lines that are queued from now on go to `fd`.
  void Replace(UniqueFd fd);
  // Waits until what was queued before is written or left out; false if `timeout` came first.
  bool Flush(absl::Duration timeout);
  // Lines that were left out since the start.
  uint64_t num_dropped() const;

 private:
  struct State;

  const absl::Duration farewell_;
  const std::shared_ptr<State> state_;
};

}  // namespace retroinfer::common
