// The calls of a worker about its sequences: reserve, commit, release, and declare what the worker
// holds.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/extent.h"
#include "kv_store_service/directory/arena_segments.h"
#include "kv_store_service/store/store_state.h"
#include "kv_store_service/store/store_stats.h"

namespace retroinfer::kvstore {

// The errors of all calls are those of the RPCs of the same names in kv_store.proto.
//
// Threads: all methods on any thread. Images are read without the lock.
// Owns:    counters; `state` outlives the object.
class Reservations {
 public:
  explicit Reservations(StoreState* state) : state_(*state) {}

  // Reserves extents, as ArenaSegments::Reserve(), and starts to read back from the disk what the
  // request would find there.
  absl::StatusOr<Reservation> Reserve(const std::string& token, uint64_t call_number,
                                      const ReserveRequest& request, bool compute_anyway = false)
      ABSL_LOCKS_EXCLUDED(state_.mutex);
  // Waits for parts of partial segments. Returns for each element how many parts from the first on
  // are there besides; kAllParts of a segment that is whole.
  absl::StatusOr<std::vector<uint32_t>> FetchParts(const std::string& token,
                                                   std::span<const PartsOfExtent> wanted)
      ABSL_LOCKS_EXCLUDED(state_.mutex);
  // Commits segments whose bytes the worker has written, and hands the named ones to the disk.
  absl::StatusOr<std::vector<ExtentRecord>> Commit(const std::string& token, uint64_t call_number,
                                                   uint64_t sequence_id,
                                                   std::span<const SegmentToCommit> segments)
      ABSL_LOCKS_EXCLUDED(state_.mutex);
  // Returns how many pages are free by that.
  absl::StatusOr<uint64_t> Release(const std::string& token, uint64_t call_number,
                                   uint64_t sequence_id) ABSL_LOCKS_EXCLUDED(state_.mutex);
  // Takes over part `index`, from 0, of what a worker holds that handed its memory back.
  absl::Status Declare(const std::string& token, uint64_t index, const Declaration& part,
                       bool is_last) ABSL_LOCKS_EXCLUDED(state_.mutex);

  // Adds what was counted. REQUIRES: the caller holds the state's mutex.
  void AddStats(StoreStats* stats) const;

 private:
  StoreState& state_;
  uint64_t segments_committed_ ABSL_GUARDED_BY(state_.mutex) = 0;
  uint64_t segments_refused_ ABSL_GUARDED_BY(state_.mutex) = 0;
  uint64_t reservations_refused_ ABSL_GUARDED_BY(state_.mutex) = 0;
};

}  // namespace retroinfer::kvstore
