// Invariants: by_first_ and by_count_ hold the same runs; runs are not empty, do not overlap and do
// not touch; free_pages_ is the sum of their counts.
#include "kv_store_service/arena/extent_allocator.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/log/check.h"

namespace retroinfer::kvstore {

ExtentAllocator::ExtentAllocator(uint32_t num_pages) : num_pages_(num_pages) {
  if (num_pages > 0) InsertRun({0, num_pages});
}

std::optional<PageRun> ExtentAllocator::Allocate(uint32_t count) {
  RI_CHECK(count > 0);
  const auto best = by_count_.lower_bound({count, 0});
  if (best == by_count_.end()) return std::nullopt;
  const auto [run_count, first] = *best;
  EraseRun(by_first_.find(first));
  if (run_count > count) InsertRun({first + count, run_count - count});
  return PageRun{first, count};
}

absl::Status ExtentAllocator::Take(PageRun run) {
  if (run.count == 0 || run.end() > num_pages_) {
    return absl::InvalidArgumentError(absl::StrCat("pages ", run.first, " to ", run.end(),
                                                   " are not a part of an arena of ", num_pages_,
                                                   " pages"));
  }
  auto at = by_first_.upper_bound(run.first);
  if (at != by_first_.begin()) --at;
  if (at == by_first_.end() || at->first > run.first ||
      uint64_t{at->first} + at->second < run.end()) {
    return absl::AlreadyExistsError(
        absl::StrCat("pages ", run.first, " to ", run.end(), " are not all free"));
  }
  const PageRun free{at->first, at->second};
  EraseRun(at);
  if (free.first < run.first) InsertRun({free.first, run.first - free.first});
  if (run.end() < free.end()) {
    InsertRun({static_cast<PageId>(run.end()), static_cast<uint32_t>(free.end() - run.end())});
  }
  return absl::OkStatus();
}

void ExtentAllocator::Free(PageRun run) {
  RI_CHECK(run.count > 0 && run.end() <= num_pages_);
  const auto next = by_first_.lower_bound(run.first);
  if (next != by_first_.end()) {
    RI_CHECK(run.end() <= next->first);
    if (run.end() == next->first) {
      run.count += next->second;
      EraseRun(next);
    }
  }
  const auto after = by_first_.lower_bound(run.first);
  if (after != by_first_.begin()) {
    const auto previous = std::prev(after);
    const uint64_t previous_end = uint64_t{previous->first} + previous->second;
    RI_CHECK(previous_end <= run.first);
    if (previous_end == run.first) {
      run = {previous->first, previous->second + run.count};
      EraseRun(previous);
    }
  }
  InsertRun(run);
}

std::vector<PageRun> ExtentAllocator::FreeRuns() const {
  std::vector<PageRun> runs;
  runs.reserve(by_first_.size());
  for (const auto& [first, count] : by_first_) runs.push_back({first, count});
  return runs;
}

void ExtentAllocator::InsertRun(PageRun run) {
  by_first_.emplace(run.first, run.count);
  by_count_.emplace(run.count, run.first);
  free_pages_ += run.count;
}

void ExtentAllocator::EraseRun(absl::btree_map<PageId, uint32_t>::iterator run) {
  by_count_.erase({run->second, run->first});
  free_pages_ -= run->second;
  by_first_.erase(run);
}

}  // namespace retroinfer::kvstore
