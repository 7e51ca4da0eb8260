// The operations of a forward pass, as one backend implements them. Each has its contract in a
// header of its own. The backend is chosen once, in main.cc.
//
// All calls validate their arguments (INVALID_ARGUMENT), enqueue on `stream` and return; none
// allocates device memory, synchronises, or keeps the argument structs. What spans point to must
// stay valid until the stream has passed the call.
//
// Threads: calls on different streams may come from different threads.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/ops/centroid_score.h"
#include "gpu_worker/ops/cluster_keys.h"
#include "gpu_worker/ops/cluster_select.h"
#include "gpu_worker/ops/decode_attention.h"
#include "gpu_worker/ops/embedding.h"
#include "gpu_worker/ops/estimate.h"
#include "gpu_worker/ops/gated_linear.h"
#include "gpu_worker/ops/layer_kv.h"
#include "gpu_worker/ops/linear.h"
#include "gpu_worker/ops/load_segment_index.h"
#include "gpu_worker/ops/page_lookup.h"
#include "gpu_worker/ops/prefill_attention.h"
#include "gpu_worker/ops/read_segment_layer.h"
#include "gpu_worker/ops/rms_norm.h"
#include "gpu_worker/ops/rope.h"
#include "gpu_worker/ops/sampling.h"
#include "gpu_worker/ops/silu_mul.h"
#include "gpu_worker/ops/slot_fill.h"
#include "gpu_worker/ops/write_segment.h"

namespace retroinfer {

class Ops {
 public:
  virtual ~Ops() = default;

  // Element type of hidden states, queries and attention outputs.
  virtual DType activation_dtype() const = 0;

  // Copies weights into the backend's own form. May take long; not for a decode step.
  virtual absl::StatusOr<std::unique_ptr<PreparedLinear>> PrepareLinear(
      const LinearWeights& weights) = 0;

  virtual absl::Status Embedding(Stream& stream, const EmbeddingArgs& args) = 0;
  virtual absl::Status RmsNorm(Stream& stream, const RmsNormArgs& args) = 0;
  virtual absl::Status Linear(Stream& stream, const LinearArgs& args) = 0;
  virtual absl::Status GatedLinear(Stream& stream, const GatedLinearArgs& args) = 0;
  virtual absl::Status RopeTable(Stream& stream, const RopeTableArgs& args) = 0;
  virtual absl::Status Rope(Stream& stream, const RopeArgs& args) = 0;
  virtual absl::Status SiluMul(Stream& stream, const SiluMulArgs& args) = 0;

  virtual absl::Status StoreLayerKv(Stream& stream, const StoreLayerKvArgs& args) = 0;
  virtual absl::Status PrefillAttention(Stream& stream, const PrefillAttentionArgs& args) = 0;
  virtual absl::Status FillDense(Stream& stream, const FillDenseArgs& args) = 0;
  virtual absl::Status ReadDense(Stream& stream, const ReadDenseArgs& args) = 0;
  virtual absl::Status AppendDense(Stream& stream, const AppendDenseArgs& args) = 0;

  virtual size_t DecodeAttentionScratchBytes(int32_t max_batch, int32_t num_query_heads,
                                             int32_t head_dim) const = 0;
  virtual absl::Status DecodeAttention(Stream& stream, const DecodeAttentionArgs& args) = 0;

  virtual size_t ClusterKeysScratchBytes(uint32_t num_kv_heads, uint32_t head_dim,
                                         int32_t num_tokens, int32_t num_clusters) const = 0;
  virtual absl::Status ClusterKeys(Stream& stream, const ClusterKeysArgs& args) = 0;
  virtual absl::Status WriteSegment(Stream& stream, const WriteSegmentArgs& args) = 0;
  virtual absl::Status LoadSegmentIndex(Stream& stream, const LoadSegmentIndexArgs& args) = 0;
  virtual absl::Status ReadSegmentLayer(Stream& stream, const ReadSegmentLayerArgs& args) = 0;
  virtual absl::Status CentroidScore(Stream& stream, const CentroidScoreArgs& args) = 0;
  virtual absl::Status ClusterSelect(Stream& stream, const ClusterSelectArgs& args) = 0;
  virtual size_t EstimateScratchBytes(int32_t max_batch, int32_t num_query_heads, int32_t head_dim,
                                      int64_t max_estimated) const = 0;
  virtual absl::Status Estimate(Stream& stream, const EstimateArgs& args) = 0;
  // Whether PageLookup copies pages that it does not admit into transient slots.
  virtual bool uses_transient_slots() const = 0;
  virtual absl::Status PageLookup(Stream& stream, const PageLookupArgs& args) = 0;
  virtual absl::Status AdmitPages(Stream& stream, const AdmitPagesArgs& args) = 0;
  virtual absl::Status ApplyEvictions(Stream& stream, const ApplyEvictionsArgs& args) = 0;
  virtual absl::Status ReleasePages(Stream& stream, const ReleasePagesArgs& args) = 0;
  virtual absl::Status TakeSlots(Stream& stream, const TakeSlotsArgs& args) = 0;
  virtual absl::Status AdmitSlots(Stream& stream, const AdmitSlotsArgs& args) = 0;
  virtual absl::Status LogSnapshot(Stream& stream, const LogSnapshotArgs& args) = 0;

  virtual absl::Status Sampling(Stream& stream, const SamplingArgs& args) = 0;
};

}  // namespace retroinfer
