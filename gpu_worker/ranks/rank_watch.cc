#include "gpu_worker/ranks/rank_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/clock/steady_now.h"
#include "common/process/start_thread.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

// Between two looks at how long answers take.
constexpr absl::Duration kLongestPoll = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<RankWatch>> RankWatch::Start(
    std::vector<int> sockets, absl::Duration answer_limit,
    std::function<void(size_t, absl::Status)> on_lost) {
  common::UniqueFd wake(::eventfd(0, EFD_CLOEXEC));
  if (!wake.valid()) return common::ErrnoStatus(errno, "an eventfd for the watch of ranks");
  auto watch = absl::WrapUnique(
      new RankWatch(std::move(sockets), answer_limit, std::move(on_lost), std::move(wake)));
  ASSIGN_OR_RETURN(watch->thread_, common::StartThread([raw = watch.get()] { raw->Loop(); }));
  return watch;
}

RankWatch::RankWatch(std::vector<int> sockets, absl::Duration answer_limit,
                     std::function<void(size_t, absl::Status)> on_lost, common::UniqueFd wake)
    : sockets_(std::move(sockets)),
      answer_limit_(answer_limit),
      on_lost_(std::move(on_lost)),
      wake_(std::move(wake)) {}

RankWatch::~RankWatch() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  thread_.join();
}

void RankWatch::Begin() {
  awaited_ = 0;
  begun_ns_ = absl::ToUnixNanos(common::SteadyNow());
}

void RankWatch::Loop() {
  std::vector<pollfd> polled;
  for (const int socket : sockets_) polled.push_back({socket, POLLRDHUP, 0});
  polled.push_back({wake_.get(), POLLIN, 0});
  const absl::Duration poll = std::min(kLongestPoll, answer_limit_ / 4);
  while (true) {
    for (pollfd& one : polled) one.revents = 0;
    const int timeout_ms = static_cast<int>(std::max<int64_t>(1, absl::ToInt64Milliseconds(poll)));
    const int ready = ::poll(polled.data(), polled.size(), timeout_ms);
    if (ready < 0 && errno != EINTR) {
      return on_lost_(0, common::ErrnoStatus(errno, "poll on the sockets of ranks"));
    }
    if (ready < 0) continue;
    // Who is gone by now is told, also where the watch ends meanwhile.
    for (size_t i = 0; i < sockets_.size(); ++i) {
      if (polled[i].revents == 0) continue;
      return on_lost_(i, absl::UnavailableError("its process has closed the connection"));
    }
    if (polled.back().revents != 0) return;
    const int64_t begun_ns = begun_ns_;
    const absl::Duration waited = common::SteadyNow() - absl::FromUnixNanos(begun_ns);
    if (begun_ns != 0 && waited > answer_limit_) {
      return on_lost_(awaited_, absl::DeadlineExceededError(
                                    absl::StrCat("it has not answered a command within ",
                                                 absl::FormatDuration(answer_limit_))));
    }
  }
}

}  // namespace retroinfer
