// Framed messages with descriptors between two processes of one machine.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/shm/unique_fd.h"

namespace retroinfer::common {

// One received message.
struct FdMessage {
  uint32_t type = 0;
  std::string payload;
  std::vector<UniqueFd> fds;
};

// Returns the message in the bytes of one packet, without descriptors.
//
// Returns: INVALID_ARGUMENT if they are none.
absl::StatusOr<FdMessage> ParseFdPacket(std::span<const char> packet);

// A connected unix SOCK_SEQPACKET socket. One packet is one message:
//
//   OFFSET  SIZE  DESCRIPTION
//   0       4     magic "RTFD"
//   4       2     version, 1
//   6       2     type
//   8       4     payload bytes, at most 4096
//   12      n     payload
//
// with up to 17 descriptors as SCM_RIGHTS.
//
// Threads: one at a time.
// Owns:    the socket.
class FdChannel {
 public:
  static constexpr size_t kPayloadBytesMax = 4096;
  static constexpr size_t kFdsMax = 17;  // an arena and the data planes of 16 ranks

  explicit FdChannel(UniqueFd socket) : socket_(std::move(socket)) {}

  // Connects to a listening socket. Returns NOT_FOUND or UNAVAILABLE if nobody listens there,
  // INVALID_ARGUMENT if the path is too long for a unix socket (107 bytes).
  static absl::StatusOr<FdChannel> Connect(const std::string& path);

  // Returns PERMISSION_DENIED unless the peer runs under this process's user id (SO_PEERCRED).
  absl::Status RequireSameUser() const;
  // Returns the peer's process id; 0 if it is not visible from here.
  pid_t peer_pid() const;

  // Sends one message. The peer gets copies of the descriptors.
  //
  // REQUIRES: payload and fds within their limits; type < 65536.
  // Returns:  UNAVAILABLE if the peer is gone; DEADLINE_EXCEEDED after `timeout`.
  absl::Status Send(uint32_t type, std::string_view payload, std::span<const int> fds,
                    absl::Duration timeout);

  // Receives one message. Descriptors arrive with close-on-exec.
  //
  // Returns: UNAVAILABLE if the peer closed the connection; DEADLINE_EXCEEDED after `timeout`;
  //          INVALID_ARGUMENT for anything that is not a message of this protocol.
  absl::StatusOr<FdMessage> Receive(absl::Duration timeout);

  // For poll(). Readable without a message expected means: closed, or a peer out of protocol.
  int fd() const { return socket_.get(); }

 private:
  UniqueFd socket_;
};

// Listens on a unix socket of mode 0600.
//
// Threads: one at a time.
// Owns:    the socket and its path, which it removes at the end.
class FdListener {
 public:
  // Returns INVALID_ARGUMENT if the path is too long. A socket left behind at `path` is replaced:
  // the caller must know that no other process listens there.
  static absl::StatusOr<FdListener> Listen(const std::string& path);

  FdListener(FdListener&&) = default;
  FdListener& operator=(FdListener&&) = delete;
  ~FdListener();

  // Accepts one connection that is already pending. Returns UNAVAILABLE if none is.
  absl::StatusOr<FdChannel> Accept();

  int fd() const { return socket_.get(); }
  const std::string& path() const { return path_; }

 private:
  FdListener(UniqueFd socket, std::string path)
      : socket_(std::move(socket)), path_(std::move(path)) {}

  UniqueFd socket_;
  std::string path_;
};

}  // namespace retroinfer::common
