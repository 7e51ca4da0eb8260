// What the rows of a lane's group cost: arithmetic over its members.
#pragma once

#include <cstdint>

#include "gpu_worker/engine/scheduler/step_plan.h"

namespace retroinfer {

// Rows of all members of a group.
int64_t GroupRows(const LaneDescription& lane);

// Work of rows [first_row, first_row + num_rows) of the group in one layer.
Work WorkOfRows(const LaneDescription& lane, int64_t first_row, int64_t num_rows);

// Work that is left of the group from (lane.layer, lane.next_row) on, in passes of at most
// `max_rows`.
Work WorkLeft(const LaneDescription& lane, uint32_t num_layers, int64_t max_rows);

// The member that a request will be.
LaneDescription::Member MemberOf(const RequestDescription& request);

}  // namespace retroinfer
