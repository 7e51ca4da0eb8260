// Lays several extents into runs of free pages, so that much in one piece is left of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv_store_service/arena/extent_allocator.h"

namespace retroinfer::kvstore {

// Extents of two kinds share an arena: large ones, of `large_pages`, and small ones. Large ones are
// laid from the low end, where they can be at multiples of `large_pages`; small ones from the high
// end. So what comes free of large ones has the length of large ones, and small ones that stay do
// not cut it.
//
// Threads: one at a time.
// Owns:    the counts, and memory for its work.
class ExtentPacking {
 public:
  // REQUIRES: all counts > 0; large_pages > 0.
  ExtentPacking(std::span<const uint32_t> counts, uint32_t large_pages);

  // Whether all extents fit into the runs: the longest first, each into the shortest run that has
  // room. Where that fails for extents of several lengths, `exhaustive` tries other ways to share
  // them out, up to 20,000 steps.
  //
  // REQUIRES: the runs do not overlap.
  // Cost:     O(runs * log extents + extents * log runs).
  bool Fits(std::span<const PageRun> runs, bool exhaustive = false);

  // Returns where the extents are, in the order of the counts; nothing unless they fit as above.
  //
  // REQUIRES: the runs are in ascending order and do not overlap.
  std::optional<std::vector<PageRun>> Place(std::span<const PageRun> runs, bool exhaustive = false);

  uint64_t needed_pages() const { return needed_pages_; }
  // Pages of the shortest one; no shorter run is of use. 0 if there are no extents.
  uint32_t shortest() const { return order_.empty() ? 0 : counts_[order_.back()]; }
  size_t num_extents() const { return counts_.size(); }

 private:
  // Of `runs`, those that could be of use: as many of each length class as there are extents.
  void ChooseRuns(std::span<const PageRun> runs);
  // Shares the extents out over chosen_ into run_of_. Returns whether all have a run.
  bool AssignBestFit();
  bool AssignExhaustive();
  bool AssignFrom(size_t position, std::vector<uint32_t>& left, int& steps);
  bool Assign(std::span<const PageRun> runs, bool exhaustive);
  std::vector<PageRun> PlaceAssigned() const;

  const std::vector<uint32_t> counts_;
  const uint32_t large_pages_;
  std::vector<size_t> order_;  // of the extents, the longest first
  uint64_t needed_pages_ = 0;
  size_t num_lengths_ = 0;  // different ones
  std::vector<PageRun> chosen_;
  std::vector<size_t> run_of_;  // of chosen_, for each of order_
};

}  // namespace retroinfer::kvstore
