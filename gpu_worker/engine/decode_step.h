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
#include "gpu_worker/engine/live_request.h"
#include "gpu_worker/engine/sampler.h"
#include "gpu_worker/model/transformer.h"

namespace retroinfer {

class DecodeStep {
 public:
  static absl::StatusOr<std::unique_ptr<DecodeStep>> Create(Device& device, Stream& stream,
                                                            Transformer& model, Sampler& sampler,
                                                            int32_t max_batch);

  // Feeds next_token of each request, which must be in state kDecoding, and samples the one after
  // it. `batch` is reordered: requests of one policy are neighbours. The result's i-th token
  // belongs to batch[i] and is valid until the sampler's next call.
  absl::StatusOr<std::span<const OutputToken>> Run(std::span<LiveRequest*> batch);

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
  absl::Status Attend(uint32_t layer, const MatrixView& queries, const MatrixView& keys,
                      const MatrixView& values, const MatrixView& out);

  Device& device_;
  Stream& stream_;
  Transformer& model_;
  Sampler& sampler_;
  DeviceBuffer token_ids_;  // [max_batch]
  DeviceBuffer positions_;  // [max_batch]
  std::vector<int32_t> host_tokens_;
  std::vector<int32_t> host_positions_;
  std::vector<SequenceKv*> sequences_;
  std::vector<SamplingState*> sampling_;
  std::vector<PolicyRows> policies_;
};

}  // namespace retroinfer
