// Plans a restore: which segments a request would find if all segments on the disk were in the
// arena, too.
#pragma once

#include <cstdint>
#include <vector>

#include "common/kv/named_segment.h"
#include "kv_store_service/persistence/segment_storage.h"
#include "kv_store_service/tier/tier_rows.h"

namespace retroinfer::kvstore {

struct RestorePlan {
  std::vector<uint64_t> held;          // extents in the arena that the request would reference
  std::vector<SegmentRecord> records;  // segments and blocks to read, in order of position
};

// Both plans end before the first piece that is nowhere or in progress already, and before a record
// whose number or place of tokens is not that of a segment or block: the disk is not believed.
//
// REQUIRES: CheckRequest(request) is OK.

// Plans for a request with segments.
RestorePlan PlanSegments(const ReserveRequest& request, const TierRows& source);
// Plans for a request for rows.
RestorePlan PlanRows(const ReserveRequest& request, const TierRows& source);

}  // namespace retroinfer::kvstore
