// Draws what the decode steps of one KV head read, so that it comes again as soon as in a recorded
// trace. What is drawn are cells: groups of clusters that are read together.
//
// Cells are kept in the order of their last use. A step draws for each of its cells whether it has
// never been read, and else at which depth of that order it lay.
//
// Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "gpu_worker/measuring/synthetic/recorded_reuse.h"

namespace retroinfer {

class ReuseWalk {
 public:
  // `order`: all cells, each once, in the order in which they are read for the first time. Each
  // step reads `cells_of_step`; what else it reads is always the same and makes up the share
  // `constant` of it. `reuse` and `head` must outlive it.
  //
  // REQUIRES: 1 <= cells_of_step <= order.size(); 0 <= constant < 1.
  ReuseWalk(const RecordedReuse& reuse, const HeadReuse& head, std::vector<uint32_t> order,
            size_t cells_of_step, double constant, uint64_t seed);

  // The next step's cells, each once: first the ones that the last step had, in the order of then.
  std::span<const uint32_t> Next();

 private:
  // How many cells of a step come from nowhere, from the step before, and from each range of depth.
  std::vector<size_t> DrawCounts();
  // Marks `count` cells at depths [begin, end), or as near behind them as there are any, or before.
  // Returns how many.
  size_t Choose(size_t begin, size_t end, size_t count);

  const RecordedReuse& reuse_;
  const HeadReuse& head_;
  const size_t num_cells_;
  const size_t cells_of_step_;
  const double constant_;
  std::mt19937_64 random_;
  std::vector<uint32_t> unread_;  // the next one last
  std::vector<uint32_t> recent_;  // cells that were read, the last ones first
  std::vector<bool> is_chosen_;   // of recent_
  int64_t step_ = 0;
};

}  // namespace retroinfer
