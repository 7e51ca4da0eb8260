#include "gpu_worker/ops/model/cuda/linear.h"

#include <string>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/model/cuda/convert_weight.h"
#include "gpu_worker/ops/model/cuda/skinny_gemm.h"
#include "gpu_worker/ops/model/linear_check.h"

namespace retroinfer::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kPreparedWorkspaces = 2;  // the compute stream's and the background stream's
// Algorithms are chosen for this many rows and used for all.
constexpr int64_t kTypicalRows = 2048;

absl::Status CublasStatus(const CublasLt& lt, cublasStatus_t code, std::string_view what) {
  if (code == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message = absl::StrCat(AbslView(what), " failed: ", lt.get_status_string(code));
  return code == CUBLAS_STATUS_ALLOC_FAILED ? absl::ResourceExhaustedError(message)
                                            : absl::InternalError(message);
}

class CudaLinear final : public PreparedLinear {
 public:
  int64_t in_features() const override { return in_features_; }
  int64_t out_features() const override { return out_features_; }

  int64_t in_features_ = 0;
  int64_t out_features_ = 0;
  int64_t padded_in_ = 0;
  DeviceBuffer weight_;    // [out_features][padded_in] bf16
  DeviceBuffer bias_;      // [out_features] bf16 or nothing
  DeviceBuffer bias_f32_;  // the same values
};

// cuBLASLt counts in columns: a row-major matrix is the transpose of a column-major one. So it
// computes out^T = weight * in^T, with the weight transposed.
class Product {
 public:
  // For `rows` rows. The bias pointer may be null while an algorithm is chosen.
  static absl::StatusOr<Product> Create(const CublasLt& lt, const LinearContext::Shape& shape,
                                        int64_t rows, const void* bias) {
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
      RETURN_IF_ERROR(product.Set(lt, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias));
    }
    const auto in = static_cast<uint64_t>(shape.in_features);
    const auto out = static_cast<uint64_t>(shape.out_features);
    const auto describe = [&lt](cublasLtMatrixLayoutOpaque_t& matrix, cudaDataType type,
                                uint64_t height, uint64_t width, int64_t stride) {
      return CublasStatus(
          lt, lt.matrix_layout_init(&matrix, sizeof(matrix), type, height, width, stride),
          "describing a matrix");
    };
    const auto count = static_cast<uint64_t>(rows);
    RETURN_IF_ERROR(describe(product.weight, CUDA_R_16BF, in, out, shape.in_features));
    RETURN_IF_ERROR(describe(product.in, CUDA_R_16BF, in, count, shape.in_stride));
    RETURN_IF_ERROR(describe(product.out, out_type, out, count, shape.out_stride));
    return product;
  }

  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t weight;
  cublasLtMatrixLayoutOpaque_t in;
  cublasLtMatrixLayoutOpaque_t out;

 private:
  template <typename T>
  absl::Status Set(const CublasLt& lt, cublasLtMatmulDescAttributes_t attribute, const T& value) {
    return CublasStatus(lt,
                        lt.matmul_desc_set_attribute(&operation, attribute, &value, sizeof(value)),
                        "describing a product");
  }
};

// The heuristics' first choice that does not split the inner dimension.
absl::StatusOr<std::optional<cublasLtMatmulAlgo_t>> ChooseAlgorithm(
    const CublasLt& lt, cublasLtHandle_t handle, const LinearContext::Shape& shape) {
  ASSIGN_OR_RETURN(Product product, Product::Create(lt, shape, kTypicalRows, nullptr));
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
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes));
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

absl::Status RunSkinny(const CudaLinear& linear, CudaStream& stream, const LinearArgs& args) {
  const SkinnyGemmLaunch launch = {
      .weight = linear.weight_.bytes().device_data(),
      .out_features = linear.out_features_,
      .in_features = linear.in_features_,
      .padded_in = linear.padded_in_,
      .bias = linear.bias_f32_.as<const float>().device_data(),
      .in = args.in.data,
      .in_stride = args.in.row_stride,
      .rows = args.in.rows,
      .out = args.out.data,
      .out_stride = args.out.row_stride,
      .out_is_f32 = args.out.dtype == DType::kF32,
      .accumulate = args.accumulate,
  };
  return CudaStatus(LaunchSkinnyGemm(launch, stream.get()), "launching linear");
}

absl::Status RunCublas(LinearContext& context, const LinearContext::Shape& shape,
                       const cublasLtMatmulAlgo_t& algorithm, const CudaLinear& linear,
                       CudaStream& stream, const LinearArgs& args) {
  const DeviceBuffer& bias = shape.out_dtype == DType::kF32 ? linear.bias_f32_ : linear.bias_;
  const CublasLt& lt = context.lt();
  ASSIGN_OR_RETURN(Product product,
                   Product::Create(lt, shape, args.in.rows, bias.bytes().device_data()));
  ASSIGN_OR_RETURN(const DeviceSpan<std::byte> workspace, context.Workspace(stream));
  const float alpha = 1.0f;
  const float beta = args.accumulate ? 1.0f : 0.0f;
  return CublasStatus(
      lt,
      lt.matmul(context.handle(), &product.operation, &alpha, linear.weight_.bytes().device_data(),
                &product.weight, args.in.data, &product.in, &beta, args.out.data, &product.out,
                args.out.data, &product.out, &algorithm, workspace.device_data(), workspace.size(),
                stream.get()),
      "enqueueing a matrix product");
}

}  // namespace

absl::StatusOr<std::unique_ptr<LinearContext>> LinearContext::Create(CudaDevice& device) {
  ASSIGN_OR_RETURN(const CublasLt* const lt, CublasLt::Load());
  auto context = absl::WrapUnique(new LinearContext(device, *lt));
  RETURN_IF_ERROR(CublasStatus(*lt, lt->create(&context->handle_), "starting cuBLASLt"));
  RETURN_IF_CUDA_ERROR(PrepareSkinnyGemm());
  absl::MutexLock lock(&context->mutex_);
  for (int i = 0; i < kPreparedWorkspaces; ++i) {
    ASSIGN_OR_RETURN(DeviceBuffer workspace,
                     device.Allocate(kWorkspaceBytes, MemoryPurpose::kActivations));
    context->free_workspaces_.push_back(std::move(workspace));
  }
  return context;
}

LinearContext::~LinearContext() {
  if (handle_ != nullptr) (void)lt_.destroy(handle_);
}

absl::StatusOr<DeviceSpan<std::byte>> LinearContext::Workspace(const CudaStream& stream) {
  absl::MutexLock lock(&mutex_);
  const auto found = workspaces_.find(stream.get());
  if (found != workspaces_.end()) return found->second.bytes();
  DeviceBuffer workspace;
  if (free_workspaces_.empty()) {
    ASSIGN_OR_RETURN(workspace, device_.Allocate(kWorkspaceBytes, MemoryPurpose::kActivations));
  } else {
    workspace = std::move(free_workspaces_.back());
    free_workspaces_.pop_back();
  }
  return workspaces_.emplace(stream.get(), std::move(workspace)).first->second.bytes();
}

absl::StatusOr<const cublasLtMatmulAlgo_t*> LinearContext::Algorithm(const Shape& shape) {
  absl::MutexLock lock(&mutex_);
  auto found = algorithms_.find(shape);
  if (found == algorithms_.end()) {
    ASSIGN_OR_RETURN(std::optional<cublasLtMatmulAlgo_t> chosen,
                     ChooseAlgorithm(lt_, handle_, shape));
    found = algorithms_.emplace(shape, chosen).first;
  }
  return found->second.has_value() ? &*found->second : nullptr;
}

absl::StatusOr<std::unique_ptr<PreparedLinear>> PrepareLinear(LinearContext& context,
                                                              const LinearWeights& weights) {
  RETURN_IF_ERROR(CheckLinearWeights(weights));
  const MatrixView weight = weights.weight.Numbers();
  auto linear = std::make_unique<CudaLinear>();
  linear->in_features_ = weight.cols;
  linear->out_features_ = weight.rows;
  linear->padded_in_ = DivideUp(weight.cols, kWeightColumnAlignment) * kWeightColumnAlignment;
  CudaDevice& device = context.device();
  const auto allocate = [&device](int64_t elements, DType dtype) {
    return device.Allocate(static_cast<size_t>(elements) * DTypeBytes(dtype),
                           MemoryPurpose::kWeights);
  };
  ASSIGN_OR_RETURN(linear->weight_, allocate(weight.rows * linear->padded_in_, DType::kBf16));
  ASSIGN_OR_RETURN(std::unique_ptr<CudaStream> stream, CudaStream::Create(StreamKind::kBackground));
  RETURN_IF_ERROR(CudaStatus(LaunchConvertWeight(weight, linear->weight_.bytes().device_data(),
                                                 linear->padded_in_, nullptr, stream->get()),
                             "copying a weight"));
  if (weights.bias.has_value()) {
    ASSIGN_OR_RETURN(linear->bias_, allocate(weight.rows, DType::kBf16));
    ASSIGN_OR_RETURN(linear->bias_f32_, allocate(weight.rows, DType::kF32));
    RETURN_IF_ERROR(
        CudaStatus(LaunchConvertWeight(weights.bias->Numbers(), linear->bias_.bytes().device_data(),
                                       weight.rows, linear->bias_f32_.as<float>().device_data(),
                                       stream->get()),
                   "copying a bias"));
  }
  RETURN_IF_ERROR(stream->Synchronize());
  return linear;
}

absl::Status Linear(LinearContext& context, CudaStream& stream, const LinearArgs& args) {
  RETURN_IF_ERROR(CheckLinear(args, DType::kBf16));
  RETURN_IF_ERROR(CheckArg(args.out.dtype != DType::kF16, "linear", "out must be bf16 or f32"));
  if (args.in.rows == 0) return absl::OkStatus();
  const auto& linear = static_cast<const CudaLinear&>(*args.linear);
  const bool aligned = HasAlignedRows(args.in) && HasAlignedRows(args.out);
  if (args.decode || !aligned) return RunSkinny(linear, stream, args);
  const LinearContext::Shape shape = {.in_features = linear.in_features_,
                                      .out_features = linear.out_features_,
                                      .in_stride = args.in.row_stride,
                                      .out_stride = args.out.row_stride,
                                      .out_dtype = args.out.dtype,
                                      .has_bias = linear.bias_.size_bytes() > 0,
                                      .accumulate = args.accumulate};
  ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t* algorithm, context.Algorithm(shape));
  if (algorithm == nullptr) return RunSkinny(linear, stream, args);
  return RunCublas(context, shape, *algorithm, linear, stream, args);
}

bool FusesGatedLinear(const GatedLinearArgs& args) {
  const auto& linear = static_cast<const CudaLinear&>(*args.linear);
  return args.decode && linear.bias_.size_bytes() == 0 && HasAlignedRows(args.in);
}

absl::Status GatedLinear(CudaStream& stream, const GatedLinearArgs& args) {
  if (args.in.rows == 0) return absl::OkStatus();
  const auto& linear = static_cast<const CudaLinear&>(*args.linear);
  const SkinnyGemmLaunch launch = {
      .weight = linear.weight_.bytes().device_data(),
      .out_features = linear.out_features_,
      .in_features = linear.in_features_,
      .padded_in = linear.padded_in_,
      .in = args.in.data,
      .in_stride = args.in.row_stride,
      .rows = args.in.rows,
      .out = args.out.data,
      .out_stride = args.out.row_stride,
      .gated = true,
  };
  return CudaStatus(LaunchSkinnyGemm(launch, stream.get()), "launching gated_linear");
}

}  // namespace retroinfer::cuda
