// Somebody who watches what the retrieval zone of decode steps reads. There is none unless a worker
// records (gpu_worker/measuring/retrieval_trace).
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/kv/sequence_kv.h"
#include "gpu_worker/ops/attention/decode_attention.h"

namespace retroinfer {

// What one layer of a step has looked up, in device memory that the next layer overwrites.
struct LayerRetrieval {
  uint32_t layer = 0;
  int32_t batch = 0;
  int64_t max_retrieved = 0;
  DeviceSpan<const int32_t> retrieved;      // [batch, kv_heads, max_retrieved] cluster numbers
  DeviceSpan<const int32_t> num_retrieved;  // [batch, kv_heads]
  int64_t max_pages = 0;
  DeviceSpan<const PageRef> pages;      // [batch, kv_heads, max_pages]
  DeviceSpan<const int32_t> num_pages;  // [batch, kv_heads]
};

// Threads: the engine's thread.
class RetrievalObserver {
 public:
  virtual ~RetrievalObserver() = default;

  // A step begins; row i of its layers belongs to batch[i]. `max_retrieved` is that of its layers;
  // 0: nothing is looked up. The stream has passed the step before.
  virtual void BeginStep(std::span<SequenceKv* const> batch, int64_t max_retrieved) = 0;
  // Enqueues copies of what a layer has looked up on `stream`, behind the look-up: the same work
  // for the same sizes. Not called for a step that is replayed (Device::Capture).
  virtual absl::Status Copy(Stream& stream, const LayerRetrieval& layer) = 0;
  // The sequence takes part in no step any more, and the stream has passed the last one.
  virtual void Release(const SequenceKv& sequence) = 0;
};

}  // namespace retroinfer
