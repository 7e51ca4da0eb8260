#include "gpu_worker/ops/model/cuda/cublas_lt.h"

#include <dlfcn.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer::cuda {
namespace {

absl::Status Unavailable(const std::string& name) {
  const char* const reason = ::dlerror();
  return absl::UnavailableError(absl::StrCat(
      "cuBLASLt: ", name, ": ", reason == nullptr ? "not found" : reason, "; install the CUDA ",
      CUBLAS_VER_MAJOR, " libraries or name their folder in LD_LIBRARY_PATH"));
}

template <typename Function>
absl::Status Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function == nullptr ? Unavailable(name) : absl::OkStatus();
}

absl::StatusOr<CublasLt> Open() {
  const std::string name = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  // Where the toolkit was when this was built.
  if (library == nullptr) {
    library = ::dlopen(absl::StrCat(RETROINFER_CUDA_LIBRARY_DIR, "/", name).c_str(),
                       RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) return Unavailable(name);
  CublasLt lt;
  RETURN_IF_ERROR(Find(library, "cublasLtCreate", lt.create));
  RETURN_IF_ERROR(Find(library, "cublasLtDestroy", lt.destroy));
  RETURN_IF_ERROR(Find(library, "cublasLtGetStatusString", lt.get_status_string));
  RETURN_IF_ERROR(Find(library, "cublasLtMatmul", lt.matmul));
  RETURN_IF_ERROR(Find(library, "cublasLtMatmulAlgoGetHeuristic", lt.matmul_algo_get_heuristic));
  RETURN_IF_ERROR(Find(library, "cublasLtMatmulDescInit_internal", lt.matmul_desc_init));
  RETURN_IF_ERROR(Find(library, "cublasLtMatmulDescSetAttribute", lt.matmul_desc_set_attribute));
  RETURN_IF_ERROR(
      Find(library, "cublasLtMatmulPreferenceInit_internal", lt.matmul_preference_init));
  RETURN_IF_ERROR(
      Find(library, "cublasLtMatmulPreferenceSetAttribute", lt.matmul_preference_set_attribute));
  RETURN_IF_ERROR(Find(library, "cublasLtMatrixLayoutInit_internal", lt.matrix_layout_init));
  return lt;
}

}  // namespace

absl::StatusOr<const CublasLt*> CublasLt::Load() {
  static const auto* const lt = new absl::StatusOr<CublasLt>(Open());
  RETURN_IF_ERROR(lt->status());
  return &**lt;
}

}  // namespace retroinfer::cuda
