// A folder that only its owner can enter, and that does not outlive the process.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/shm/unique_fd.h"

namespace retroinfer::client {

// Removed with all that is in it when the object goes or the process ends, however that happens:
// a child process, which no signal for this one reaches, makes it, waits for the end of a socket
// and removes it.
//
// Threads: one. Make it before the process has other threads: the child is forked and not replaced.
// Owns:    the folder, the child.
class PrivateFolder {
 public:
  // Makes PREFIX-XXXXXX of mode 0700 in $TMPDIR, or in /tmp where that is not set or is too long
  // for the path of a unix socket. REQUIRES: `prefix` has at most 40 bytes.
  //
  // Returns: errors of the system.
  static absl::StatusOr<PrivateFolder> Create(const std::string& prefix);
  // Waits until the folder is gone.
  ~PrivateFolder();
  PrivateFolder(PrivateFolder&& other) noexcept;
  PrivateFolder& operator=(PrivateFolder&&) = delete;

  const std::string& path() const { return path_; }

 private:
  PrivateFolder(common::UniqueFd alive, pid_t child) : alive_(std::move(alive)), child_(child) {}

  std::string path_;
  common::UniqueFd alive_;  // the child sees it close
  pid_t child_;             // -1: moved from
};

}  // namespace retroinfer::client
