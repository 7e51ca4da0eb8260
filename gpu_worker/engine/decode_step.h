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
#include "gpu_worker/engine/live_request.h"
#include "gpu_worker/engine/sampler.h"
#include "gpu_worker/engine/step_graphs.h"
#include "gpu_worker/model/transformer.h"

namespace retroinfer {

class DecodeStep {
 public:
  // Sums since start.
  struct Counters {
    uint64_t steps = 0;
    int64_t host_ns = 0;  // of the calling thread, waiting for the device left out
    StepGraphs::Counters graphs;
  };

  static absl::StatusOr<std::unique_ptr<DecodeStep>> Create(Device& device, Stream& stream,
                                                            Transformer& model, Sampler& sampler,
                                                            int32_t max_batch);
  static MemoryNeed MemoryOf(int32_t max_batch);

  // Feeds next_token of each request, which must be in state kDecoding, and samples the one after
  // it. A request with forced tokens may be there several times: its next tokens are fed and
  // measured in as many rows. `batch` is reordered: requests of one policy, and rows of one
  // request, are neighbours. The result's i-th token belongs to batch[i] and is valid until the
  // sampler's next call.
  //
  // Everything that the device does in a step is one recorded piece of work where the device can
  // record; nothing is allocated or waited for until the results are on the host.
  absl::StatusOr<std::span<const OutputToken>> Run(std::span<LiveRequest*> batch);

  Counters counters() const;

 private:
  // Rows [first_row, first_row + num_rows) use `policy`.
  struct PolicyRows {
    AttentionPolicy* policy;
    int64_t first_row;
    int64_t num_rows;
  };

  DecodeStep(Device& device, Stream& stream, Transformer& model, Sampler& sampler,
             int32_t max_batch);

  absl::Status Begin(std::span<LiveRequest*> batch);
  absl::Status Enqueue();
  absl::Status Attend(uint32_t layer, const MatrixView& queries, const MatrixView& keys,
                      const MatrixView& values, const MatrixView& out);

  Stream& stream_;
  Transformer& model_;
  Sampler& sampler_;
  enum Input : size_t { kTokenIds, kPositions };
  StagedArrays inputs_;  // int32 [max_batch] each
  StepGraphs graphs_;
  std::vector<uint64_t> shape_;
  uint64_t num_steps_ = 0;
  int64_t host_ns_ = 0;
  std::vector<SequenceKv*> sequences_;
  std::vector<SamplingState*> sampling_;
  std::vector<int32_t> forced_;
  std::vector<PolicyRows> policies_;
};

}  // namespace retroinfer
