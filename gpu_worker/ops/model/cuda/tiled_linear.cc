#include "gpu_worker/ops/model/cuda/tiled_linear.h"

#include <algorithm>

#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/model/cuda/fp8_tiles.h"

namespace retroinfer::cuda {

absl::Status TiledLinear::PrepareTile(LinearContext& context) const {
  if (in_features() % kWeightColumnAlignment != 0) return absl::OkStatus();
  return context.PrepareTile(UnpackedTileBytes(in_features(), out_features()));
}

absl::StatusOr<bool> TiledLinear::Many(LinearContext& context, CudaStream& stream,
                                       const LinearArgs& args) const {
  const int64_t step = FeaturesOfTile(out_features());
  for (const int64_t features : {step, (out_features() - 1) % step + 1}) {
    ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t* algorithm,
                     context.Algorithm(ShapeOf(args, features)));
    if (algorithm == nullptr) return false;
  }
  ASSIGN_OR_RETURN(const DeviceSpan<std::byte> tile, context.Tile(stream));
  for (int64_t first = 0; first < out_features(); first += step) {
    const int64_t count = std::min(step, out_features() - first);
    RETURN_IF_ERROR(
        CudaStatus(Unpack(first, count, tile.device_data(), stream.get()), "unpacking a weight"));
    const ProductShape shape = ShapeOf(args, count);
    ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t* algorithm, context.Algorithm(shape));
    RETURN_IF_ERROR(
        RunCublas(context, shape, *algorithm, {first, count, tile.device_data()}, stream, args));
  }
  return true;
}

}  // namespace retroinfer::cuda
