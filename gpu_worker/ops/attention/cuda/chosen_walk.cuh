// The steps of queries that pass chosen blocks of keys (chosen_blocks.h).
#pragma once

#include <cstdint>

#include "gpu_worker/ops/attention/cuda/chosen_blocks.h"

namespace retroinfer::cuda {

// For queries of at most two neighbouring units of the slice and one head; steps are of kKeys keys
// at fixed places, which divide a block.
template <int kKeys>
class ChosenWalk {
 public:
  // `num_units`: of the slice from `unit` on; those behind the second do not count.
  __device__ ChosenWalk(const ChosenBlocks& chosen, int query_heads, int query_head, int unit,
                        int num_units)
      : words_of_pair_(chosen.words_of_pair),
        of_units_{WordsOf(chosen, unit, query_heads, query_head),
                  num_units < 2 ? nullptr : WordsOf(chosen, unit + 1, query_heads, query_head)} {
    static_assert(kChoiceBlock % kKeys == 0);
  }

  __device__ int NumSteps() const { return words_of_pair_ * 32 * kStepsOfBlock; }
  __device__ int FirstKey(int step) const { return step * kKeys; }
  // Whether unit 0 or 1 of the two passes the step.
  __device__ bool Has(int unit, int step) const {
    const int block = step / kStepsOfBlock;
    return of_units_[unit] != nullptr &&
           (__ldg(of_units_[unit] + block / 32) >> block % 32 & 1) != 0;
  }
  // The first step from `step` on that a unit passes, or NumSteps().
  __device__ int From(int step) const {
    while (step < NumSteps() && !Has(0, step) && !Has(1, step)) {
      step = (step / kStepsOfBlock + 1) * kStepsOfBlock;
    }
    return step;
  }

 private:
  static constexpr int kStepsOfBlock = static_cast<int>(kChoiceBlock) / kKeys;

  __device__ static const uint32_t* WordsOf(const ChosenBlocks& chosen, int unit, int query_heads,
                                            int query_head) {
    return chosen.words + (int64_t{unit} * query_heads + query_head) * chosen.words_of_pair;
  }

  const int words_of_pair_;
  const uint32_t* const of_units_[2];
};

}  // namespace retroinfer::cuda
