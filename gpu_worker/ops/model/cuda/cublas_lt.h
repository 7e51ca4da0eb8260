// cuBLASLt, opened when it is needed.
//
// Not linked: the library has 92 KiB of thread-local storage, which the C library takes out of
// every thread's stack if it is there at start. The HTTP library of the metrics makes threads of
// 100 KiB, which then cannot start. Opened later, it gives storage to those threads alone that use
// it; and a worker starts where there is neither a GPU nor the library.
#pragma once

#include <cublasLt.h>

#include "absl/status/statusor.h"

namespace retroinfer::cuda {

// The functions in use, under their names without cublasLt. The three of opaque structures are
// those that the inline functions of the library's header call with the structure's size.
struct CublasLt {
  // Opens the library at the first call. UNAVAILABLE if it is not here or is another version.
  // Threads: any. The result lives for ever.
  static absl::StatusOr<const CublasLt*> Load();

  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetStatusString) get_status_string = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) matmul_algo_get_heuristic = nullptr;
  decltype(&cublasLtMatmulDescInit_internal) matmul_desc_init = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) matmul_desc_set_attribute = nullptr;
  decltype(&cublasLtMatmulPreferenceInit_internal) matmul_preference_init = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) matmul_preference_set_attribute = nullptr;
  decltype(&cublasLtMatrixLayoutInit_internal) matrix_layout_init = nullptr;
};

}  // namespace retroinfer::cuda
