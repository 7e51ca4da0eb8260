// What channels over unix sockets have in common: descriptors beside bytes, and waits with a
// deadline.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/shm/unique_fd.h"

namespace retroinfer::common {

// Room beside a message for up to kMax descriptors (SCM_RIGHTS).
template <size_t kMax>
struct FdRoom {
  alignas(cmsghdr) char bytes[CMSG_SPACE(kMax * sizeof(int))] = {};
};

// Puts descriptors beside `message`, in `room`, which must outlive its sending.
//
// REQUIRES: room.size() >= CMSG_SPACE(fds.size_bytes()).
void PutFds(std::span<const int> fds, std::span<char> room, msghdr* message);

// Moves the descriptors of a received message into `fds`, so that none leaks whatever follows.
void TakeFds(msghdr* message, std::vector<UniqueFd>* fds);

// Waits until `fd` is ready for `events`, of poll(). `deadline` is one of SteadyNow().
//
// Returns: DEADLINE_EXCEEDED, saying that `peer` did not answer in time.
absl::Status AwaitSocket(int fd, short events, absl::Time deadline, const char* peer);

}  // namespace retroinfer::common
