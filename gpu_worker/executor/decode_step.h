// One decode step: a new token for every sequence of a batch, whatever their lengths and policies.
//
// Threads: the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/memory_need.h"
#include "gpu_worker/device/staged_arrays.h"
#include "gpu_worker/executor/sampler.h"
#include "gpu_worker/executor/step_graphs.h"
#include "gpu_worker/executor/step_row.h"
#include "gpu_worker/kv/layer_map.h"
#include "gpu_worker/kv/window_layers.h"
#include "gpu_worker/model/transformer.h"

namespace retroinfer {

class DecodeStep {
 public:
  // Sums since start.
  struct Counters {
    uint64_t steps = 0;
    // Of the calling thread, without waiting for the device and without masks.
    int64_t host_ns = 0;
    int64_t mask_ns = 0;          // of the calling thread, for the masks of constraints
    StepGraphs::Counters graphs;  // of forward passes
  };

  // `windows`: null where all layers of the model are indexed. All of it outlives the result.
  static absl::StatusOr<std::unique_ptr<DecodeStep>> Create(Device& device, Stream& stream,
                                                            Transformer& model, Sampler& sampler,
                                                            int32_t max_batch,
                                                            WindowLayers* windows = nullptr);
  static MemoryNeed MemoryOf(int32_t max_batch);

  // Feeds the rows' tokens and carries out their tasks. Result i belongs to rows[i]; results are
  // valid until the next call, and their tokens until the sampler's.
  //
  // What the device does in a step is two recorded pieces of work where the device can record: the
  // forward pass, and drawing from its logits. Masks of constraints are computed on the calling
  // thread while the device is in the forward pass. Nothing is allocated or waited for until the
  // results are on the host.
  //
  // REQUIRES: 1 <= rows.size() <= max_batch; rows of one policy are neighbours, and so are those of
  //           one sequence, in the order of their positions. Several rows of one sequence are no
  //           more than AttentionPolicy::RowsTogether, and of one that draws no more than
  //           kMaxSamplingAhead + 1: each draws as if its token and those before it were certain.
  absl::StatusOr<std::span<const StepResult>> Run(std::span<const StepRow> rows);

  Counters counters() const;

 private:
  // Rows [first_row, first_row + num_rows) use `policy`.
  struct PolicyRows {
    AttentionPolicy* policy;
    int64_t first_row;
    int64_t num_rows;
  };

  DecodeStep(Device& device, Stream& stream, Transformer& model, Sampler& sampler,
             WindowLayers* windows, int32_t max_batch);

  absl::Status Begin(std::span<const StepRow> rows);
  absl::Status EnqueueForward();
  // KV and index bytes of the step that the policy's row `row` read, in all layers.
  AttentionPolicy::BytesRead BytesOf(const PolicyRows& rows, size_t row) const;
  absl::Status Attend(uint32_t layer, const MatrixView& queries, const MatrixView& keys,
                      const MatrixView& values, const MatrixView& out);

  Stream& stream_;
  Transformer& model_;
  Sampler& sampler_;
  WindowLayers* const windows_;  // null: all layers are indexed
  const LayerMap map_;
  enum Input : size_t { kTokenIds, kPositions };
  StagedArrays inputs_;  // int32 [max_batch] each
  StepGraphs forward_graphs_, sampling_graphs_;
  std::vector<uint64_t> shape_;  // of the forward pass
  uint64_t num_steps_ = 0;
  int64_t host_ns_ = 0;
  int64_t mask_ns_ = 0;
  std::vector<SequenceKv*> sequences_;
  std::vector<SamplingState*> sampling_;
  std::vector<int32_t> targets_;  // -1: the row draws
  std::vector<int32_t> fed_;      // the rows' tokens
  std::vector<PolicyRows> policies_;
  std::vector<StepResult> results_;
};

}  // namespace retroinfer
