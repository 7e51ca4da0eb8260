// What a StoreLink still has to say to the store.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gpu_worker/store_link/store_link.h"

namespace retroinfer {

// A call to the store that waits for its turn or its answer.
struct StoreOperation {
  enum class Kind { kReserve, kCommit, kRelease };

  Kind kind = Kind::kRelease;
  uint64_t sequence_id = 0;
  ReserveRequest request;                        // kReserve
  StoreLink::ReserveCallback on_reserved;        // kReserve
  absl::Time deadline = absl::InfiniteFuture();  // kReserve
  // kReserve: when it stops to mind that others compute the same; set at the first answer that they
  // do.
  std::optional<absl::Time> progress_deadline;
  std::vector<CommittedSegment> segments;  // kCommit
  StoreLink::DoneCallback on_committed;    // kCommit
};

// Answers whoever asked with `error`.
inline void Finish(StoreOperation& operation, const absl::Status& error) {
  if (operation.on_reserved) operation.on_reserved(error);
  if (operation.on_committed) operation.on_committed(error);
}

}  // namespace retroinfer
