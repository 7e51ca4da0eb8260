// What the rows of a lane's group cost: arithmetic over its members.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu_worker/scheduler/step_plan.h"

namespace retroinfer {

// Estimates the runs of a group of these members: the prompts of a prefix group (members with the
// same prefix and cached tokens) are taken to have their common_tokens in common, and no more.
std::vector<LaneDescription::Run> RunsOf(const std::vector<LaneDescription::Member>& members);

// Upper bound of the tokens of a lane's KV, and of its rows, that the members take together
// (PrefillLane::Begin).
int64_t LaneTokens(const std::vector<LaneDescription::Member>& members);

// Whether two members are of one prefix group: their cached tokens are read once.
bool ShareCachedTokens(const LaneDescription::Member& a, const LaneDescription::Member& b);

// Rows of all members of a group.
int64_t GroupRows(const LaneDescription& lane);

// The largest number of rows from lane.next_row on, up to `rows`, that a pass can have, or the
// least above: it cuts no unit of a sparse run. REQUIRES: the lane's runs are known.
int64_t WholeUnits(const LaneDescription& lane, int64_t rows);

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
