// First the extents are placed on the grid (grid_placement.h), which keeps the arena in one piece.
// Where the grid does not do, a set of runs to give up is searched for. All that is asked of a set
// is whether the extents fit into what is free without it: first the lowest rank up to which all
// may be given up is found, by halves, then what of those can be kept, the dearest first, by halves
// too.
//
// Invariants of the search: pieces are in ascending order and do not overlap; rank 0 is free; what
// is no piece is in use, or decided to be kept.
#include "kv_store_service/arena/allocation_plan.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "kv_store_service/arena/arena_piece.h"
#include "kv_store_service/arena/extent_packing.h"
#include "kv_store_service/arena/grid_placement.h"

namespace retroinfer::kvstore {
namespace {

// Of looking for what can be kept: a millisecond or two, and so many of the dearest ones.
constexpr uint64_t kMaxVisits = uint64_t{1} << 19;
constexpr size_t kMaxKept = 4096;

constexpr uint64_t kHighestRank = UINT64_MAX - 1;

class EvictionSearch {
 public:
  EvictionSearch(std::vector<ArenaPiece> pieces, ExtentPacking* packing)
      : pieces_(std::move(pieces)), packing_(*packing) {}

  // Returns where the extents are: in what is free, and in pieces that are as cheap as possible.
  std::optional<std::vector<PageRun>> Search();
  uint64_t visits() const { return visits_; }

 private:
  // Collects what is free without the pieces up to `limit` except those of [from, to].
  void CollectRuns(const std::vector<ArenaPiece>& pieces, uint64_t limit, uint64_t from = 1,
                   uint64_t to = 0);
  bool FitsUpTo(const std::vector<ArenaPiece>& pieces, uint64_t limit, uint64_t from = 1,
                uint64_t to = 0) {
    CollectRuns(pieces, limit, from, to);
    return packing_.Fits(runs_, exhaustive_);
  }
  // The lowest rank up to which enough could be given up.
  uint64_t FindLimit();
  // Keeps what need not go of these ranks, the highest first.
  void Keep(std::span<const uint64_t> ranks);

  std::vector<ArenaPiece> pieces_;
  ExtentPacking& packing_;
  bool exhaustive_ = false;
  uint64_t limit_ = 0;
  uint64_t visits_ = 0;
  uint64_t visits_max_ = 0;
  std::vector<PageRun> runs_;
};

void EvictionSearch::CollectRuns(const std::vector<ArenaPiece>& pieces, uint64_t limit,
                                 uint64_t from, uint64_t to) {
  runs_.clear();
  PageRun run;
  const auto close = [&] {
    if (run.count >= packing_.shortest()) runs_.push_back(run);
  };
  for (const ArenaPiece& piece : pieces) {
    if (piece.rank > limit || (piece.rank >= from && piece.rank <= to)) continue;
    if (run.end() == piece.pages.first) {
      run.count += piece.pages.count;
      continue;
    }
    close();
    run = piece.pages;
  }
  close();
  visits_ += pieces.size() + packing_.num_extents();
}

// Half of the ranks are decided in each round: what is dearer than the limit is no piece any more,
// and what is cheaper than it is free, one piece with its neighbours.
uint64_t EvictionSearch::FindLimit() {
  std::vector<ArenaPiece> pieces = pieces_;
  std::vector<uint64_t> ranks;
  for (const ArenaPiece& piece : pieces) {
    if (piece.rank > 0) ranks.push_back(piece.rank);
  }
  while (ranks.size() > 1) {
    const auto middle = ranks.begin() + static_cast<std::ptrdiff_t>((ranks.size() - 1) / 2);
    std::nth_element(ranks.begin(), middle, ranks.end());
    const uint64_t limit = *middle;
    visits_ += ranks.size();
    if (FitsUpTo(pieces, limit)) {
      ranks.erase(middle + 1, ranks.end());
      std::erase_if(pieces, [limit](const ArenaPiece& piece) { return piece.rank > limit; });
      continue;
    }
    ranks.erase(ranks.begin(), middle + 1);
    size_t num_pieces = 0;
    for (const ArenaPiece& piece : pieces) {
      const bool is_free = piece.rank <= limit;
      ArenaPiece* const last = num_pieces == 0 ? nullptr : &pieces[num_pieces - 1];
      if (is_free && last != nullptr && last->rank == 0 && last->pages.end() == piece.pages.first) {
        last->pages.count += piece.pages.count;
      } else {
        pieces[num_pieces++] = {piece.pages, is_free ? 0 : piece.rank};
      }
    }
    pieces.resize(num_pieces);
  }
  return ranks.front();
}

void EvictionSearch::Keep(std::span<const uint64_t> ranks) {
  if (ranks.empty() || visits_ > visits_max_) return;
  const uint64_t from = ranks.back();
  const uint64_t to = ranks.front();
  if (FitsUpTo(pieces_, limit_, from, to)) {
    std::erase_if(pieces_, [from, to](const ArenaPiece& piece) {
      return piece.rank >= from && piece.rank <= to;
    });
    return;
  }
  if (ranks.size() == 1) return;
  Keep(ranks.first(ranks.size() / 2));
  Keep(ranks.subspan(ranks.size() / 2));
}

std::optional<std::vector<PageRun>> EvictionSearch::Search() {
  if (!FitsUpTo(pieces_, kHighestRank)) {
    exhaustive_ = true;
    if (!FitsUpTo(pieces_, kHighestRank)) return std::nullopt;
  }
  if (!FitsUpTo(pieces_, 0)) limit_ = FindLimit();
  std::erase_if(pieces_, [this](const ArenaPiece& piece) { return piece.rank > limit_; });
  visits_max_ = visits_ + kMaxVisits;
  std::vector<uint64_t> ranks;
  for (const ArenaPiece& piece : pieces_) {
    if (piece.rank > 0 && piece.rank < limit_) ranks.push_back(piece.rank);
  }
  if (ranks.size() > kMaxKept) {
    std::nth_element(ranks.begin(), ranks.begin() + kMaxKept, ranks.end(), std::greater<>());
    ranks.resize(kMaxKept);
  }
  std::sort(ranks.begin(), ranks.end(), std::greater<>());
  Keep(ranks);
  CollectRuns(pieces_, limit_);
  return packing_.Place(runs_, exhaustive_);
}

// Sets which of the runs the extents take.
void SetEvicted(std::span<const EvictableRun> evictable, AllocationPlan& plan) {
  std::vector<PageRun> taken = plan.extents;
  std::sort(taken.begin(), taken.end(),
            [](const PageRun& a, const PageRun& b) { return a.first < b.first; });
  auto extent = taken.begin();
  for (size_t i = 0; i < evictable.size(); ++i) {
    const PageRun& pages = evictable[i].pages;
    while (extent != taken.end() && extent->end() <= pages.first) ++extent;
    if (extent == taken.end()) break;
    if (extent->first < pages.end()) plan.evicted.push_back(i);
  }
}

// The rank up to which a quarter of the runs are; 0 if there are none.
uint64_t RankOfQuarter(std::span<const EvictableRun> evictable) {
  if (evictable.empty()) return 0;
  std::vector<uint64_t> ranks;
  ranks.reserve(evictable.size());
  for (const EvictableRun& run : evictable) ranks.push_back(run.rank);
  const auto quarter = ranks.begin() + static_cast<std::ptrdiff_t>(ranks.size() / 4);
  std::nth_element(ranks.begin(), quarter, ranks.end());
  return *quarter;
}

std::vector<ArenaPiece> PiecesOf(std::span<const PageRun> free,
                                 std::span<const EvictableRun> evictable) {
  std::vector<ArenaPiece> pieces;
  pieces.reserve(free.size() + evictable.size());
  auto next = free.begin();
  for (const EvictableRun& run : evictable) {
    for (; next != free.end() && next->first < run.pages.first; ++next) pieces.push_back({*next});
    pieces.push_back({run.pages, run.rank});
  }
  for (; next != free.end(); ++next) pieces.push_back({*next});
  return pieces;
}

}  // namespace

std::optional<AllocationPlan> PlanAllocation(const ExtentAllocator& allocator,
                                             std::span<const uint32_t> counts, uint32_t large_pages,
                                             std::span<const EvictableRun> evictable) {
  ExtentPacking packing(counts, large_pages);
  uint64_t obtainable = allocator.free_pages();
  for (const EvictableRun& run : evictable) obtainable += run.pages.count;
  if (packing.needed_pages() > obtainable) return std::nullopt;
  const std::vector<PageRun> free = allocator.FreeRuns();
  std::vector<ArenaPiece> pieces = PiecesOf(free, evictable);
  GridPlacement grid{.num_pages = allocator.num_pages(), .large_pages = large_pages};
  AllocationPlan plan;
  const auto succeeds = [&plan](std::optional<std::vector<PageRun>> extents) {
    if (extents.has_value()) plan.extents = *std::move(extents);
    return extents.has_value();
  };
  if (packing.needed_pages() <= allocator.free_pages()) {
    plan.visits += free.size();
    if (succeeds(grid.Place(pieces, counts, &plan.visits))) return plan;
    if (succeeds(packing.Place(free))) return plan;
  }
  grid.limit = kHighestRank;
  grid.limit_together = RankOfQuarter(evictable);
  if (!succeeds(grid.Place(pieces, counts, &plan.visits))) {
    EvictionSearch search(std::move(pieces), &packing);
    if (!succeeds(search.Search())) return std::nullopt;
    plan.visits += search.visits();
  }
  SetEvicted(evictable, plan);
  return plan;
}

}  // namespace retroinfer::kvstore
