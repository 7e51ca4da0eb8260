// Who reaches an address.
#pragma once

#include <string>

namespace retroinfer::common {

// Whether "host:port" or "unix:path" is reached from this machine alone: unix sockets, localhost,
// 127.0.0.0/8 and [::1]. A name that is not "localhost" counts as reached by others.
bool IsLoopback(const std::string& address);

}  // namespace retroinfer::common
