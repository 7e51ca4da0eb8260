// What the parts of a store share, and the lock that keeps it consistent.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kv_store_service/lease/worker_lease.h"
#include "kv_store_service/tier/context_pins.h"
#include "kv_store_service/tier/tier_bridge.h"

namespace retroinfer::kvstore {

// Nothing that takes long happens under the lock: no disk, no memory that is allocated or given
// back, no page of the arena or of a data plane.
//
// Lock order: a lock of a part, then `mutex`, then the tier's locks.
struct StoreState {
  mutable absl::Mutex mutex;
  WorkerLease lease ABSL_GUARDED_BY(mutex);
  // Arena and segments of now. Null until there is an arena; no segments until the first lease;
  // fingerprint of the last lease.
  SegmentsOfArena current ABSL_GUARDED_BY(mutex);
  ContextPins pins ABSL_GUARDED_BY(mutex);
  // The way to the disk, for use under the lock; null: there is no disk. Constant once set.
  TierBridge* bridge = nullptr;
};

}  // namespace retroinfer::kvstore
