// Whether first places of clusters can count an arena.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/kv/kv_geometry.h"
#include "gpu_worker/ops/arg_check.h"

namespace retroinfer {

// Returns INVALID_ARGUMENT unless MetaEntry::first_place can name each place of `num_pages` pages
// of the arena: 1 TiB where clusters are packed and a page has 8 tokens, 8 TiB where they are not.
inline absl::Status CheckPlaces(uint64_t num_pages, const KvGeometry& geometry, const char* op) {
  return CheckArg(num_pages * geometry.places_per_page() <= uint64_t{1} << 32, op,
                  "needs an arena of at most 2^32 places of clusters, has ", num_pages,
                  " pages of ", geometry.places_per_page(),
                  "; start the store with a smaller --arena-bytes, or the worker with another "
                  "--index-dtype than packed");
}

}  // namespace retroinfer
