// The sum of a matrix over ranks, and norms of it: what follows each sum of a layer. The same, bit
// for bit, as
//
//   all_reduce(sum), then rms_norm of each of `norms` in turn,
//
// each of the result before it. As one operation it costs one meeting of ranks, where a kernel
// behind the other would wait for it.
#pragma once

#include <span>

#include "gpu_worker/ops/collective/all_reduce.h"
#include "gpu_worker/ops/model/rms_norm.h"

namespace retroinfer {

// Ranks call it in the same order with matrices of the same shape.
struct NormOfSumArgs {
  static constexpr size_t kMostNorms = 2;

  AllReduceArgs sum;
  // One or two. `in` of the first is sum.out, of the second what the first has for `out`; of whole
  // rows. The last `out` may be sum.in.
  std::span<const RmsNormArgs> norms;
};

}  // namespace retroinfer
