// The query heads of a group that one launch works on: kernels have room for a few, and a group of
// more takes several launches. What a head gets does not depend on the slice that it is in.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "common/status/status_macros.h"

namespace retroinfer::cuda {

struct GroupSlice {
  int32_t group;  // query heads that share a KV head
  int32_t first;  // of them
  int32_t count;
};

// Calls run(slice) for slices of nearly equal size, at most `most` heads each, that make up
// `group`.
template <typename Run>
absl::Status ForSlices(int32_t group, int32_t most, Run run) {
  const int32_t slices = (group + most - 1) / most;
  const int32_t heads = slices == 0 ? 0 : (group + slices - 1) / slices;
  for (int32_t first = 0; first < group; first += heads) {
    RETURN_IF_ERROR(run(GroupSlice{group, first, std::min(heads, group - first)}));
  }
  return absl::OkStatus();
}

}  // namespace retroinfer::cuda
