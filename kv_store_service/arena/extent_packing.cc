// Best fit with the longest first is not the best of all ways to share lengths out over runs, which
// is an NP-hard question. But extents have few lengths, mostly two, where one fits many times into
// the other; it rarely fails there, and then few steps of a search find whether there is a way.
#include "kv_store_service/arena/extent_packing.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "absl/container/btree_set.h"
#include "common/log/check.h"

namespace retroinfer::kvstore {
namespace {

constexpr int kMaxSteps = 20'000;

// The first multiple of `unit` from `page` on.
uint64_t RoundUp(uint64_t page, uint64_t unit) { return (page + unit - 1) / unit * unit; }

}  // namespace

ExtentPacking::ExtentPacking(std::span<const uint32_t> counts, uint32_t large_pages)
    : counts_(counts.begin(), counts.end()), large_pages_(large_pages), order_(counts.size()) {
  RI_CHECK(large_pages > 0);
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::stable_sort(order_.begin(), order_.end(),
                   [this](size_t a, size_t b) { return counts_[a] > counts_[b]; });
  for (size_t i = 0; i < order_.size(); ++i) {
    RI_CHECK(counts_[i] > 0);
    needed_pages_ += counts_[i];
    if (i == 0 || counts_[order_[i]] != counts_[order_[i - 1]]) ++num_lengths_;
  }
}

bool ExtentPacking::Fits(std::span<const PageRun> runs, bool exhaustive) {
  if (order_.empty()) return true;
  const uint64_t longest = counts_[order_.front()];
  uint64_t pages = 0;
  uint64_t of_longest = 0;
  for (const PageRun& run : runs) {
    if (run.count < shortest()) continue;
    pages += run.count;
    of_longest += run.count / longest;
    if (of_longest >= order_.size()) return true;
  }
  return pages >= needed_pages_ && Assign(runs, exhaustive);
}

std::optional<std::vector<PageRun>> ExtentPacking::Place(std::span<const PageRun> runs,
                                                         bool exhaustive) {
  if (!Assign(runs, exhaustive)) return std::nullopt;
  return PlaceAssigned();
}

bool ExtentPacking::Assign(std::span<const PageRun> runs, bool exhaustive) {
  ChooseRuns(runs);
  if (AssignBestFit()) return true;
  return exhaustive && num_lengths_ > 1 && AssignExhaustive();
}

// An extent goes into the shortest run that has room, so that of the runs between two lengths no
// more are of use than there are extents, the shortest ones.
void ExtentPacking::ChooseRuns(std::span<const PageRun> runs) {
  std::map<uint32_t, std::vector<PageRun>> classes;  // by the longest extent that fits
  for (const uint32_t count : counts_) classes.try_emplace(count);
  const auto is_shorter = [](const PageRun& a, const PageRun& b) {
    return std::pair(a.count, a.first) < std::pair(b.count, b.first);
  };
  const auto trim = [&](std::vector<PageRun>& some) {
    if (some.size() <= order_.size()) return;
    const auto end = some.begin() + static_cast<std::ptrdiff_t>(order_.size());
    std::nth_element(some.begin(), end, some.end(), is_shorter);
    some.erase(end, some.end());
  };
  for (const PageRun& run : runs) {
    auto of_run = classes.upper_bound(run.count);
    if (of_run == classes.begin()) continue;
    std::vector<PageRun>& some = std::prev(of_run)->second;
    some.push_back(run);
    if (some.size() >= 2 * order_.size() + 16) trim(some);
  }
  chosen_.clear();
  for (auto& [length, some] : classes) {
    trim(some);
    chosen_.insert(chosen_.end(), some.begin(), some.end());
  }
}

bool ExtentPacking::AssignBestFit() {
  absl::btree_set<std::pair<uint32_t, size_t>> left;  // pages that are left, index of the run
  for (size_t i = 0; i < chosen_.size(); ++i) left.emplace(chosen_[i].count, i);
  run_of_.clear();
  for (const size_t extent : order_) {
    const auto best = left.lower_bound({counts_[extent], 0});
    if (best == left.end()) return false;
    const auto [pages, run] = *best;
    left.erase(best);
    if (pages > counts_[extent]) left.emplace(pages - counts_[extent], run);
    run_of_.push_back(run);
  }
  return true;
}

bool ExtentPacking::AssignExhaustive() {
  std::vector<uint32_t> left;
  for (const PageRun& run : chosen_) left.push_back(run.count);
  run_of_.assign(order_.size(), 0);
  int steps = 0;
  return AssignFrom(0, left, steps);
}

// Depth first; extents of one length go into runs in ascending order, as they are all alike.
bool ExtentPacking::AssignFrom(size_t position, std::vector<uint32_t>& left, int& steps) {
  if (position == order_.size()) return true;
  if (position >= 1'000) return false;  // deeper than is sensible
  const uint32_t count = counts_[order_[position]];
  const bool is_alike = position > 0 && counts_[order_[position - 1]] == count;
  uint32_t tried = 0;  // runs of one length are alike, too
  for (size_t run = is_alike ? run_of_[position - 1] : 0; run < left.size(); ++run) {
    if (left[run] < count || left[run] == tried) continue;
    if (++steps > kMaxSteps) return false;
    tried = left[run];
    left[run] -= count;
    run_of_[position] = run;
    if (AssignFrom(position + 1, left, steps)) return true;
    left[run] += count;
  }
  return false;
}

std::vector<PageRun> ExtentPacking::PlaceAssigned() const {
  std::vector<uint64_t> spare(chosen_.size());  // pages of each run that nothing needs
  for (size_t run = 0; run < chosen_.size(); ++run) spare[run] = chosen_[run].count;
  for (size_t i = 0; i < order_.size(); ++i) spare[run_of_[i]] -= counts_[order_[i]];
  std::vector<uint64_t> low(chosen_.size());
  std::vector<uint64_t> high(chosen_.size());
  for (size_t run = 0; run < chosen_.size(); ++run) {
    low[run] = chosen_[run].first;
    high[run] = chosen_[run].end();
    const uint64_t aligned = RoundUp(low[run], large_pages_);
    if (aligned - low[run] <= spare[run]) low[run] = aligned;
  }
  std::vector<PageRun> extents(counts_.size());
  for (size_t i = 0; i < order_.size(); ++i) {
    const uint32_t count = counts_[order_[i]];
    const size_t run = run_of_[i];
    if (count >= large_pages_) {
      extents[order_[i]] = {static_cast<PageId>(low[run]), count};
      low[run] += count;
    } else {
      high[run] -= count;
      extents[order_[i]] = {static_cast<PageId>(high[run]), count};
    }
  }
  return extents;
}

}  // namespace retroinfer::kvstore
