// A matrix of weights as the CPU backend multiplies it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gpu_worker/device/device.h"
#include "gpu_worker/ops/cpu/matmul_kernel.h"
#include "gpu_worker/ops/model/linear.h"

namespace retroinfer::cpu {

// Up to 256 output features of a part.
struct LinearShard {
  int64_t first_col = 0;
  int64_t cols = 0;
  dnnl::memory weights = {};
  std::shared_ptr<const MatmulKernel> decode = {};
  std::shared_ptr<const MatmulKernel> prefill = {};

  const MatmulKernel& Kernel(bool few_rows) const { return few_rows ? *decode : *prefill; }
};

// Threads: immutable after preparation.
class CpuLinear final : public PreparedLinear {
 public:
  int64_t in_features() const override { return in_features_; }
  int64_t out_features() const override { return out_features_; }
  int64_t num_parts() const override { return num_parts_; }
  // The shards of a part, which are as those of each other part.
  std::span<const LinearShard> PartOf(int64_t part) const {
    const size_t each = shards_.size() / static_cast<size_t>(num_parts_);
    return std::span(shards_).subspan(static_cast<size_t>(part) * each, each);
  }

  int64_t in_features_ = 0;
  int64_t out_features_ = 0;
  int64_t num_parts_ = 1;
  DType dtype_ = DType::kF32;  // of the products
  std::vector<float> bias_;    // [out_features] or empty
  DeviceBuffer packed_;        // of all shards
  std::vector<LinearShard> shards_;
};

}  // namespace retroinfer::cpu
