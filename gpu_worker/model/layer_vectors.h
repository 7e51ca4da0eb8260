// Vectors of f32, one of each layer, in device memory: logits without a value
// (AttentionForm::sinks), and what is taken from keys (ChannelBalance::key_offsets).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/model/checkpoint.h"
#include "gpu_worker/model/model_config.h"

namespace retroinfer {

// Threads: immutable.
// Owns:    the memory.
class LayerVectors {
 public:
  // `numbers`: those of all layers, one behind the other, as many of each; empty: there are none,
  // and nothing is allocated.
  //
  // REQUIRES: num_layers > 0 divides their number.
  static absl::StatusOr<LayerVectors> Upload(Device& device, std::span<const float> numbers,
                                             uint32_t num_layers);

  LayerVectors() = default;
  // Empty if there are none.
  DeviceSpan<const float> Of(uint32_t layer) const;

 private:
  DeviceBuffer buffer_;
  size_t size_ = 0;  // of a vector
};

// The sinks of all layers, [layers][query heads]; none if the model has none.
//
// REQUIRES: CheckTensors(config, checkpoint) has passed.
std::vector<float> SinksOf(const ModelConfig& config, const Checkpoint& checkpoint);

}  // namespace retroinfer
