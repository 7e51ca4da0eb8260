// Tokens of a prompt whose KV prefill reads from the arena instead of computing it.
#pragma once

#include <cstdint>

#include "common/hash/segment_name.h"
#include "common/kv/extent.h"

namespace retroinfer {

struct CachedRun {
  Extent extent;  // holds them as a segment or as a block (common/kv/named_segment.h)
  // Equal for equal KV, whatever holds it: of exact KV the text name of its end, of generated KV
  // its own name.
  common::SegmentName name;
  int64_t token_begin = 0;

  uint32_t num_tokens() const { return extent.num_tokens; }
  int64_t token_end() const { return token_begin + extent.num_tokens; }
};

}  // namespace retroinfer
