// A run of pages of the arena. The worker may write it until its segment is committed; a cached one
// holds a committed segment already, which other sequences may use as well.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/hash/segment_name.h"
#include "common/kv/kv_geometry.h"

namespace retroinfer {

struct Extent {
  uint64_t id = 0;
  PageId first_page = 0;    // in the arena
  uint32_t num_pages = 0;   // pages
  uint32_t num_tokens = 0;  // that it was reserved for
  bool cached = false;      // holds the image of the wanted segment; must not be written
  // Of a cached one with generated KV, its name (common/hash/segment_name.h).
  std::optional<common::SegmentName> generated = std::nullopt;
  // Not 0: of a cached one only the index is there for certain; the rest comes in parts of so many
  // bytes, counted from its beginning.
  uint32_t part_bytes = 0;
};

// Parts of such an extent's segment that are wanted before the rest.
struct PartsOfExtent {
  uint64_t extent_id = 0;
  std::vector<uint32_t> runs;  // of each run of neighbouring parts the first one, then how many
};
// How many parts are there, of a segment that is there as a whole.
inline constexpr uint32_t kAllParts = UINT32_MAX;

}  // namespace retroinfer
