// What the rows of a lane's group cost: arithmetic over its members.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu_worker/scheduler/step_plan.h"

namespace retroinfer {

// The runs of a group of these members, where a family of several (members with the same prefix,
// cached) is taken for prompts that have common_tokens in common, and nothing behind them.
std::vector<LaneDescription::Run> RunsOf(const std::vector<LaneDescription::Member>& members);

// Room in a lane's KV and rows that the members take together at most (PrefillLane::Begin).
int64_t LaneTokens(const std::vector<LaneDescription::Member>& members);

// Whether two members' cached tokens are read as one.
bool ShareCachedTokens(const LaneDescription::Member& a, const LaneDescription::Member& b);

// Rows of all members of a group.
int64_t GroupRows(const LaneDescription& lane);

// Work of rows [first_row, first_row + num_rows) of the group in one layer.
Work WorkOfRows(const LaneDescription& lane, int64_t first_row, int64_t num_rows);

// Work that is left of the group from (lane.layer, lane.next_row) on, in passes of at most
// `max_rows`.
Work WorkLeft(const LaneDescription& lane, uint32_t num_layers, int64_t max_rows);

// Work of a prompt that is read alone.
Work WorkAlone(const LaneDescription::Member& member, uint32_t num_layers, int64_t max_rows);

// The member that a request will be.
LaneDescription::Member MemberOf(const RequestDescription& request);

}  // namespace retroinfer
