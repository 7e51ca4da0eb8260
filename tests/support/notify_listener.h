// The service manager's end of sd_notify(3), for tests.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/shm/unique_fd.h"

namespace retroinfer::test_support {

// A bound datagram socket. `address` as in NOTIFY_SOCKET: a path or "@" and a name.
class NotifyListener {
 public:
  explicit NotifyListener(const std::string& address) : address_(address) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path, address.data(), address.size());
    if (address[0] == '@') name.sun_path[0] = '\0';
    fd_ = common::UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const size_t length =
        offsetof(sockaddr_un, sun_path) + address.size() + (address[0] == '@' ? 0 : 1);
    bound_ =
        ::bind(fd_.get(), reinterpret_cast<sockaddr*>(&name), static_cast<socklen_t>(length)) == 0;
  }

  bool bound() const { return bound_; }
  const std::string& address() const { return address_; }

  // The next message; empty if none comes for so long.
  std::string Next(absl::Duration timeout) const {
    pollfd poll_fd{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    const int count = ::poll(&poll_fd, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
    if (count <= 0) return "";
    char text[4096];
    const ssize_t bytes = ::recv(fd_.get(), text, sizeof(text), 0);
    return bytes > 0 ? std::string(text, static_cast<size_t>(bytes)) : "";
  }

  // Reads until a message has `part`, and returns it; empty if none has come when `timeout` is
  // over.
  std::string Await(const std::string& part, absl::Duration timeout = absl::Minutes(2)) const {
    const absl::Time deadline = absl::Now() + timeout;
    while (absl::Now() < deadline) {
      const std::string message = Next(deadline - absl::Now());
      if (absl::StrContains(message, part)) return message;
    }
    return "";
  }

 private:
  const std::string address_;
  common::UniqueFd fd_;
  bool bound_ = false;
};

}  // namespace retroinfer::test_support
