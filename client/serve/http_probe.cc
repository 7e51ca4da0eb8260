#include "client/serve/http_probe.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cstring>
#include <string_view>

#include "absl/strings/strip.h"
#include "common/shm/unique_fd.h"

namespace retroinfer::client {
namespace {

// Something that the gateway answers by itself: to ask the worker would begin the pauses between
// attempts to connect before there is one.
constexpr std::string_view kRequest =
    "HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
constexpr std::string_view kAnswer = "HTTP/1.1 ";

}  // namespace

bool AnswersHttp(const std::string& address, absl::Duration timeout) {
  const std::string path(absl::StripPrefix(address, "unix:"));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(name.sun_path)) return false;
  std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
  const common::UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit = absl::ToTimeval(timeout);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
    return false;
  }
  if (::send(socket.get(), kRequest.data(), kRequest.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(kRequest.size())) {
    return false;
  }
  std::string answer;
  char buffer[512];
  while (answer.size() < kAnswer.size()) {
    const ssize_t size = ::recv(socket.get(), buffer, sizeof(buffer), 0);
    if (size <= 0) return false;
    answer.append(buffer, static_cast<size_t>(size));
  }
  return answer.compare(0, kAnswer.size(), kAnswer) == 0;
}

}  // namespace retroinfer::client
