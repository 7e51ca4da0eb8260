// Splits the rows of a matrix over the threads of a stream.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu_worker/device/cpu/thread_pool.h"

namespace retroinfer::cpu {

// Calls body(first, last) for ranges that together are [0, rows). A range has so many rows that its
// work (rows * elements_per_row) is worth more than waking a thread.
template <typename Body>
void ParallelRows(ThreadPool& pool, int64_t rows, int64_t elements_per_row, const Body& body) {
  constexpr int64_t kMinElements = 16384;
  const int64_t rows_per_range =
      std::max<int64_t>(1, kMinElements / std::max<int64_t>(1, elements_per_row));
  const int64_t num_ranges = (rows + rows_per_range - 1) / rows_per_range;
  pool.ParallelFor(num_ranges, [&](int64_t range) {
    const int64_t first = range * rows_per_range;
    body(first, std::min(rows, first + rows_per_range));
  });
}

}  // namespace retroinfer::cpu
