// A matrix of a checkpoint as numbers, a row at a time, read where its file is mapped: whatever its
// form. For what looks at weights without a device.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "gpu_worker/model/model_config.h"
#include "gpu_worker/model/model_table.h"
#include "gpu_worker/model/stored_scales.h"

namespace retroinfer {

// Threads: immutable.
class StoredMatrix {
 public:
  // `config`, `checkpoint` and `spec` must outlive it.
  // REQUIRES: CheckTensors(config, checkpoint) has passed.
  StoredMatrix(const ModelConfig& config, const Checkpoint& checkpoint, const TensorSpec& spec);

  int64_t rows() const { return spec_.shape[0]; }
  // By input feature.
  std::vector<float> Row(int64_t index) const;

 private:
  // Of a row of the stored tensors.
  std::vector<float> Codes(int64_t row) const;
  std::vector<float> Zeros(int64_t row) const;
  float ScaleAt(int64_t row, int64_t group) const;

  const TensorSpec& spec_;
  const std::optional<CodedTensors> codes_;
  const HostTensor* tensor_ = nullptr;
  const StoredForm* form_ = nullptr;  // of codes, as all below
  int64_t stored_rows_ = 0;           // of all parts of the stored tensor
  int64_t num_groups_ = 1;            // of a row
  std::vector<float> scales_;
  std::span<const std::byte> zeros_;
  std::vector<int32_t> groups_;  // of each column
};

}  // namespace retroinfer
