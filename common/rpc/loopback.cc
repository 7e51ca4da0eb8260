#include "common/rpc/loopback.h"

#include <arpa/inet.h>

#include "absl/strings/match.h"

namespace retroinfer::common {

bool IsLoopback(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return true;
  const std::string host = address.substr(0, address.rfind(':'));
  if (host == "localhost" || host == "[::1]") return true;
  in_addr parsed{};
  return ::inet_pton(AF_INET, host.c_str(), &parsed) == 1 && (ntohl(parsed.s_addr) >> 24) == 127;
}

}  // namespace retroinfer::common
