// A file beside the store's sockets in which a worker keeps a place locked while it lives.
//
// It tells a store that starts whether anybody still holds the memory of the store before, and a
// store that goes on whether the process of a lease that ended is gone, also where the worker's
// process id says nothing: in another pid namespace, or after the id was used again. The kernel
// drops the lock with the process, however that ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

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

  // Returns the place of the worker that attached with this token.
  static uint64_t PlaceOf(std::string_view attach_token);

  // Locks a place, one byte, until this object ends. Several workers can, each its own or the same.
  // Reading rights are enough.
  //
  // Returns: NOT_FOUND if the store of this folder makes none.
  static absl::StatusOr<WorkerMark> Hold(const std::string& folder, uint64_t place = 0);

  // Returns whether a worker holds any place, or that one; nothing if there is no such file.
  static std::optional<bool> IsHeld(const std::string& folder);
  static std::optional<bool> IsHeld(const std::string& folder, uint64_t place);

 private:
  explicit WorkerMark(UniqueFd file) : file_(std::move(file)) {}

  UniqueFd file_;
};

}  // namespace retroinfer::common
