// Matrices of ranks, drawn so that rounding shows, and what collectives make of them.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "gpu_worker/ops/collective/tensor_parallel.h"
#include "tests/support/device_data.h"

namespace retroinfer::test_support {

// What rank `rank` has of a matrix with this many elements; `rank` -1 is what is added to.
inline std::vector<float> DrawnFor(int rank, int64_t elements, DType dtype) {
  std::mt19937 generator(static_cast<unsigned>(17 + rank));
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(elements));
  for (float& value : values) {
    value = normal(generator);
    if (dtype == DType::kBf16) value = FromBf16(ToBf16(value));
  }
  return values;
}

// In f32, in the order of ranks, rounded once.
inline std::vector<float> SumOfRanks(int num_ranks, int64_t elements, DType dtype,
                                     bool accumulate) {
  std::vector<float> sums = DrawnFor(0, elements, dtype);
  const auto add = [&](int rank) {
    const std::vector<float> more = DrawnFor(rank, elements, dtype);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += more[i];
  };
  for (int rank = 1; rank < num_ranks; ++rank) add(rank);
  if (accumulate) add(-1);
  if (dtype == DType::kBf16) {
    for (float& sum : sums) sum = FromBf16(ToBf16(sum));
  }
  return sums;
}

}  // namespace retroinfer::test_support
