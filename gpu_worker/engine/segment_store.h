// What the engine asks of the owner of the arena. The implementation talks to the kv_store_service;
// tests use one in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/extent.h"
#include "common/kv/named_segment.h"

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
  // Whether another worker has the arena, for ever. Bytes that were read from the arena before a
  // call that returns false were right.
  virtual bool memory_taken() const { return false; }

  // Takes one extent for each wanted segment, all or nothing. The leading named ones that are
  // committed, by whomever, are shared: Extent::cached. If the next named one is being computed by
  // another sequence, the answer waits for its commit or for the end of that sequence, so that it
  // is computed once.
  //
  // With ReserveRequest::made_by generated segments are shared, too (Extent::generated); with
  // ReserveRequest::rows nothing is taken, and what holds the rows is shared until Release(): the
  // answer waits for what is being committed or read from the disk. A sequence reserves once.
  //
  // The callback gets the extents in order (with cached_only: the cached ones), RESOURCE_EXHAUSTED
  // (arena full now), UNAVAILABLE (no store) or CANCELLED (released meanwhile).
  virtual void Reserve(ReserveRequest request, ReserveCallback callback) = 0;
  // Makes a segment or block immutable; a named one is found by others from now on. Not for cached
  // ones.
  virtual void Commit(uint64_t sequence_id, CommittedSegment segment) = 0;
  // The same for many of one sequence, in one call or a few.
  virtual void Commit(uint64_t sequence_id, std::vector<CommittedSegment> segments) = 0;
  // Gives up everything that the sequence holds in the arena or waits for. Its named segments may
  // stay, for others to find, until their pages are needed.
  virtual void Release(uint64_t sequence_id) = 0;

  // Whether reservations may take segments of which only the index is there
  // (ReserveRequest::takes_partial).
  virtual bool serves_parts() const { return false; }
  // Waits for parts of such segments. The callback gets, for each of the wanted, how many parts
  // from the first one on are there besides (kAllParts: all); or why they do not come. REQUIRES:
  // serves_parts().
  using PartsCallback = std::function<void(absl::StatusOr<std::vector<uint32_t>>)>;
  virtual void FetchParts(std::vector<PartsOfExtent> /*wanted*/, PartsCallback callback) {
    callback(absl::UnimplementedError("this store has no partial segments"));
  }
};

}  // namespace retroinfer
