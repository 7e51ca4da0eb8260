// A file beside the store's sockets that a worker keeps locked while it lives.
//
// It tells a store that starts whether anybody still holds the memory of the store before, also
// where the worker's process id says nothing: in another pid namespace, or after the id was used
// again. The kernel drops the lock with the process, however that ends.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shm/unique_fd.h"

namespace retroinfer::common {

// Threads: one at a time.
// Owns:    the lock.
class WorkerMark {
 public:
  // Makes the file in `folder`; the store does so when it starts.
  static absl::Status Make(const std::string& folder);

  // Locks the file until this object ends. Several workers can. Reading rights are enough.
  //
  // Returns: NOT_FOUND if the store of this folder makes none.
  static absl::StatusOr<WorkerMark> Hold(const std::string& folder);

  // Returns whether a worker holds the mark; nothing if there is no such file.
  static std::optional<bool> IsHeld(const std::string& folder);

 private:
  explicit WorkerMark(UniqueFd file) : file_(std::move(file)) {}

  UniqueFd file_;
};

}  // namespace retroinfer::common
