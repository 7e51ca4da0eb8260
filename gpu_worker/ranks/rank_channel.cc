#include "gpu_worker/ranks/rank_channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/clock/steady_now.h"
#include "common/log/check.h"
#include "common/shm/socket_messages.h"
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

constexpr char kPeer[] = "the process of a rank";

absl::Status IsGone() { return absl::UnavailableError(absl::StrCat(kPeer, " is gone")); }

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
  common::FdRoom<kFdsMax> room;
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
    if (sent == 0) common::PutFds(fds, room.bytes, &message);
    const ssize_t count = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      sent += static_cast<size_t>(count);
    } else if (errno == EAGAIN) {
      RETURN_IF_ERROR(common::AwaitSocket(socket_.get(), POLLOUT, deadline, kPeer));
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
  common::FdRoom<kFdsMax> room;
  while (!bytes.empty()) {
    iovec part{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = room.bytes;
    message.msg_controllen = sizeof(room.bytes);
    const ssize_t count = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (count >= 0) common::TakeFds(&message, fds);
    if ((count >= 0 && (message.msg_flags & MSG_CTRUNC) != 0) || fds->size() > kFdsMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("a rank's socket: more than ", kFdsMax, " descriptors in a message"));
    }
    if (count > 0) {
      bytes = bytes.subspan(static_cast<size_t>(count));
    } else if (count == 0 || errno == ECONNRESET) {
      return IsGone();
    } else if (errno == EAGAIN) {
      RETURN_IF_ERROR(common::AwaitSocket(socket_.get(), POLLIN, deadline, kPeer));
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
  return common::AwaitSocket(socket_.get(), POLLIN, common::SteadyNow() + timeout, kPeer).ok();
}

bool RankChannel::IsClosed() const {
  pollfd poll_fd{socket_.get(), POLLRDHUP, 0};
  return ::poll(&poll_fd, 1, 0) > 0;
}

}  // namespace retroinfer
