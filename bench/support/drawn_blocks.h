// Blocks of keys that units of a prompt might choose: random keys have no blocks that matter, so
// benchmarks draw them. A unit has a block of its neighbour's with probability 0.82, and heads
// differ in their share as those of a real checkpoint do (docs/decisions/0097-sparse-prefill.md).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "gpu_worker/ops/attention/cuda/chosen_blocks.h"

namespace retroinfer::bench {

// Blocks, of units one by one.
struct BlockTotals {
  int64_t chosen = 0;
  int64_t seen = 0;
  int64_t either = 0;  // chosen by either of two units, as the kernels copy them

  void Add(const BlockTotals& other) {
    chosen += other.chosen;
    seen += other.seen;
    either += other.either;
  }
  double density() const { return Ratio(chosen, seen); }
  double copied_of_chosen() const { return Ratio(either, chosen); }

 private:
  static double Ratio(int64_t a, int64_t b) {
    return b == 0 ? 0 : static_cast<double>(a) / static_cast<double>(b);
  }
};

// Of `num_units` units from `first_token` on, as cuda::ChosenBlocks and cuda::ChoiceLayout have
// them.
class DrawnBlocks {
 public:
  DrawnBlocks(int64_t first_token, int64_t num_units, int64_t num_heads, double density)
      : random_(static_cast<uint32_t>(first_token)),
        first_token_(first_token),
        num_units_(num_units),
        num_heads_(num_heads),
        blocks_(cuda::ChoiceBlocksOf(first_token + num_units * kQueryUnit)),
        words_of_pair_((blocks_ + 31) / 32),
        words_(static_cast<size_t>(num_units * num_heads * words_of_pair_)),
        counts_(static_cast<size_t>(num_units * num_heads)) {
    for (int64_t head = 0; head < num_heads; ++head) {
      DrawHead(head, std::min(0.95, density * ShareOfHead(head)));
    }
  }

  const std::vector<uint32_t>& words() const { return words_; }
  const std::vector<int32_t>& counts() const { return counts_; }
  const BlockTotals& totals() const { return totals_; }

 private:
  static constexpr double kStays = 0.82;

  // Over the mean of all heads, which is 1: quantiles of the heads of Qwen2.5-Coder-0.5B.
  static double ShareOfHead(int64_t head) {
    constexpr std::array kShares = {0.15, 0.23, 0.41, 0.90, 1.15, 1.54, 1.70, 1.92};
    return kShares[static_cast<size_t>(head * 5 % 8)];
  }
  bool Draw(double probability) { return uniform_(random_) < probability; }

  void DrawHead(int64_t head, double share) {
    const double begins = share * (1 - kStays) / (1 - share);
    std::vector<bool> before(static_cast<size_t>(blocks_));
    for (int64_t unit = 0; unit < num_units_; ++unit) {
      const int64_t begin = first_token_ + unit * kQueryUnit;
      const int64_t local = std::max<int64_t>(0, begin - kChoiceBlock) / kChoiceBlock;
      const int64_t of_unit = cuda::ChoiceBlocksOf(begin + kQueryUnit);
      const int64_t pair = unit * num_heads_ + head;
      for (int64_t block = 0; block < of_unit; ++block) {
        const auto at = static_cast<size_t>(block);
        const bool had = before[at];
        const bool drawn = Draw(unit == 0 ? share : had ? kStays : begins);
        const bool has = drawn || block == 0 || block >= local;
        totals_.either += has && (unit % 2 == 0 || !had) ? 1 : 0;
        before[at] = has;
        if (!has) continue;
        words_[static_cast<size_t>(pair * words_of_pair_ + block / 32)] |= 1u << block % 32;
        ++counts_[static_cast<size_t>(pair)];
      }
      totals_.seen += of_unit;
      totals_.chosen += counts_[static_cast<size_t>(pair)];
    }
  }

  std::mt19937 random_;
  std::uniform_real_distribution<float> uniform_{0.0f, 1.0f};
  const int64_t first_token_;
  const int64_t num_units_;
  const int64_t num_heads_;
  const int64_t blocks_;
  const int64_t words_of_pair_;
  std::vector<uint32_t> words_;
  std::vector<int32_t> counts_;
  BlockTotals totals_;
};

}  // namespace retroinfer::bench
