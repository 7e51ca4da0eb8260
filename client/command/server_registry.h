// Where servers of this user run, for commands that are not told.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace retroinfer::client {

// A folder of mode 0700 with a symbolic link to the socket folder of each `retroinfer serve`: its
// name is the process's number. A link that a killed server left behind is found by its folder, in
// which nobody has a role any more.
//
// Threads: immutable; any thread and process.
class ServerRegistry {
 public:
  // $XDG_RUNTIME_DIR/retroinfer-servers, or /tmp/retroinfer-<user id>-servers.
  static std::string DefaultFolder();

  explicit ServerRegistry(std::string folder = DefaultFolder()) : folder_(std::move(folder)) {}

  // Notes this process's server, and forgets those that have ended.
  //
  // Returns: errors of the system; PERMISSION_DENIED if the folder is not this user's alone.
  absl::Status Add(const std::string& socket_dir) const;
  void Remove() const;

  // Socket folders in which a service runs: of noted servers, of `usual` (those that programs use
  // without being told), each once, sorted.
  std::vector<std::string> Running(const std::vector<std::string>& usual) const;

 private:
  const std::string folder_;
};

}  // namespace retroinfer::client
