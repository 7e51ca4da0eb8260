// Neighbouring rows of a step, of one sequence, that share what they retrieve: each attends to the
// clusters that any of them retrieves
// (docs/decisions/0112-rows-of-a-tail-share-what-they-retrieve.md).
#pragma once

#include <cstdint>

namespace retroinfer {

inline constexpr int32_t kMaxRowsOfRun = 64;

// Rows [first_row, first_row + num_rows) of a batch. The lists of the run are its first row's.
struct RowRun {
  int32_t first_row;
  int32_t num_rows;  // 1 to kMaxRowsOfRun
};

}  // namespace retroinfer
