// Pages of the arena that are not there yet, as look-ups see them: the store still reads them from
// the disk.
//
// A look-up that comes to an absent page lists it, once a step, and marks the row of the step; the
// execution buffer gets a reference without tokens. So the row's result means nothing, but it is
// close to what it will be, and what later layers of the row ask for is mostly what they will.
#pragma once

#include <cstdint>

#include "common/kv/kv_geometry.h"
#include "gpu_worker/device/device_span.h"

namespace retroinfer {

// Of 32 pages: a bit for each, the first one in the lowest.
struct AbsentWord {
  uint32_t absent;
  uint32_t asked;  // set by look-ups: listed already
};
static_assert(sizeof(AbsentWord) == 8);

// Read only while LookupControl::any_absent is not 0.
struct AbsentPagesView {
  DeviceSpan<AbsentWord> words;   // [arena_pages / 32], rounded up
  DeviceSpan<uint32_t> rows;      // [max rows of a step]: not 0: the row came to an absent page
  DeviceSpan<PageId> asked;       // pages that look-ups came to; what has no room is left out
  uint32_t* num_asked = nullptr;  // device; may be more than there is room for
};

}  // namespace retroinfer
