#include "kv_store_service/arena/grid_placement.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <utility>

namespace retroinfer::kvstore {
namespace {

constexpr uint64_t kInUse = UINT64_MAX;

// A row of places of one length, next to each other.
struct Row {
  uint64_t first = 0;  // page
  uint64_t length = 0;
  size_t size = 0;

  uint64_t begin_of(size_t index) const { return first + index * length; }
  // The places that have pages of the run: indices [begin, end).
  std::pair<size_t, size_t> Touched(const PageRun& run) const {
    const uint64_t end = first + size * length;
    if (run.end() <= first || run.first >= end) return {0, 0};
    const uint64_t from = run.first <= first ? 0 : (run.first - first) / length;
    const uint64_t to = (std::min(run.end(), end) - first + length - 1) / length;
    return {from, to};
  }
};

struct RowRanks {
  std::vector<uint64_t> ranks;    // highest of each place; kInUse: some of it is
  std::vector<uint64_t> covered;  // pages of each place that are not in use
};

// Goes along both in one pass, without a division for each piece.
RowRanks RanksOf(const Row& row, std::span<const ArenaPiece> pieces) {
  RowRanks of{.ranks = std::vector<uint64_t>(row.size), .covered = std::vector<uint64_t>(row.size)};
  size_t place = 0;
  uint64_t place_end = row.first + row.length;
  for (const ArenaPiece& piece : pieces) {
    uint64_t begin = std::max<uint64_t>(piece.pages.first, row.first);
    const uint64_t end = piece.pages.end();
    while (begin < end && place < row.size) {
      if (place_end <= begin) {
        ++place;
        place_end += row.length;
        continue;
      }
      const uint64_t piece_end = std::min(end, place_end);
      of.covered[place] += piece_end - begin;
      of.ranks[place] = std::max(of.ranks[place], piece.rank);
      begin = piece_end;
    }
  }
  for (size_t i = 0; i < row.size; ++i) {
    if (of.covered[i] < row.length) of.ranks[i] = kInUse;
  }
  return of;
}

class Placer {
 public:
  Placer(const GridPlacement& grid, std::span<const ArenaPiece> pieces,
         std::span<const uint32_t> counts)
      : grid_(grid),
        pieces_(pieces),
        cells_{.first = 0, .length = grid.large_pages, .size = grid.num_pages / grid.large_pages},
        extents_(counts.size()) {}

  bool PlaceLarge(const std::vector<size_t>& wanted);
  bool PlaceSmall(const std::vector<size_t>& all_wanted, uint32_t count);
  std::vector<PageRun> TakeExtents() { return std::move(extents_); }

 private:
  // Slots of small extents, and which of them come next.
  struct Slots {
    Row row;
    std::vector<uint64_t> ranks;               // kInUse: or taken
    using Next = std::pair<uint64_t, size_t>;  // rank, slots from the end
    using Queue = std::priority_queue<Next, std::vector<Next>, std::greater<>>;
    Queue together;  // those that open no cell
    Queue all;

    // What is free comes before what stays together.
    std::optional<size_t> TakeNext();
  };

  // Gaps of cells that were open before this placement, the shortest first.
  std::vector<PageRun> GapsFor(uint32_t count) const;
  // Puts the extents into gaps as long as there are any. Returns those that are left.
  std::vector<size_t> PlaceInGaps(const std::vector<size_t>& wanted, uint32_t count);
  bool IsOpen(const PageRun& run) const {
    const auto [from, to] = cells_.Touched(run);
    return std::all_of(open_.begin() + static_cast<std::ptrdiff_t>(from),
                       open_.begin() + static_cast<std::ptrdiff_t>(to),
                       [](bool is_open) { return is_open; });
  }
  void Offer(Slots& slots, size_t index) const;
  void Take(size_t extent, Slots& slots, size_t index);

  const GridPlacement& grid_;
  const std::span<const ArenaPiece> pieces_;
  const Row cells_;
  std::vector<bool> open_;   // cells of which large extents cannot have any
  std::vector<bool> taken_;  // cells that a large extent of this placement has
  std::vector<PageRun> extents_;
  std::vector<PageRun> placed_;
};

bool Placer::PlaceLarge(const std::vector<size_t>& wanted) {
  const RowRanks cells = RanksOf(cells_, pieces_);
  open_.resize(cells_.size);
  taken_.resize(cells_.size);
  std::vector<std::pair<uint64_t, size_t>> could;
  for (size_t i = 0; i < cells_.size; ++i) {
    open_[i] = cells.ranks[i] == kInUse;
    if (cells.ranks[i] <= grid_.limit && !open_[i]) could.emplace_back(cells.ranks[i], i);
  }
  if (could.size() < wanted.size()) return false;
  std::sort(could.begin(), could.end());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const size_t cell = could[i].second;
    extents_[wanted[i]] = {static_cast<PageId>(cells_.begin_of(cell)), grid_.large_pages};
    placed_.push_back(extents_[wanted[i]]);
    open_[cell] = taken_[cell] = true;
  }
  return true;
}

std::vector<PageRun> Placer::GapsFor(uint32_t count) const {
  std::vector<PageRun> gaps;
  for (const ArenaPiece& piece : pieces_) {
    if (piece.rank != 0 || piece.pages.count < count) continue;
    const auto [from, to] = cells_.Touched(piece.pages);
    for (size_t cell = from; cell < to; ++cell) {
      if (!open_[cell] || taken_[cell]) continue;
      const uint64_t first = std::max<uint64_t>(piece.pages.first, cells_.begin_of(cell));
      const uint64_t end = std::min(piece.pages.end(), cells_.begin_of(cell + 1));
      if (end - first < count || end - first >= 2 * uint64_t{count}) continue;
      gaps.push_back({static_cast<PageId>(first), static_cast<uint32_t>(end - first)});
    }
  }
  std::stable_sort(gaps.begin(), gaps.end(),
                   [](const PageRun& a, const PageRun& b) { return a.count < b.count; });
  return gaps;
}

// At the end of a gap, so that what is left of it comes free in one piece with what is before.
std::vector<size_t> Placer::PlaceInGaps(const std::vector<size_t>& wanted, uint32_t count) {
  if (wanted.empty()) return {};
  const std::vector<PageRun> gaps = GapsFor(count);
  const auto overlaps = [this](const PageRun& run) {
    return std::any_of(placed_.begin(), placed_.end(), [&run](const PageRun& other) {
      return other.first < run.end() && run.first < other.end();
    });
  };
  size_t next = 0;
  for (const PageRun& gap : gaps) {
    if (next == wanted.size()) break;
    const PageRun run{static_cast<PageId>(gap.end() - count), count};
    if (overlaps(run)) continue;
    extents_[wanted[next++]] = run;
    placed_.push_back(run);
  }
  return {wanted.begin() + static_cast<ptrdiff_t>(next), wanted.end()};
}

std::optional<size_t> Placer::Slots::TakeNext() {
  const auto is_taken = [this](const Next& slot) {
    return ranks[row.size - slot.second] == kInUse;
  };
  while (!together.empty() && is_taken(together.top())) together.pop();
  while (!all.empty() && is_taken(all.top())) all.pop();
  const bool is_other_free = !all.empty() && all.top().first == 0;
  if (!together.empty() && (together.top().first == 0 || !is_other_free)) {
    return row.size - together.top().second;
  }
  if (all.empty()) return std::nullopt;
  return row.size - all.top().second;
}

void Placer::Offer(Slots& slots, size_t index) const {
  const uint64_t rank = slots.ranks[index];
  if (rank == kInUse || rank > grid_.limit || rank > grid_.limit_together) return;
  const PageRun run{static_cast<PageId>(slots.row.begin_of(index)),
                    static_cast<uint32_t>(slots.row.length)};
  if (IsOpen(run)) slots.together.emplace(rank, slots.row.size - index);
}

void Placer::Take(size_t extent, Slots& slots, size_t index) {
  slots.ranks[index] = kInUse;
  const PageRun run{static_cast<PageId>(slots.row.begin_of(index)),
                    static_cast<uint32_t>(slots.row.length)};
  extents_[extent] = run;
  placed_.push_back(run);
  const auto [from, to] = cells_.Touched(run);
  for (size_t cell = from; cell < to; ++cell) {
    if (open_[cell]) continue;
    open_[cell] = true;
    const auto [first, last] = slots.row.Touched(
        {static_cast<PageId>(cells_.begin_of(cell)), static_cast<uint32_t>(cells_.length)});
    for (size_t other = first; other < last; ++other) Offer(slots, other);
  }
}

bool Placer::PlaceSmall(const std::vector<size_t>& all_wanted, uint32_t count) {
  const std::vector<size_t> wanted = PlaceInGaps(all_wanted, count);
  if (wanted.empty()) return true;
  const size_t size = grid_.num_pages / count;
  Slots slots{
      .row = {.first = grid_.num_pages - uint64_t{size} * count, .length = count, .size = size},
      .ranks = {},
      .together = {}};
  slots.ranks = RanksOf(slots.row, pieces_).ranks;
  for (const PageRun& run : placed_) {
    const auto [from, to] = slots.row.Touched(run);
    std::fill(slots.ranks.begin() + static_cast<std::ptrdiff_t>(from),
              slots.ranks.begin() + static_cast<std::ptrdiff_t>(to), kInUse);
  }
  std::vector<Slots::Next> all;
  all.reserve(size);
  for (size_t i = 0; i < size; ++i) {
    if (slots.ranks[i] == kInUse || slots.ranks[i] > grid_.limit) continue;
    all.emplace_back(slots.ranks[i], size - i);
    Offer(slots, i);
  }
  slots.all = Slots::Queue({}, std::move(all));
  for (const size_t extent : wanted) {
    const auto index = slots.TakeNext();
    if (!index.has_value()) return false;
    Take(extent, slots, *index);
  }
  return true;
}

}  // namespace

std::optional<std::vector<PageRun>> GridPlacement::Place(std::span<const ArenaPiece> pieces,
                                                         std::span<const uint32_t> counts,
                                                         uint64_t* visits) const {
  std::map<uint32_t, std::vector<size_t>, std::greater<>> by_length;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > large_pages || counts[i] > num_pages) return std::nullopt;
    by_length[counts[i]].push_back(i);
  }
  by_length.try_emplace(large_pages);
  Placer placer(*this, pieces, counts);
  for (const auto& [length, wanted] : by_length) {
    *visits += pieces.size() + num_pages / length + wanted.size();
    const bool is_placed =
        length == large_pages ? placer.PlaceLarge(wanted) : placer.PlaceSmall(wanted, length);
    if (!is_placed) return std::nullopt;
  }
  return placer.TakeExtents();
}

}  // namespace retroinfer::kvstore
