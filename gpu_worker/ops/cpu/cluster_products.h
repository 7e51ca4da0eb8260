// Inner products of a block of keys with all centroids of a segment, through oneDNN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "common/kv/dtype.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace retroinfer::cpu {

// Threads: one. Multiplies on the calling thread alone: while an object lives, this thread's OpenMP
//          regions have one thread.
class ClusterProducts {
 public:
  // Whether the processor multiplies bf16 faster than f32.
  static bool PrefersBf16();

  // For keys [num_keys, head_dim] and centroids [num_clusters, head_dim] of `dtype` (f32 or bf16).
  ClusterProducts(DType dtype, int64_t num_keys, int64_t num_clusters, int64_t head_dim);
  ~ClusterProducts();
  ClusterProducts(const ClusterProducts&) = delete;
  ClusterProducts& operator=(const ClusterProducts&) = delete;

  // products[i][j] = keys[i] . centroids[j], f32 sums; all contiguous.
  void Compute(const std::byte* keys, const std::byte* centroids, float* products);

 private:
  const int num_threads_before_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul matmul_;
  dnnl::memory keys_;
  dnnl::memory centroids_;
  dnnl::memory products_;
};

}  // namespace retroinfer::cpu
