// Which keys a query sees, and which blocks of keys a tile of queries passes.
#pragma once

#include <cstdint>

#include "gpu_worker/ops/attention/cuda/prefill_attention_kernels.h"
#include "gpu_worker/ops/cuda/warp_mma.cuh"

namespace retroinfer::cuda {

// As AttentionWindow::FirstSeen.
__device__ inline int FirstSeen(const PrefillWindow& window, int row) {
  const int behind = max(0, row - window.always_seen);
  return window.always_seen + max(0, behind / window.step * window.step - window.before);
}

// The steps of a tile of queries: blocks of kKeys keys at fixed places. With a window, keys that
// are always seen come first, as a step of their own, and then the blocks from the first on that a
// query of the tile sees: what a query sums up, and in which order, depends on its row alone.
//
// Without a window all of it folds to what it was: step i is block i.
template <bool kWindowed, int kKeys>
class KeyWalk {
 public:
  // `first_row`: of the tile.
  __device__ KeyWalk(const PrefillWindow& window, int first_row) : window_(window) {
    static_assert(kKeys >= kMaxAlwaysSeen);
    if constexpr (kWindowed) {
      lead_ = window.always_seen > 0 ? 1 : 0;
      skipped_ = FirstSeen(window, first_row) / kKeys - lead_;
    }
  }

  // Steps, where keys before `end` are seen.
  __device__ int NumSteps(int end) const { return (end + kKeys - 1) / kKeys - skipped_; }
  // First key of the step's block.
  __device__ int FirstKey(int step) const {
    if constexpr (!kWindowed) return step * kKeys;
    return IsLead(step) ? 0 : (step + skipped_) * kKeys;
  }
  // Whether any of rows [first, last] has to hide keys of the step.
  __device__ bool Hides(int step, int first, int last) const {
    const bool hides_last = FirstKey(step) + kKeys - 1 > first;
    if constexpr (!kWindowed) return hides_last;
    return hides_last || IsLead(step) || FirstKey(step) < FirstSeen(window_, last);
  }
  // Whether none of the rows sees a key of the step.
  __device__ bool HidesAll(int step, int first, int last) const {
    if (FirstKey(step) > last) return true;
    if constexpr (!kWindowed) return false;
    return !IsLead(step) && FirstKey(step) + kKeys <= FirstSeen(window_, first);
  }
  // Keys [FirstOf, LastOf] of the step are seen by `row`; others of its block are not.
  __device__ int FirstOf(int step, int row) const {
    if constexpr (!kWindowed) return 0;
    return IsLead(step) ? 0 : FirstSeen(window_, row);
  }
  __device__ int LastOf(int step, int row) const {
    if constexpr (!kWindowed) return row;
    return IsLead(step) ? min(row, window_.always_seen - 1) : row;
  }

 private:
  __device__ bool IsLead(int step) const { return step < lead_; }

  const PrefillWindow& window_;
  int lead_ = 0;
  int skipped_ = 0;  // blocks that nobody sees, less the leading step
};

// The largest score as something to subtract: any number for a query that has seen no key so far.
template <bool kWindowed>
__device__ float Anchor(float largest) {
  if constexpr (!kWindowed) return largest;
  return largest == -INFINITY ? 0.0f : largest;
}

// What the sink of a query head adds to a softmax's sum, whose weights are relative to
// 2^`largest_log2`. A sink far above all scores makes the sum infinite and the result 0.
__device__ inline float WeightOfSink(const float* sinks, int query_head, float largest_log2) {
  if (sinks == nullptr) return 0.0f;
  constexpr float kLog2OfE = 1.44269504088896340736f;
  return Exp2(__ldg(sinks + query_head) * kLog2OfE - largest_log2);
}

}  // namespace retroinfer::cuda
