// The choice of blocks of keys for units of queries (ops/attention/block_choice.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu_worker/device/cpu/thread_pool.h"
#include "gpu_worker/ops/attention/cpu/tile_gemm.h"
#include "gpu_worker/ops/attention/prefill_attention.h"

namespace retroinfer::cpu {

// By unit of a call, query head and block of keys. Threads: writers of different units or heads.
class ChosenBlocks {
 public:
  ChosenBlocks(int64_t num_units, int64_t num_heads, int64_t num_blocks)
      : num_heads_(num_heads),
        num_blocks_(num_blocks),
        is_chosen_(static_cast<size_t>(num_units * num_heads * num_blocks)) {}

  bool Has(int64_t unit, int64_t head, int64_t block) const {
    return is_chosen_[IndexOf(unit, head, block)] != 0;
  }
  void Add(int64_t unit, int64_t head, int64_t block) {
    is_chosen_[IndexOf(unit, head, block)] = 1;
  }

 private:
  size_t IndexOf(int64_t unit, int64_t head, int64_t block) const {
    return static_cast<size_t>((unit * num_heads_ + head) * num_blocks_ + block);
  }

  const int64_t num_heads_;
  const int64_t num_blocks_;
  std::vector<uint8_t> is_chosen_;
};

// Chooses for all rows of `args`. Cost: 1 / 32 of the flops of attention to all keys.
//
// REQUIRES: checked arguments that hold whole units alone; `gemm` is of the KV's type, or of f32.
ChosenBlocks ChooseBlocks(ThreadPool& pool, const PrefillAttentionArgs& args, const TileGemm& gemm);

}  // namespace retroinfer::cpu
