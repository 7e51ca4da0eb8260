// Hands out runs of pages of the arena.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "common/kv/kv_geometry.h"

namespace retroinfer::kvstore {

// Consecutive pages of the arena.
struct PageRun {
  PageId first = 0;
  uint32_t count = 0;

  uint64_t end() const { return uint64_t{first} + count; }
  friend bool operator==(const PageRun&, const PageRun&) = default;
};

// Best fit over free runs, neighbours merged.
//
// Threads: one at a time.
// Owns:    page numbers only; the arena owns the bytes.
class ExtentAllocator {
 public:
  // REQUIRES: num_pages <= kNoPage.
  explicit ExtentAllocator(uint32_t num_pages = 0);

  // Takes `count` pages from the smallest free run that has them; the lowest one of several.
  // Returns nothing if there is none.
  //
  // REQUIRES: count > 0.
  // Cost:     O(log free runs).
  std::optional<PageRun> Allocate(uint32_t count);

  // Takes exactly these pages. Returns INVALID_ARGUMENT if the run is empty or ends behind the
  // arena, ALREADY_EXISTS if a page of it is not free; nothing has changed then.
  absl::Status Take(PageRun run);

  // Gives back pages: a whole allocation or any part of it.
  //
  // REQUIRES: run.count > 0 and no page of it is free.
  // Cost:     O(log free runs).
  void Free(PageRun run);

  // Returns the free runs in ascending order; no two touch.
  std::vector<PageRun> FreeRuns() const;

  uint32_t num_pages() const { return num_pages_; }
  uint64_t free_pages() const { return free_pages_; }
  // Pages of the longest free run.
  uint32_t largest_free() const { return by_count_.empty() ? 0 : by_count_.rbegin()->first; }

 private:
  void InsertRun(PageRun run);
  void EraseRun(absl::btree_map<PageId, uint32_t>::iterator run);

  uint32_t num_pages_;
  uint64_t free_pages_ = 0;
  absl::btree_map<PageId, uint32_t> by_first_;             // first page -> count; no two touch
  absl::btree_set<std::pair<uint32_t, PageId>> by_count_;  // the same runs
};

}  // namespace retroinfer::kvstore
