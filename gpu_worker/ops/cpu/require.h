// Checks of an operation's arguments.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace retroinfer::cpu {

// Returns INVALID_ARGUMENT "<op>: needs <what>" unless `satisfied`. Costs nothing when it is.
inline absl::Status Require(bool satisfied, const char* op, const char* what) {
  if (satisfied) [[likely]]
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(op, ": needs ", what));
}

}  // namespace retroinfer::cpu
