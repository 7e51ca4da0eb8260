#include "gpu_worker/ops/model/cuda/fp8_product_linear.h"

#include <algorithm>

#include "absl/memory/memory.h"
#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/model/cuda/fp8_activations.h"
#include "gpu_worker/ops/model/cuda/fp8_tiles.h"

namespace retroinfer::cuda {
namespace {

constexpr int64_t kFeatureStep = 16;  // as cuBLASLt wants them

// One for each output feature.
WeightScales ScalesOfRows(const LinearWeights& weights) {
  WeightScales scales;
  if (!weights.weight.form.is_code()) return scales;
  for (int64_t row = 0; row < weights.weight.rows; ++row) {
    scales.values.push_back(weights.scales.At(row, 0, weights.weight.cols));
  }
  return scales;
}

}  // namespace

bool Fp8ProductLinear::Takes(const LinearWeights& weights) {
  const WeightView& weight = weights.weight;
  return weights.keep == KeptWeights::kFp8Products &&
         (!weight.form.is_code() || weights.scales.cols_each == 0) &&
         weight.cols % kWeightColumnAlignment == 0 && weight.rows % kFeatureStep == 0;
}

absl::StatusOr<std::unique_ptr<CudaLinear>> Fp8ProductLinear::Create(LinearContext& context,
                                                                     CudaStream& stream,
                                                                     const LinearWeights& weights) {
  auto linear = absl::WrapUnique(new Fp8ProductLinear(weights.weight));
  RETURN_IF_ERROR(linear->Pack(context, stream, weights, ScalesOfRows(weights)));
  return linear;
}

absl::StatusOr<bool> Fp8ProductLinear::Many(LinearContext& context, CudaStream& stream,
                                            const LinearArgs& args) const {
  ASSIGN_OR_RETURN(const bool done, MultiplyCodes(context, stream, args));
  return done ? true : Fp8Linear::Many(context, stream, args);
}

absl::StatusOr<bool> Fp8ProductLinear::MultiplyCodes(LinearContext& context, CudaStream& stream,
                                                     const LinearArgs& args) const {
  const Fp8Weight packed = weight();
  ProductShape shape = ShapeOf(args, out_features());
  shape.in_features = shape.in_stride = packed.padded_cols;
  shape.fp8 = true;
  ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t* algorithm, context.Algorithm(shape, packed.scales));
  if (algorithm == nullptr) return false;
  ASSIGN_OR_RETURN(const DeviceSpan<std::byte> memory, context.Tile(stream));
  ASSIGN_OR_RETURN(const DeviceSpan<std::byte> workspace, context.Workspace(stream));
  // Scales come first, in a place that leaves the codes aligned.
  const int64_t most_rows = Fp8ProductRows(memory.size(), packed.padded_cols);
  if (most_rows == 0) return false;
  for (int64_t first = 0; first < args.in.rows; first += most_rows) {
    const int64_t rows = std::min(most_rows, args.in.rows - first);
    const Fp8Activations in = {
        .codes = reinterpret_cast<uint8_t*>(memory.device_data()) + Fp8ScaleBytes(most_rows),
        .scales = reinterpret_cast<float*>(memory.device_data()),
        .rows = rows,
        .cols = in_features(),
        .padded_cols = packed.padded_cols};
    const std::byte* const source = args.in.data + first * args.in.row_stride * 2;
    RETURN_IF_ERROR(
        CudaStatus(LaunchQuantizeActivations(source, args.in.row_stride, in, stream.get()),
                   "rounding activations"));
    const auto out_bytes = static_cast<int64_t>(DTypeBytes(args.out.dtype));
    RETURN_IF_ERROR(EnqueueProduct(context.lt(), context.handle(), shape, *algorithm, rows,
                                   {.weight = packed.codes,
                                    .in = in.codes,
                                    .out = args.out.data + first * args.out.row_stride * out_bytes,
                                    .bias = BiasOf(shape, 0),
                                    .weight_scales = packed.scales,
                                    .in_scales = in.scales},
                                   workspace, stream.get()));
  }
  return true;
}

}  // namespace retroinfer::cuda
