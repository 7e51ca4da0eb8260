// The folder in which the services of one machine meet, and who is in it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shm/unique_fd.h"

namespace retroinfer::common {

// Makes a folder of mode 0700 if it is not there.
//
// Returns: INVALID_ARGUMENT for a path that is not absolute; PERMISSION_DENIED if others may enter
//          the folder; errors of the system.
absl::Status PrepareSocketFolder(const std::string& folder);

// Keeps a role in a folder for one process: the lock of a file, which ends with the process however
// that ends, and in which its name and number stand for those who come later.
//
// Threads: one.
class FolderLock {
 public:
  // Takes the role ROLE by the file ROLE.lock. `program` is what messages call this process. Waits
  // for a process that has been killed and is not quite gone, and for no other.
  // REQUIRES: PrepareSocketFolder(folder) was OK.
  //
  // Returns: ALREADY_EXISTS, with the name of the process, if another one has it; errors of the
  //          system.
  static absl::StatusOr<FolderLock> Take(const std::string& folder, const std::string& role,
                                         const std::string& program);

  // Says who has the role: "gpu_worker (process 123)"; nothing if nobody has it now.
  static std::optional<std::string> Holder(const std::string& folder, const std::string& role);

 private:
  explicit FolderLock(UniqueFd file) : file_(std::move(file)) {}

  UniqueFd file_;
};

}  // namespace retroinfer::common
