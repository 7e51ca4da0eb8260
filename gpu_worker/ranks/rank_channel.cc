#include "gpu_worker/ranks/rank_channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/clock/steady_now.h"
#include "common/log/check.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

struct FrameHeader {
  char magic[4];
  uint16_t version;
  uint16_t type;
  uint64_t payload_bytes;
};
static_assert(sizeof(FrameHeader) == 16);

constexpr char kMagic[4] = {'R', 'T', 'R', 'K'};
constexpr uint16_t kVersion = 1;
// Memory for a payload grows by as much as may come next.
constexpr size_t kPieceBytes = size_t{1} << 20;

absl::Status IsGone() { return absl::UnavailableError("the process of a rank is gone"); }

// Waits until `fd` is ready for `events`.
absl::Status WaitFor(int fd, short events, absl::Time deadline) {
  while (true) {
    const absl::Duration left = std::max(absl::ZeroDuration(), deadline - common::SteadyNow());
    const int64_t timeout_ms = absl::ToInt64Milliseconds(
        std::min(absl::Ceil(left, absl::Milliseconds(1)), absl::Minutes(1)));
    pollfd poll_fd{fd, events, 0};
    const int ready = ::poll(&poll_fd, 1, static_cast<int>(timeout_ms));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return common::ErrnoStatus(errno, "poll on a rank's socket");
    if (ready == 0 && common::SteadyNow() >= deadline) {
      return absl::DeadlineExceededError("the process of a rank did not answer in time");
    }
  }
}

// Moves received descriptors into `fds`, so that none leaks whatever follows.
void TakeFds(msghdr* message, std::vector<common::UniqueFd>* fds) {
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

absl::Status CheckHeader(const FrameHeader& header) {
  const bool is_known = header.type >= static_cast<uint16_t>(RankMessageType::kHello) &&
                        header.type <= static_cast<uint16_t>(RankMessageType::kFailure);
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0 || header.version != kVersion ||
      !is_known || header.payload_bytes > RankChannel::kPayloadBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a rank's socket: bytes that are no message of version ", kVersion, " (type ", header.type,
        ", version ", header.version, ", ", header.payload_bytes, " bytes)"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::pair<common::UniqueFd, common::UniqueFd>> RankChannel::MakePair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return common::ErrnoStatus(errno, "a socket pair for a rank");
  }
  return std::pair(common::UniqueFd(ends[0]), common::UniqueFd(ends[1]));
}

absl::Status RankChannel::Send(RankMessageType type, std::string_view payload,
                               absl::Duration timeout, std::span<const int> fds) {
  RI_CHECK(fds.size() <= kFdsMax);
  if (payload.size() > kPayloadBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a message of ", payload.size(), " bytes to a rank; there may be ", kPayloadBytesMax));
  }
  FrameHeader header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.type = static_cast<uint16_t>(type);
  header.payload_bytes = payload.size();
  alignas(cmsghdr) char control[CMSG_SPACE(kFdsMax * sizeof(int))] = {};
  const absl::Time deadline = common::SteadyNow() + timeout;
  for (size_t sent = 0; sent < sizeof(header) + payload.size();) {
    const size_t of_header = std::min(sent, sizeof(header));
    const size_t of_payload = sent - of_header;
    iovec parts[2] = {
        {reinterpret_cast<char*>(&header) + of_header, sizeof(header) - of_header},
        {const_cast<char*>(payload.data()) + of_payload, payload.size() - of_payload}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    if (sent == 0 && !fds.empty()) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(fds.size_bytes());
      cmsghdr* const c = CMSG_FIRSTHDR(&message);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(fds.size_bytes());
      std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
    }
    const ssize_t count = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      sent += static_cast<size_t>(count);
    } else if (errno == EAGAIN) {
      RETURN_IF_ERROR(WaitFor(socket_.get(), POLLOUT, deadline));
    } else if (errno != EINTR) {
      return errno == EPIPE || errno == ECONNRESET
                 ? IsGone()
                 : common::ErrnoStatus(errno, "sending to a rank");
    }
  }
  return absl::OkStatus();
}

absl::Status RankChannel::ReceiveBytes(std::span<char> bytes, absl::Time deadline,
                                       std::vector<common::UniqueFd>* fds) {
  alignas(cmsghdr) char control[CMSG_SPACE(kFdsMax * sizeof(int))];
  while (!bytes.empty()) {
    iovec part{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t count = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (count >= 0) TakeFds(&message, fds);
    if ((count >= 0 && (message.msg_flags & MSG_CTRUNC) != 0) || fds->size() > kFdsMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("a rank's socket: more than ", kFdsMax, " descriptors in a message"));
    }
    if (count > 0) {
      bytes = bytes.subspan(static_cast<size_t>(count));
    } else if (count == 0 || errno == ECONNRESET) {
      return IsGone();
    } else if (errno == EAGAIN) {
      RETURN_IF_ERROR(WaitFor(socket_.get(), POLLIN, deadline));
    } else if (errno != EINTR) {
      return common::ErrnoStatus(errno, "receiving from a rank");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<RankMessage> RankChannel::Receive(absl::Duration timeout) {
  const absl::Time deadline = common::SteadyNow() + timeout;
  RankMessage message;
  FrameHeader header{};
  RETURN_IF_ERROR(
      ReceiveBytes({reinterpret_cast<char*>(&header), sizeof(header)}, deadline, &message.fds));
  RETURN_IF_ERROR(CheckHeader(header));
  message.type = static_cast<RankMessageType>(header.type);
  while (message.payload.size() < header.payload_bytes) {
    const size_t before = message.payload.size();
    const size_t more = std::min<size_t>(kPieceBytes, header.payload_bytes - before);
    message.payload.resize(before + more);
    RETURN_IF_ERROR(
        ReceiveBytes(std::span(message.payload).subspan(before), deadline, &message.fds));
  }
  return message;
}

bool RankChannel::AwaitMessage(absl::Duration timeout) const {
  return WaitFor(socket_.get(), POLLIN, common::SteadyNow() + timeout).ok();
}

bool RankChannel::IsClosed() const {
  pollfd poll_fd{socket_.get(), POLLRDHUP, 0};
  return ::poll(&poll_fd, 1, 0) > 0;
}

}  // namespace retroinfer
