#include "common/door/listen_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer::common {
namespace {

constexpr int kBacklog = 512;

UniqueFd NewSocket(int family, int flags) {
  return UniqueFd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
}

absl::Status Taken(const std::string& address, int error) {
  return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ",
                                             std::string(ErrnoStatus(error, "").message()),
                                             "; the address is taken or not of this machine"));
}

absl::StatusOr<ListenSockets> ListenUnix(const std::string& address) {
  const std::string path(absl::StripPrefix(address, kUnixScheme));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.empty() || path.front() != '/' || path.size() >= sizeof(name.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("the socket path '", path,
                                                   "' must be absolute and shorter than ",
                                                   sizeof(name.sun_path), " bytes"));
  }
  std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
  const auto* const raw = reinterpret_cast<const sockaddr*>(&name);
  if (::connect(NewSocket(AF_UNIX, 0).get(), raw, sizeof(name)) == 0) {
    return absl::UnavailableError(absl::StrCat("another server listens on ", path));
  }
  struct stat info {};
  if (errno == ECONNREFUSED && ::lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode)) {
    ::unlink(path.c_str());  // left by a process that is gone
  }
  ListenSockets result;
  result.address = address;
  result.sockets.push_back(NewSocket(AF_UNIX, SOCK_NONBLOCK));
  const int fd = result.sockets.front().get();
  if (::bind(fd, raw, sizeof(name)) != 0 || ::listen(fd, kBacklog) != 0) {
    return Taken(address, errno);
  }
  return result;
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

absl::StatusOr<Addresses> Resolve(const std::string& address, int* port) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), port) || *port < 0 || *port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("the address '", address,
                     "' must be host:port with a port of 0 to 65535, or unix: and a path"));
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* list = nullptr;
  // Both loopback addresses, whatever a name server says, or if none does.
  const bool local = host == "localhost";
  if (local) hints.ai_flags = 0;
  const int error = ::getaddrinfo(local ? nullptr : host.c_str(), "0", &hints, &list);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, ": ", ::gai_strerror(error)));
  }
  return Addresses(list);
}

void SetPort(addrinfo* entry, int port) {
  const uint16_t value = htons(static_cast<uint16_t>(port));
  if (entry->ai_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(entry->ai_addr)->sin6_port = value;
  } else {
    reinterpret_cast<sockaddr_in*>(entry->ai_addr)->sin_port = value;
  }
}

int PortOf(int fd) {
  sockaddr_storage name{};
  socklen_t size = sizeof(name);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size);
  return ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&name)->sin6_port
                                          : reinterpret_cast<sockaddr_in*>(&name)->sin_port);
}

absl::StatusOr<ListenSockets> ListenTcp(const std::string& address) {
  int port = 0;
  ASSIGN_OR_RETURN(const Addresses addresses, Resolve(address, &port));
  ListenSockets result;
  int error = 0;
  for (addrinfo* entry = addresses.get(); entry != nullptr; entry = entry->ai_next) {
    UniqueFd fd = NewSocket(entry->ai_family, SOCK_NONBLOCK);
    if (!fd.valid()) continue;  // a family that this machine does not have
    const int on = 1;
    // After a restart; on Linux it lets no second process listen beside this one.
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (entry->ai_family == AF_INET6 && entry->ai_next != nullptr) {
      ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
    }
    SetPort(entry, port);
    if (::bind(fd.get(), entry->ai_addr, entry->ai_addrlen) != 0 ||
        ::listen(fd.get(), kBacklog) != 0) {
      error = errno;
      // A name may stand for addresses that this machine lacks, but none may be another server's.
      if (error == EADDRINUSE) return Taken(address, error);
      continue;
    }
    port = PortOf(fd.get());
    result.sockets.push_back(std::move(fd));
  }
  if (result.sockets.empty()) return Taken(address, error);
  result.address = absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
  return result;
}

}  // namespace

absl::StatusOr<ListenSockets> Listen(const std::string& address) {
  if (absl::StartsWith(address, kUnixScheme)) return ListenUnix(address);
  // A port that is free on the first of several addresses may be taken on another one.
  const int attempts = absl::EndsWith(address, ":0") ? 10 : 1;
  absl::StatusOr<ListenSockets> result = ListenTcp(address);
  for (int i = 1; i < attempts && absl::IsUnavailable(result.status()); ++i) {
    result = ListenTcp(address);
  }
  return result;
}

}  // namespace retroinfer::common
