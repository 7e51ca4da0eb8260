// Which part of a model a process has, where several share it: tensor parallelism.
#pragma once

#include <algorithm>
#include <cstdint>

namespace retroinfer {

struct TensorParallel {
  int rank = 0;
  int num_ranks = 1;

  constexpr bool is_all() const { return num_ranks == 1; }
  friend bool operator==(const TensorParallel&, const TensorParallel&) = default;
};

// Things in a row that a rank has.
struct Share {
  int64_t first = 0;
  int64_t count = 0;
  friend bool operator==(const Share&, const Share&) = default;
};

// The share of `parallel` of `total` things that go together in units of `unit`, the last unit of
// what is left: as even as units are. Ranks' shares lie side by side, in order; beyond as many
// ranks as units some have nothing.
constexpr Share ShareOf(const TensorParallel& parallel, int64_t total, int64_t unit = 1) {
  const int64_t units = (total + unit - 1) / unit;
  const int64_t first = std::min(total, units * parallel.rank / parallel.num_ranks * unit);
  const int64_t end = std::min(total, units * (parallel.rank + 1) / parallel.num_ranks * unit);
  return {first, end - first};
}

}  // namespace retroinfer
