// What could be had of an arena: free runs, and runs that may be given up.
#pragma once

#include <cstdint>

#include "kv_store_service/arena/extent_allocator.h"

namespace retroinfer::kvstore {

// In order of their pages and without overlaps, pieces describe an arena: what is no piece is in
// use.
struct ArenaPiece {
  PageRun pages;
  uint64_t rank = 0;  // 0: free; else the dearer, the higher
};

}  // namespace retroinfer::kvstore
