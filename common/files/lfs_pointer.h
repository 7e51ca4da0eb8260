// Files that Git LFS leaves in the place of large ones: a clone without Git LFS has a few lines of
// text where weights should be.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace retroinfer::common {

// Checks that a file that begins with `bytes` is no pointer of Git LFS, by the specification of
// version 1.
//
// Returns: INVALID_ARGUMENT that says of the file at `path` that it is one, how large the file is
//          that it stands for, and how to have that.
absl::Status RefuseLfsPointer(std::string_view bytes, std::string_view path);

}  // namespace retroinfer::common
