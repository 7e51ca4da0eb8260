// A folder that only its owner can enter, and that does not outlive the process.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "common/shm/unique_fd.h"

namespace retroinfer::client {

// Removed with all that is in it when the object goes or the process ends, however that happens:
// a child process, which no signal for this one reaches, waits for the end of a pipe.
//
// Threads: one. Make it before the process has other threads: the child is forked and not replaced.
// Owns:    the folder, the child.
class PrivateFolder {
 public:
  // Makes PREFIX-XXXXXX of mode 0700 in $TMPDIR, or in /tmp where that is not set or is too long
  // for the path of a unix socket.
  //
  // Returns: errors of the system.
  static absl::StatusOr<PrivateFolder> Create(const std::string& prefix);
  // Waits until the folder is gone.
  ~PrivateFolder();
  PrivateFolder(PrivateFolder&& other) noexcept;
  PrivateFolder& operator=(PrivateFolder&&) = delete;

  const std::string& path() const { return path_; }

 private:
  PrivateFolder(std::string path, common::UniqueFd alive, pid_t remover)
      : path_(std::move(path)), alive_(std::move(alive)), remover_(remover) {}

  std::string path_;
  common::UniqueFd alive_;  // the end of the pipe that nobody writes to
  pid_t remover_;           // -1: moved from
};

}  // namespace retroinfer::client
