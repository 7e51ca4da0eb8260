// Notices that the process at the other end of a socket is gone, or does not answer.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/shm/unique_fd.h"

namespace retroinfer {

// Whoever waits for an answer may be held up by the device, which waits for the device of a process
// that is gone: so a thread of its own looks at the sockets, and at how long nobody has answered.
//
// Threads: Begin(), Await() and End() one, in turns; `on_lost` is called by the watch's own thread.
// Owns:    the thread. The sockets outlive the watch.
class RankWatch {
 public:
  // `on_lost` gets the index of the socket of whoever is gone, or has not answered within
  // `answer_limit`, and what was noticed; it is called once.
  //
  // Returns: errors of the system, which gives no descriptor or no thread.
  static absl::StatusOr<std::unique_ptr<RankWatch>> Start(
      std::vector<int> sockets, absl::Duration answer_limit,
      std::function<void(size_t, absl::Status)> on_lost);
  ~RankWatch();

  // From now on answers are waited for: that of the first socket before others.
  void Begin();
  // That of socket `index` is the next one.
  void Await(size_t index) { awaited_ = index; }
  // All of them have come.
  void End() { begun_ns_ = 0; }

 private:
  RankWatch(std::vector<int> sockets, absl::Duration answer_limit,
            std::function<void(size_t, absl::Status)> on_lost, common::UniqueFd wake);
  void Loop();

  const std::vector<int> sockets_;
  const absl::Duration answer_limit_;
  const std::function<void(size_t, absl::Status)> on_lost_;
  const common::UniqueFd wake_;        // readable: the watch ends
  std::atomic<int64_t> begun_ns_ = 0;  // 0: nobody is waited for
  std::atomic<size_t> awaited_ = 0;
  std::thread thread_;
};

}  // namespace retroinfer
