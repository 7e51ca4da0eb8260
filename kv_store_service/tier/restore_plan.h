// What a request would find if what is on the disk were in the arena, too.
#pragma once

#include <cstdint>
#include <vector>

#include "common/kv/named_segment.h"
#include "kv_store_service/persistence/segment_storage.h"
#include "kv_store_service/tier/tier_rows.h"

namespace retroinfer::kvstore {

struct RestorePlan {
  std::vector<uint64_t> held;          // extents in the arena that the request would find
  std::vector<SegmentRecord> records;  // to read, in order of position
};

// Both go on until something is nowhere, or in progress already. What is read must look like a
// segment or block of its number of tokens, whatever the disk says of it.
//
// REQUIRES: CheckRequest(request) is OK.

// Of a request with segments.
RestorePlan PlanSegments(const ReserveRequest& request, const TierRows& source);
// Of a request for rows.
RestorePlan PlanRows(const ReserveRequest& request, const TierRows& source);

}  // namespace retroinfer::kvstore
