#include "gpu_worker/scheduler/lane_rows.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "common/kv/query_units.h"

namespace retroinfer {
namespace {

using Member = LaneDescription::Member;
using Run = LaneDescription::Run;

constexpr int64_t kSinkRows = 4;  // computed before the cached tokens are read

// Tokens before a row, summed over rows [first, last) of the run.
double DepthOf(const Run& run, int64_t first, int64_t last) {
  const double mean = (static_cast<double>(first) + static_cast<double>(last - 1)) / 2;
  return (static_cast<double>(run.depth) + mean) * static_cast<double>(last - first);
}

// Rows of the run from this one on attend to chosen blocks.
int64_t FirstSparseRow(const Run& run) {
  return std::clamp<int64_t>(run.sparse_from - run.depth, 0, run.rows);
}

// Work of rows [first, last) of one run.
Work WorkOfRun(const Run& run, int64_t first, int64_t last) {
  Work work{.pass_rows = static_cast<double>(last - first),
            .cached = first == 0 ? static_cast<double>(run.cached) : 0};
  const int64_t sparse = std::clamp(FirstSparseRow(run), first, last);
  if (first < sparse) {
    work.pass_depth = DepthOf(run, first, sparse);
    work.pass_reach = static_cast<double>(run.depth) + static_cast<double>(sparse);
  }
  if (sparse < last) work.sparse_depth = DepthOf(run, sparse, last);
  return work;
}

// The runs of a prompt that is read alone. Without cached tokens the second run is empty.
std::array<Run, 2> RunsOfOne(const Member& member) {
  const int64_t before = member.cached_tokens == 0 ? member.rows : std::min(kSinkRows, member.rows);
  return {Run{.rows = before, .tenant = member.tenant, .sparse_from = member.sparse_from},
          Run{.rows = member.rows - before,
              .depth = kSinkRows + member.cached_tokens,
              .cached = member.cached_tokens,
              .tenant = member.tenant,
              .sparse_from = member.sparse_from}};
}

// Adds the runs of one prefix group.
void AddRuns(std::span<const Member* const> prefix_group, std::vector<Run>& runs) {
  const Member& first = *prefix_group.front();
  if (prefix_group.size() == 1) {
    for (const Run& run : RunsOfOne(first)) {
      if (run.rows > 0) runs.push_back(run);
    }
    return;
  }
  int64_t read = first.cached_tokens;
  for (const Member* const member : prefix_group) read = std::min(read, member->cached_tokens);
  const int64_t depth = kSinkRows + read;
  // Members that have computed rows in common with others, not only cached tokens.
  int64_t common = first.rows + first.cached_tokens;
  int sharers = 0;
  const auto shares = [depth](const Member& member) { return member.common_tokens > depth; };
  for (const Member* const member : prefix_group) {
    if (!shares(*member)) continue;
    common = std::min({common, member->common_tokens, member->rows + member->cached_tokens});
    ++sharers;
  }
  if (sharers < 2) common = depth;
  runs.push_back({.rows = kSinkRows, .tenant = first.tenant});
  if (common > depth) {
    runs.push_back({.rows = common - depth,
                    .depth = depth,
                    .cached = std::exchange(read, 0),
                    .tenant = first.tenant});
  }
  for (const Member* const member : prefix_group) {
    const int64_t tokens = member->rows + member->cached_tokens;
    const int64_t begin = shares(*member) ? common : depth;
    // A member with more cached tokens than the others reads them for itself.
    const int64_t more = std::max<int64_t>(0, kSinkRows + member->cached_tokens - begin);
    if (tokens <= begin + more) continue;
    runs.push_back({.rows = tokens - begin - more,
                    .depth = begin + more,
                    .cached = std::exchange(read, 0) + more,
                    .tenant = member->tenant});
  }
}

// Calls `visit` with the members of each prefix group, in the order of their first members.
template <typename Visit>
void ForEachPrefixGroup(const std::vector<Member>& members, Visit visit) {
  std::vector<const Member*> prefix_group;
  for (size_t i = 0; i < members.size(); ++i) {
    const auto shares = [&](size_t j) { return ShareCachedTokens(members[i], members[j]); };
    bool is_first = true;
    for (size_t j = 0; j < i && is_first; ++j) is_first = !shares(j);
    if (!is_first) continue;
    prefix_group.assign(1, &members[i]);
    for (size_t j = i + 1; j < members.size(); ++j) {
      if (shares(j)) prefix_group.push_back(&members[j]);
    }
    visit(std::span<const Member* const>(prefix_group));
  }
}

std::vector<Run> RunsOfLane(const LaneDescription& lane) {
  return lane.runs.empty() ? RunsOf(lane.members) : lane.runs;
}

int64_t RowsOf(std::span<const Run> runs) {
  int64_t rows = 0;
  for (const Run& run : runs) rows += run.rows;
  return rows;
}

Work WorkOf(std::span<const Run> runs, int64_t first_row, int64_t num_rows) {
  Work work{.passes = 1};
  int64_t begin = 0;
  for (const Run& run : runs) {
    const int64_t first = std::max(first_row - begin, int64_t{0});
    const int64_t last = std::min(first_row + num_rows - begin, run.rows);
    if (first < last) work += WorkOfRun(run, first, last);
    begin += run.rows;
  }
  return work;
}

// What passes of `max_rows` rows from `first_row` on reach, roughly.
double ReachOf(std::span<const Run> runs, int64_t first_row, int64_t max_rows) {
  double reach = 0;
  int64_t begin = 0;
  for (const Run& run : runs) {
    const int64_t first = std::max(first_row - begin, int64_t{0});
    begin += run.rows;
    const int64_t last = FirstSparseRow(run);
    if (first >= last) continue;
    const auto rows = static_cast<double>(last - first);
    const double passes = std::max(1.0, rows / static_cast<double>(max_rows));
    reach += passes * static_cast<double>(run.depth + first) + (passes + 1) / 2 * rows;
  }
  return reach;
}

// Work of a layer from `first_row` on, of `rows` in all.
Work WorkOfLayer(std::span<const Run> runs, int64_t first_row, int64_t rows, int64_t max_rows) {
  Work work = WorkOf(runs, first_row, rows - first_row);
  work.passes = static_cast<double>((rows - first_row + max_rows - 1) / max_rows);
  work.pass_reach = ReachOf(runs, first_row, max_rows);
  return work;
}

// Work of one layer from `first_row` on, and of `more` whole ones.
Work WorkFrom(std::span<const Run> runs, int64_t first_row, double more, int64_t max_rows) {
  const int64_t rows = RowsOf(runs);
  Work work = WorkOfLayer(runs, first_row, rows, max_rows);
  const Work layer = first_row == 0 ? work : WorkOfLayer(runs, 0, rows, max_rows);
  work += {.passes = more * layer.passes,
           .pass_rows = more * layer.pass_rows,
           .pass_depth = more * layer.pass_depth,
           .cached = more * layer.cached,
           .sparse_depth = more * layer.sparse_depth,
           .pass_reach = more * layer.pass_reach};
  return work;
}

}  // namespace

bool ShareCachedTokens(const Member& a, const Member& b) {
  return a.prefix != 0 && a.prefix == b.prefix && a.cached_tokens > 0 && b.cached_tokens > 0;
}

std::vector<Run> RunsOf(const std::vector<Member>& members) {
  std::vector<Run> runs;
  ForEachPrefixGroup(
      members, [&](std::span<const Member* const> prefix_group) { AddRuns(prefix_group, runs); });
  return runs;
}

int64_t LaneTokens(const std::vector<Member>& members) {
  int64_t tokens = 0, rows = 0;
  ForEachPrefixGroup(members, [&](std::span<const Member* const> prefix_group) {
    int64_t longest = 0;
    for (const Member* const member : prefix_group) {
      longest = std::max(longest, member->rows + member->cached_tokens);
      if (prefix_group.size() > 1 && !member->takes_in_order) {
        tokens += member->rows + member->unshared_tokens;
      }
      rows += member->rows;
    }
    tokens += longest;
  });
  return std::max(tokens, rows);
}

int64_t WholeUnits(const LaneDescription& lane, int64_t rows) {
  const int64_t end = std::min(lane.next_row + rows, GroupRows(lane));
  int64_t begin = 0;
  for (const Run& run : lane.runs) {
    const int64_t run_end = begin + run.rows;
    if (run.sparse_from != LaneDescription::kNeverSparse && end > begin && end < run_end) {
      const int64_t to_token = run.depth - begin;
      const int64_t least = std::max(lane.next_row + 1, begin);
      const int64_t cut =
          EndOfUnits(least + to_token, end + to_token, run_end + to_token) - to_token;
      // Before the run is a place, too, where that begins within a unit.
      return (cut > end && lane.next_row < begin ? begin : cut) - lane.next_row;
    }
    begin = run_end;
  }
  return end - lane.next_row;
}

int64_t GroupRows(const LaneDescription& lane) { return RowsOf(RunsOfLane(lane)); }

Work WorkOfRows(const LaneDescription& lane, int64_t first_row, int64_t num_rows) {
  return WorkOf(RunsOfLane(lane), first_row, num_rows);
}

Work WorkLeft(const LaneDescription& lane, uint32_t num_layers, int64_t max_rows) {
  const double more = num_layers - 1.0 - lane.layer;
  const std::vector<Run> runs = RunsOfLane(lane);
  return WorkFrom(runs, lane.next_row, more, max_rows);
}

Work WorkAlone(const Member& member, uint32_t num_layers, int64_t max_rows) {
  const std::array<Run, 2> runs = RunsOfOne(member);
  const size_t count = runs[1].rows > 0 ? 2 : 1;
  return WorkFrom(std::span(runs).first(count), 0, num_layers - 1.0, max_rows);
}

LaneDescription::Member MemberOf(const RequestDescription& request) {
  return {.id = request.id,
          .tenant = request.tenant,
          .priority = request.priority,
          .arrival = request.arrival,
          .rows = request.prompt_tokens - request.cached_tokens,
          .cached_tokens = request.cached_tokens,
          .unshared_tokens = request.unshared_tokens,
          .takes_in_order = request.takes_in_order,
          .has_more_parts = request.has_more_parts,
          .prefix = request.prefix,
          .common_tokens = request.common_tokens,
          .sparse_from = request.sparse_from,
          .given_tokens = request.given_tokens};
}

}  // namespace retroinfer
