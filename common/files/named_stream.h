// Files, pipes and devices that a user has named. A FIFO whose other end nobody has opened is
// refused: opening it would wait for ever, and say nothing.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shm/unique_fd.h"

namespace retroinfer::common {

// Opens `path` for writing as open(2) does with `flags` and `mode`. Close-on-exec is set. Writes
// wait for who reads a pipe.
//
// Returns: FAILED_PRECONDITION for a FIFO that nobody reads; NOT_FOUND, PERMISSION_DENIED and so on
//          as open(2) says.
absl::StatusOr<UniqueFd> OpenNamedOutput(const std::string& path, int flags, mode_t mode);

// Writes `text` to `path`, which is emptied or made before.
//
// Returns: RESOURCE_EXHAUSTED no room on the disk; else as above.
absl::Status WriteNamedOutput(const std::string& path, std::string_view text);

// Reads from the beginning to the end.
//
// Threads: one.
class NamedInput {
 public:
  // Returns: NOT_FOUND, PERMISSION_DENIED and so on as open(2) says.
  static absl::StatusOr<NamedInput> Open(const std::string& path);

  // Reads at most `size` bytes into `data` and returns their number, 0 at the end. Waits for who
  // writes into a pipe, until `should_stop` (null: never) says otherwise.
  //
  // Returns: FAILED_PRECONDITION for a FIFO that nobody writes to; CANCELLED; else as read(2) says.
  absl::StatusOr<size_t> Read(char* data, size_t size,
                              const std::function<bool()>& should_stop = nullptr);

 private:
  NamedInput(std::string path, UniqueFd file, bool is_fifo)
      : path_(std::move(path)), file_(std::move(file)), may_be_alone_(is_fifo) {}

  std::string path_;
  UniqueFd file_;
  bool may_be_alone_;  // nothing has come from a FIFO
};

}  // namespace retroinfer::common
