// One size of matrix product as a oneDNN primitive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/dtype.h"
#include "dnnl.hpp"

namespace retroinfer::cpu {

// out[rows, n] = in[rows, k] * weights[k, n], on the calling thread alone: the threads of a stream
// share a product by its blocks, so that a block's result does not depend on their number.
//
// Threads: any; each has its own working memory, allocated when it first runs the kernel. Run()
//          itself allocates nothing; oneDNN's own bookkeeping of a call (a small hash map of
//          arguments) does.
class MatmulKernel {
 public:
  // Returns the kernel for this size, made at the first call and kept for the process. `dtype` (f32
  // or bf16) is that of `in` and the weights; sums and `out` are f32.
  static absl::StatusOr<std::shared_ptr<const MatmulKernel>> Get(int64_t rows, int64_t n, int64_t k,
                                                                 DType dtype);
  // A kernel that takes the packed weights of `like`, for another number of rows; `like` itself if
  // oneDNN has none.
  static std::shared_ptr<const MatmulKernel> GetLike(
      const std::shared_ptr<const MatmulKernel>& like, int64_t rows);

  int64_t rows() const { return rows_; }
  size_t packed_bytes() const { return primitive_desc_.weights_desc().get_size(); }

  // Packs weights [n, k], rows of `row_stride` elements, into `packed` (packed_bytes(), aligned to
  // 64), rounding f32 to the kernel's type. Returns the handle that Run() takes.
  //
  // REQUIRES: source_dtype is f32 or the kernel's.
  absl::StatusOr<dnnl::memory> Pack(DType source_dtype, const std::byte* weights,
                                    int64_t row_stride, std::byte* packed) const;

  // `in` is dense. Returns the calling thread's f32 [rows, n], valid until its next Run().
  const float* Run(const std::byte* in, const dnnl::memory& weights) const;

 private:
  struct ThreadState;

  MatmulKernel(int64_t rows, int64_t n, int64_t k, DType dtype,
               dnnl::matmul::primitive_desc primitive_desc);
  ThreadState& StateOfThisThread() const;

  const int64_t rows_;
  const int64_t n_;
  const int64_t k_;
  const DType dtype_;
  const size_t id_;  // index of the kernel in each thread's table of states
  const dnnl::matmul::primitive_desc primitive_desc_;
  const dnnl::matmul primitive_;
};

}  // namespace retroinfer::cpu
