#include "gpu_worker/ops/model/cuda/cublas_product.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"

namespace retroinfer::cuda {
namespace {

// Algorithms are chosen for this many rows and used for all.
constexpr int64_t kTypicalRows = 2048;

// cuBLASLt counts in columns: a row-major matrix is the transpose of a column-major one. So it
// computes out^T = weight * in^T, with the weight transposed.
class Product {
 public:
  // For `rows` rows. The bias pointer may be null while an algorithm is chosen.
  static absl::StatusOr<Product> Create(const CublasLt& lt, const ProductShape& shape, int64_t rows,
                                        const ProductOperands& operands) {
    Product product;
    RETURN_IF_ERROR(CublasStatus(lt,
                                 lt.matmul_desc_init(&product.operation, sizeof(product.operation),
                                                     CUBLAS_COMPUTE_32F, CUDA_R_32F),
                                 "describing a product"));
    const cublasOperation_t transpose = CUBLAS_OP_T;
    RETURN_IF_ERROR(product.Set(lt, CUBLASLT_MATMUL_DESC_TRANSA, transpose));
    const cudaDataType out_type = shape.out_dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
    if (shape.has_bias) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      RETURN_IF_ERROR(product.Set(lt, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue));
      RETURN_IF_ERROR(product.Set(lt, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, out_type));
      RETURN_IF_ERROR(product.Set(lt, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias));
    }
    if (shape.fp8) RETURN_IF_ERROR(product.SetScales(lt, operands));
    const auto in = static_cast<uint64_t>(shape.in_features);
    const auto out = static_cast<uint64_t>(shape.out_features);
    const auto describe = [&lt](cublasLtMatrixLayoutOpaque_t& matrix, cudaDataType type,
                                uint64_t height, uint64_t width, int64_t stride) {
      return CublasStatus(
          lt, lt.matrix_layout_init(&matrix, sizeof(matrix), type, height, width, stride),
          "describing a matrix");
    };
    const auto count = static_cast<uint64_t>(rows);
    const cudaDataType in_type = shape.fp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    RETURN_IF_ERROR(describe(product.weight, in_type, in, out, shape.in_features));
    RETURN_IF_ERROR(describe(product.in, in_type, in, count, shape.in_stride));
    RETURN_IF_ERROR(describe(product.out, out_type, out, count, shape.out_stride));
    return product;
  }

  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t weight;
  cublasLtMatrixLayoutOpaque_t in;
  cublasLtMatrixLayoutOpaque_t out;

 private:
  absl::Status SetScales(const CublasLt& lt, const ProductOperands& operands) {
    const cublasLtMatmulMatrixScale_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    RETURN_IF_ERROR(Set(lt, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode));
    RETURN_IF_ERROR(Set(lt, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode));
    RETURN_IF_ERROR(Set(lt, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.weight_scales));
    return Set(lt, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.in_scales);
  }

  template <typename T>
  absl::Status Set(const CublasLt& lt, cublasLtMatmulDescAttributes_t attribute, const T& value) {
    return CublasStatus(lt,
                        lt.matmul_desc_set_attribute(&operation, attribute, &value, sizeof(value)),
                        "describing a product");
  }
};

}  // namespace

absl::Status CublasStatus(const CublasLt& lt, cublasStatus_t code, std::string_view what) {
  if (code == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message = absl::StrCat(AbslView(what), " failed: ", lt.get_status_string(code));
  return code == CUBLAS_STATUS_ALLOC_FAILED ? absl::ResourceExhaustedError(message)
                                            : absl::InternalError(message);
}

absl::StatusOr<std::optional<cublasLtMatmulAlgo_t>> ChooseAlgorithm(const CublasLt& lt,
                                                                    cublasLtHandle_t handle,
                                                                    const ProductShape& shape,
                                                                    const float* scales,
                                                                    size_t workspace_bytes) {
  ASSIGN_OR_RETURN(
      Product product,
      Product::Create(lt, shape, kTypicalRows, {.weight_scales = scales, .in_scales = scales}));
  cublasLtMatmulPreferenceOpaque_t preference;
  RETURN_IF_ERROR(CublasStatus(lt, lt.matmul_preference_init(&preference, sizeof(preference)),
                               "preparing a choice of algorithm"));
  const uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
  // Of activations at any row.
  const uint32_t alignment = 16;
  const auto set = [&lt, &preference](cublasLtMatmulPreferenceAttributes_t attribute,
                                      const auto& value) {
    return CublasStatus(
        lt, lt.matmul_preference_set_attribute(&preference, attribute, &value, sizeof(value)),
        "preparing a choice of algorithm");
  };
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes));
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, no_reduction));
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment));
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment));
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment));
  cublasLtMatmulHeuristicResult_t found;
  int num_found = 0;
  const cublasStatus_t code =
      lt.matmul_algo_get_heuristic(handle, &product.operation, &product.weight, &product.in,
                                   &product.out, &product.out, &preference, 1, &found, &num_found);
  if (code == CUBLAS_STATUS_NOT_SUPPORTED || (code == CUBLAS_STATUS_SUCCESS && num_found == 0)) {
    return std::nullopt;
  }
  RETURN_IF_ERROR(CublasStatus(lt, code, "choosing an algorithm for a matrix product"));
  return found.algo;
}

absl::Status EnqueueProduct(const CublasLt& lt, cublasLtHandle_t handle, const ProductShape& shape,
                            const cublasLtMatmulAlgo_t& algorithm, int64_t rows,
                            const ProductOperands& operands, DeviceSpan<std::byte> workspace,
                            cudaStream_t stream) {
  ASSIGN_OR_RETURN(Product product, Product::Create(lt, shape, rows, operands));
  const float alpha = 1.0f;
  const float beta = shape.accumulate ? 1.0f : 0.0f;
  return CublasStatus(
      lt,
      lt.matmul(handle, &product.operation, &alpha, operands.weight, &product.weight, operands.in,
                &product.in, &beta, operands.out, &product.out, operands.out, &product.out,
                &algorithm, workspace.device_data(), workspace.size(), stream),
      "enqueueing a matrix product");
}

}  // namespace retroinfer::cuda
