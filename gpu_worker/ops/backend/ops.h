// The operations of a forward pass, as one backend implements them, by role. Each has its contract
// in a header of its own, in the folder of its role. The backend is chosen once, in main.cc.
//
// All calls validate their arguments (INVALID_ARGUMENT), enqueue on `stream` and return; none
// allocates device memory, synchronises, or keeps the argument structs. What spans point to must
// stay valid until the stream has passed the call.
//
// Threads: calls on different streams may come from different threads.
#pragma once

#include "absl/status/status.h"
#include "common/kv/kv_format.h"
#include "gpu_worker/ops/attention/attention_ops.h"
#include "gpu_worker/ops/block_cache/block_cache_ops.h"
#include "gpu_worker/ops/collective/collective_ops.h"
#include "gpu_worker/ops/index/index_ops.h"
#include "gpu_worker/ops/model/model_ops.h"

namespace retroinfer {

// Who needs one role takes that role's interface, not this.
class Ops {
 public:
  virtual ~Ops() = default;

  // They live as long as this.
  virtual ModelOps& model() = 0;
  virtual AttentionOps& attention() = 0;
  virtual IndexOps& index() = 0;
  virtual BlockCacheOps& block_cache() = 0;
  virtual CollectiveOps& collective() = 0;

  // Returns INVALID_ARGUMENT, with what is missing, unless every operation has code for `format`.
  virtual absl::Status CheckKvFormat(const KvFormat& format) const = 0;
};

}  // namespace retroinfer
