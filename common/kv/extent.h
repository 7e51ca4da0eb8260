// A run of pages of the arena that the worker may write until its segment is committed.
#pragma once

#include <cstdint>

#include "common/kv/kv_geometry.h"

namespace retroinfer {

struct Extent {
  uint64_t id = 0;
  PageId first_page = 0;    // in the arena
  uint32_t num_pages = 0;   // pages
  uint32_t num_tokens = 0;  // that it was reserved for
};

}  // namespace retroinfer
