// What the engine asks of the owner of the arena. The implementation talks to the kv_store_service;
// tests use one in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/extent.h"

namespace retroinfer {

// Threads: methods on any thread, none blocks; callbacks come on a thread of the implementation.
class SegmentStore {
 public:
  virtual ~SegmentStore() = default;

  using ReserveCallback = std::function<void(absl::StatusOr<std::vector<Extent>>)>;

  // Pages of the arena in all.
  virtual uint32_t arena_pages() const = 0;
  virtual bool attached() const = 0;
  virtual uint64_t num_reattached() const = 0;

  // Reserves one extent for each element of `segment_tokens`, all or nothing. The callback gets
  // them in that order, RESOURCE_EXHAUSTED (no room now) or UNAVAILABLE (no store).
  virtual void Reserve(uint64_t sequence_id, std::vector<uint32_t> segment_tokens,
                       ReserveCallback callback) = 0;
  // Makes the segment in `extent_id`, whose first token is at position `token_begin`, immutable.
  virtual void Commit(uint64_t sequence_id, uint64_t extent_id, int64_t token_begin) = 0;
  // Frees everything that the sequence holds in the arena.
  virtual void Release(uint64_t sequence_id) = 0;
};

}  // namespace retroinfer
