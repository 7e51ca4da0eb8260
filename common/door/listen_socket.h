// Sockets that wait for connections.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/shm/unique_fd.h"

namespace retroinfer::common {

struct ListenSockets {
  std::vector<UniqueFd> sockets;  // of all addresses that the name stands for; non-blocking
  std::string address;            // as given, with the port that was taken where that was 0
};

inline constexpr char kUnixScheme[] = "unix:";

// Listens on "host:port", "[IPv6]:port", or "unix:" and an absolute path. Port 0 takes a free one.
//
// Returns: INVALID_ARGUMENT for what is no address; UNAVAILABLE if it is taken or not of this
//          machine. A socket file that nobody listens on is replaced.
absl::StatusOr<ListenSockets> Listen(const std::string& address);

}  // namespace retroinfer::common
