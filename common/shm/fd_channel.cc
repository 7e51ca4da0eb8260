#include "common/shm/fd_channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock/steady_now.h"
#include "common/log/check.h"
#include "common/shm/socket_messages.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer::common {
namespace {

struct FrameHeader {
  char magic[4];
  uint16_t version;
  uint16_t type;
  uint32_t payload_bytes;
};
static_assert(sizeof(FrameHeader) == 12);

constexpr char kMagic[4] = {'R', 'T', 'F', 'D'};
constexpr uint16_t kVersion = 1;

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("unix socket path '", path, "' has ",
                                                   path.size(), " bytes, needs 1 to ",
                                                   sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::StatusOr<UniqueFd> NewSocket() {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return ErrnoStatus(errno, "creating a unix socket");
  return socket;
}

constexpr char kPeer[] = "the peer of a descriptor channel";

absl::StatusOr<ucred> PeerOf(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return ErrnoStatus(errno, "descriptor channel: SO_PEERCRED");
  }
  return peer;
}

}  // namespace

absl::StatusOr<FdChannel> FdChannel::Connect(const std::string& path) {
  ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  ASSIGN_OR_RETURN(UniqueFd socket, NewSocket());
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    // EAGAIN: the listener's queue is full.
    const int error = errno == EAGAIN ? ECONNREFUSED : errno;
    return ErrnoStatus(error, absl::StrCat("connecting to ", path));
  }
  return FdChannel(std::move(socket));
}

absl::Status FdChannel::RequireSameUser() const {
  ASSIGN_OR_RETURN(const ucred peer, PeerOf(socket_.get()));
  if (peer.uid == ::geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("descriptor channel: the peer is user ", peer.uid, ", needs ", ::geteuid()));
}

pid_t FdChannel::peer_pid() const {
  const auto peer = PeerOf(socket_.get());
  return peer.ok() ? peer->pid : 0;
}

absl::Status FdChannel::Send(uint32_t type, std::string_view payload, std::span<const int> fds,
                             absl::Duration timeout) {
  RI_CHECK(payload.size() <= kPayloadBytesMax && fds.size() <= kFdsMax && type < 65536);
  FrameHeader header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.type = static_cast<uint16_t>(type);
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  iovec parts[2] = {{&header, sizeof(header)}, {const_cast<char*>(payload.data()), payload.size()}};
  FdRoom<kFdsMax> room;
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  PutFds(fds, room.bytes, &message);
  const absl::Time deadline = SteadyNow() + timeout;
  while (true) {
    if (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) >= 0) return absl::OkStatus();
    if (errno != EAGAIN && errno != EINTR) return ErrnoStatus(errno, "descriptor channel: sending");
    RETURN_IF_ERROR(AwaitSocket(socket_.get(), POLLOUT, deadline, kPeer));
  }
}

absl::StatusOr<FdMessage> ParseFdPacket(std::span<const char> packet) {
  FrameHeader header{};
  if (packet.size() >= sizeof(header)) std::memcpy(&header, packet.data(), sizeof(header));
  if (packet.size() < sizeof(header) || std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0 ||
      header.version != kVersion || header.payload_bytes != packet.size() - sizeof(header) ||
      header.payload_bytes > FdChannel::kPayloadBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("descriptor channel: a packet of ", packet.size(),
                     " bytes is not a message of version ", kVersion));
  }
  FdMessage message;
  message.type = header.type;
  message.payload.assign(packet.begin() + sizeof(header), packet.end());
  return message;
}

absl::StatusOr<FdMessage> FdChannel::Receive(absl::Duration timeout) {
  char packet[sizeof(FrameHeader) + kPayloadBytesMax];
  iovec part = {packet, sizeof(packet)};
  FdRoom<kFdsMax> room;
  const absl::Time deadline = SteadyNow() + timeout;
  msghdr message{};
  ssize_t received;
  while (true) {
    message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = room.bytes;
    message.msg_controllen = sizeof(room.bytes);
    received = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    if (received >= 0) break;
    if (errno != EAGAIN && errno != EINTR) {
      return ErrnoStatus(errno, "descriptor channel: receiving");
    }
    RETURN_IF_ERROR(AwaitSocket(socket_.get(), POLLIN, deadline, kPeer));
  }
  std::vector<UniqueFd> fds;
  TakeFds(&message, &fds);
  if (received == 0) return absl::UnavailableError("descriptor channel: the peer has closed it");
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return absl::InvalidArgumentError("descriptor channel: a packet is longer than any message");
  }
  ASSIGN_OR_RETURN(FdMessage out, ParseFdPacket({packet, static_cast<size_t>(received)}));
  out.fds = std::move(fds);
  return out;
}

absl::StatusOr<FdListener> FdListener::Listen(const std::string& path) {
  ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  ASSIGN_OR_RETURN(UniqueFd socket, NewSocket());
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode)) ::unlink(path.c_str());
  // The socket exists with its final mode from the start: fchmod on a socket sets what bind gives.
  if (::fchmod(socket.get(), 0600) != 0 ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("binding ", path));
  }
  FdListener listener(std::move(socket), path);
  if (::listen(listener.fd(), /*backlog=*/16) != 0) {
    return ErrnoStatus(errno, absl::StrCat("listening on ", path));
  }
  return listener;
}

FdListener::~FdListener() {
  if (socket_.valid()) ::unlink(path_.c_str());
}

absl::StatusOr<FdChannel> FdListener::Accept() {
  UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.valid()) return FdChannel(std::move(socket));
  const bool none = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
  return ErrnoStatus(none ? ECONNREFUSED : errno, "accepting a connection");
}

}  // namespace retroinfer::common
