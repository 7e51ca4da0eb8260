#include "gpu_worker/ops/model/cuda/linear_context.h"

#include <utility>

#include "absl/memory/memory.h"
#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/model/cuda/grouped_launch.h"
#include "gpu_worker/ops/model/cuda/skinny_gemm.h"
#include "gpu_worker/ops/model/cuda/skinny_gemm_int4.h"
#include "gpu_worker/ops/model/cuda/some_rows_gemm.h"

namespace retroinfer::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kPreparedWorkspaces = 2;  // the compute stream's and the background stream's

}  // namespace

absl::StatusOr<std::unique_ptr<LinearContext>> LinearContext::Create(CudaDevice& device) {
  ASSIGN_OR_RETURN(const CublasLt* const lt, CublasLt::Load());
  auto context = absl::WrapUnique(new LinearContext(device, *lt));
  RETURN_IF_ERROR(CublasStatus(*lt, lt->create(&context->handle_), "starting cuBLASLt"));
  RETURN_IF_CUDA_ERROR(PrepareSkinnyGemm());
  RETURN_IF_CUDA_ERROR(PrepareSkinnyGemmInt4());
  PrepareSomeRowsGemm();
  RETURN_IF_CUDA_ERROR(PrepareGrouped());
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

absl::Status LinearContext::PrepareTile(size_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (bytes <= tile_bytes_) return absl::OkStatus();
  free_tile_ = DeviceBuffer();
  ASSIGN_OR_RETURN(free_tile_, device_.Allocate(bytes, MemoryPurpose::kWeights));
  tile_bytes_ = bytes;
  return absl::OkStatus();
}

absl::StatusOr<DeviceSpan<std::byte>> LinearContext::Tile(const CudaStream& stream) {
  absl::MutexLock lock(&mutex_);
  DeviceBuffer& tile = tiles_[stream.get()];
  if (tile.size_bytes() < tile_bytes_ && free_tile_.size_bytes() == tile_bytes_) {
    tile = std::move(free_tile_);
    free_tile_ = DeviceBuffer();
  } else if (tile.size_bytes() < tile_bytes_) {
    ASSIGN_OR_RETURN(tile, device_.Allocate(tile_bytes_, MemoryPurpose::kWeights));
  }
  return tile.bytes();
}

absl::StatusOr<const cublasLtMatmulAlgo_t*> LinearContext::Algorithm(const ProductShape& shape,
                                                                     const float* scales) {
  absl::MutexLock lock(&mutex_);
  auto found = algorithms_.find(shape);
  if (found == algorithms_.end()) {
    ASSIGN_OR_RETURN(std::optional<cublasLtMatmulAlgo_t> chosen,
                     ChooseAlgorithm(lt_, handle_, shape, scales, kWorkspaceBytes));
    found = algorithms_.emplace(shape, chosen).first;
  }
  return found->second.has_value() ? &*found->second : nullptr;
}

}  // namespace retroinfer::cuda
