// The folder in which the services of one machine meet.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace retroinfer::client {

// $XDG_RUNTIME_DIR/retroinfer, or /tmp/retroinfer-<user id>: what both services use by default.
inline std::string DefaultSocketDir() {
  const char* runtime_dir = std::getenv("XDG_RUNTIME_DIR");
  if (runtime_dir != nullptr && *runtime_dir == '/') {
    return std::string(runtime_dir) + "/retroinfer";
  }
  return "/tmp/retroinfer-" + std::to_string(::geteuid());
}

}  // namespace retroinfer::client
