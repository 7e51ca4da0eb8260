// How many requests may still be admitted in one plan.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_set.h"
#include "gpu_worker/scheduler/request_predicates.h"
#include "gpu_worker/scheduler/step_plan.h"

namespace retroinfer {

// Threads: one at a time.
class AdmissionBudget {
 public:
  // `free_rows`: of the batch. `max_reserving`: requests that may wait for the store at a time.
  AdmissionBudget(const SchedulerInput& input, int64_t free_rows, int64_t max_reserving)
      : input_(input),
        short_ones_(free_rows),
        reserving_(max_reserving),
        table_rows_(input.free_table_rows) {
    // One long prompt more than there are free lanes: it begins at once when a lane comes free.
    for (const LaneDescription& lane : input.lanes) long_ones_ += lane.is_free ? 1 : 0;
    for (const RequestDescription& request : input.requests) {
      if (request.phase == RequestPhase::kReserving) {
        --reserving_;
        AddPrefix(request);
      }
      if (request.phase == RequestPhase::kReady) TakeLane(request);
    }
  }

  // Whether a request that waits, or is suspended, may be tried.
  bool MayTry(const RequestDescription& request) const {
    if (request.phase == RequestPhase::kSuspended) return short_ones_ > 0;
    if (request.phase != RequestPhase::kWaiting) return false;
    return (IsShort(input_, request) ? short_ones_ : long_ones_) > 0 ||
           (IsReadLikeShort(request) && short_ones_ > 0);
  }
  bool has_table_row() const { return table_rows_ > 0; }
  bool may_ask_store() const { return reserving_ > 0; }

  // A prompt takes one of the places of its kind.
  void TakeLane(const RequestDescription& request) {
    --(IsReadLikeShort(request) ? short_ones_ : long_ones_);
    AddPrefix(request);
  }
  void TakeBatchRow() { --short_ones_; }
  void TakeTableRow() { --table_rows_; }
  void AskStore() { --reserving_; }

 private:
  void AddPrefix(const RequestDescription& request) {
    if (request.prefix != 0) prefixes_.insert(request.prefix);
  }
  // A long prompt that is read together with another needs no lane of its own.
  bool IsReadLikeShort(const RequestDescription& request) const {
    return IsShort(input_, request) || (request.prefix != 0 && prefixes_.contains(request.prefix));
  }

  const SchedulerInput& input_;
  int64_t short_ones_;     // requests with short prompts, each with a row of the batch
  int64_t long_ones_ = 1;  // requests with long prompts
  int64_t reserving_;      // requests that may ask the store
  int64_t table_rows_;
  // Prefix groups of requests that are admitted and not yet read.
  absl::flat_hash_set<uint64_t> prefixes_;
};

}  // namespace retroinfer
