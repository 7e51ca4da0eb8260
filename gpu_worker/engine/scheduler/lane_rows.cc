#include "gpu_worker/engine/scheduler/lane_rows.h"

#include <algorithm>

namespace retroinfer {
namespace {

constexpr int64_t kSinkRows = 4;  // computed before the cached tokens are read

// Work of rows [first, last) of one member.
Work WorkOfMember(const LaneDescription::Member& member, int64_t first, int64_t last) {
  const auto rows = static_cast<double>(last - first);
  Work work{.pass_rows = rows,
            .pass_depth = (static_cast<double>(first) + static_cast<double>(last - 1)) / 2 * rows};
  if (member.cached_tokens == 0) return work;
  const auto behind = static_cast<double>(last - std::max(first, std::min(last, kSinkRows)));
  const auto cached = static_cast<double>(member.cached_tokens);
  work.pass_depth += behind * cached;
  if (first <= kSinkRows && last > kSinkRows) work.cached = cached;
  return work;
}

}  // namespace

int64_t GroupRows(const LaneDescription& lane) {
  int64_t rows = 0;
  for (const LaneDescription::Member& member : lane.members) rows += member.rows;
  return rows;
}

Work WorkOfRows(const LaneDescription& lane, int64_t first_row, int64_t num_rows) {
  Work work{.passes = 1};
  int64_t begin = 0;
  for (const LaneDescription::Member& member : lane.members) {
    const int64_t first = std::max(first_row - begin, int64_t{0});
    const int64_t last = std::min(first_row + num_rows - begin, member.rows);
    if (first < last) work += WorkOfMember(member, first, last);
    begin += member.rows;
  }
  return work;
}

Work WorkLeft(const LaneDescription& lane, uint32_t num_layers, int64_t max_rows) {
  const int64_t rows = GroupRows(lane);
  const auto passes = [max_rows](int64_t n) {
    return static_cast<double>((n + max_rows - 1) / max_rows);
  };
  Work work = WorkOfRows(lane, lane.next_row, rows - lane.next_row);
  work.passes = passes(rows - lane.next_row);
  Work layer = WorkOfRows(lane, 0, rows);
  layer.passes = passes(rows);
  const double more = num_layers - 1.0 - lane.layer;
  work += {.passes = more * layer.passes,
           .pass_rows = more * layer.pass_rows,
           .pass_depth = more * layer.pass_depth,
           .cached = more * layer.cached};
  return work;
}

LaneDescription::Member MemberOf(const RequestDescription& request) {
  return {.id = request.id,
          .tenant = request.tenant,
          .priority = request.priority,
          .arrival = request.arrival,
          .rows = request.prompt_tokens - request.cached_tokens,
          .cached_tokens = request.cached_tokens,
          .takes_in_order = request.takes_in_order,
          .has_more_parts = request.has_more_parts};
}

}  // namespace retroinfer
