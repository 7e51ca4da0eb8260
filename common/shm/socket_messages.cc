#include "common/shm/socket_messages.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/clock/steady_now.h"
#include "common/log/check.h"
#include "common/status/errno_status.h"

namespace retroinfer::common {

void PutFds(std::span<const int> fds, std::span<char> room, msghdr* message) {
  if (fds.empty()) return;
  RI_CHECK(room.size() >= CMSG_SPACE(fds.size_bytes()));
  message->msg_control = room.data();
  message->msg_controllen = CMSG_SPACE(fds.size_bytes());
  cmsghdr* const c = CMSG_FIRSTHDR(message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(fds.size_bytes());
  std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
}

void TakeFds(msghdr* message, std::vector<UniqueFd>* fds) {
  for (cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      fds->emplace_back(fd);
    }
  }
}

absl::Status AwaitSocket(int fd, short events, absl::Time deadline, const char* peer) {
  while (true) {
    const absl::Duration left = std::max(absl::ZeroDuration(), deadline - SteadyNow());
    const int64_t timeout_ms = absl::ToInt64Milliseconds(
        std::min(absl::Ceil(left, absl::Milliseconds(1)), absl::Minutes(1)));
    pollfd poll_fd{fd, events, 0};
    const int ready = ::poll(&poll_fd, 1, static_cast<int>(timeout_ms));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) {
      return ErrnoStatus(errno, absl::StrCat("poll on the socket of ", peer));
    }
    if (ready == 0 && SteadyNow() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(peer, " did not answer in time"));
    }
  }
}

}  // namespace retroinfer::common
