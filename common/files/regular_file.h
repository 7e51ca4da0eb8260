// Opening and reading files in folders whose entries may be anything.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shm/unique_fd.h"

namespace retroinfer::common {

// "a FIFO", "a symbolic link", and so on.
const char* FileTypeName(mode_t mode);

// Returns whether anything, also a link that leads nowhere, has this path.
bool SomethingIsAt(const std::string& path);

// Opens a file as open(2) does with `flags` and mode 0600, but only a regular one, and for writing
// only one that has no other name: no link is followed and nothing is waited for. Close-on-exec is
// set.
//
// Returns: FAILED_PRECONDITION if something else is at `path`, which stays as it is; NOT_FOUND,
//          PERMISSION_DENIED and so on as open(2) says.
absl::StatusOr<UniqueFd> OpenRegularFile(const std::string& path, int flags);

// Returns all of a file that is opened as above.
//
// Returns: RESOURCE_EXHAUSTED if it has more than `bytes_max` bytes.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t bytes_max);

// Returns all of a file that a user has named: links are followed, as secrets of Kubernetes are
// links, but what is no regular file behind them is neither waited for nor read.
//
// Returns: INVALID_ARGUMENT for a FIFO, a device, a folder; RESOURCE_EXHAUSTED if it has more than
//          `bytes_max` bytes; NOT_FOUND, PERMISSION_DENIED and so on as open(2) says.
absl::StatusOr<std::string> ReadNamedFile(const std::string& path, size_t bytes_max);

// Writes `text` to `path`.next and moves that to `path`: after a crash there is the old file or the
// new one. Refuses what is no regular file as above.
//
// Returns: RESOURCE_EXHAUSTED no room on the disk; else as above.
absl::Status ReplaceRegularFile(const std::string& path, std::string_view text);

// Checks that `folder` has room for `bytes` by allocating them for a moment: what the file system
// says of its free space leaves quotas out.
//
// Returns: RESOURCE_EXHAUSTED if they are not to be had.
absl::Status RequireRoom(const std::string& folder, uint64_t bytes);

// FAILED_PRECONDITION unless `path` is a folder itself, no link to one; NOT_FOUND if nothing is
// there.
absl::Status RequireFolder(const std::string& path);

}  // namespace retroinfer::common
