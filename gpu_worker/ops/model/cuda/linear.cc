#include "gpu_worker/ops/model/cuda/linear.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/model/cuda/convert_weight.h"
#include "gpu_worker/ops/model/cuda/fp8_activations.h"
#include "gpu_worker/ops/model/cuda/fp8_tiles.h"
#include "gpu_worker/ops/model/cuda/fp8_weight.h"
#include "gpu_worker/ops/model/cuda/skinny_gemm.h"
#include "gpu_worker/ops/model/linear_check.h"

namespace retroinfer::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kPreparedWorkspaces = 2;  // the compute stream's and the background stream's
constexpr int kHopper = 90;
constexpr int64_t kFp8ProductStep = 16;  // of features, as cuBLASLt wants them

class CudaLinear final : public PreparedLinear {
 public:
  int64_t in_features() const override { return in_features_; }
  int64_t out_features() const override { return out_features_; }

  int64_t in_features_ = 0;
  int64_t out_features_ = 0;
  int64_t padded_in_ = 0;
  DeviceBuffer weight_;  // [out_features][padded_in] bf16, or codes as fp8_weight.h says
  DeviceBuffer scales_;  // f32, of codes
  int64_t scale_cols_ = 0;
  int scale_shift_ = 0;
  DeviceBuffer bias_;      // [out_features] bf16 or nothing
  DeviceBuffer bias_f32_;  // the same values
  bool fp8_products_ = false;

  bool is_fp8() const { return scales_.size_bytes() > 0; }
  // Of cuBLASLt's epilogue, without those of the first features.
  const std::byte* BiasOf(const ProductShape& shape, size_t skipped) const {
    if (!shape.has_bias) return nullptr;
    const DeviceBuffer& biases = shape.out_dtype == DType::kF32 ? bias_f32_ : bias_;
    return biases.bytes().device_data() + skipped;
  }
  Fp8Weight fp8() const {
    return {.codes = weight_.as<uint8_t>().device_data(),
            .rows = out_features_,
            .cols = in_features_,
            .padded_cols = padded_in_,
            .scales = scales_.as<float>().device_data(),
            .scale_cols = scale_cols_,
            .scale_shift = scale_shift_};
  }
};

SkinnyGemmLaunch LaunchOf(const CudaLinear& linear, const MatrixView& in, const MatrixView& out) {
  return {.weight = linear.weight_.bytes().device_data(),
          .out_features = linear.out_features_,
          .in_features = linear.in_features_,
          .padded_in = linear.padded_in_,
          .scales = linear.is_fp8() ? linear.scales_.as<const float>().device_data() : nullptr,
          .scale_cols = linear.scale_cols_,
          .scale_shift = linear.scale_shift_,
          .in = in.data,
          .in_stride = in.row_stride,
          .rows = in.rows,
          .out = out.data,
          .out_stride = out.row_stride};
}

absl::Status RunSkinny(const CudaLinear& linear, CudaStream& stream, const LinearArgs& args) {
  SkinnyGemmLaunch launch = LaunchOf(linear, args.in, args.out);
  launch.bias = linear.bias_f32_.as<const float>().device_data();
  launch.out_is_f32 = args.out.dtype == DType::kF32;
  launch.accumulate = args.accumulate;
  return CudaStatus(LaunchSkinnyGemm(launch, stream.get()), "launching linear");
}

// Output features that are multiplied together, and their rows of the weight in bf16.
struct Features {
  int64_t first = 0;
  int64_t count = 0;
  const void* weight = nullptr;
};

// `shape` is that of the features.
absl::Status RunCublas(LinearContext& context, const ProductShape& shape,
                       const cublasLtMatmulAlgo_t& algorithm, const CudaLinear& linear,
                       const Features& features, CudaStream& stream, const LinearArgs& args) {
  const size_t skipped = static_cast<size_t>(features.first) * DTypeBytes(shape.out_dtype);
  const ProductOperands operands = {.weight = features.weight,
                                    .in = args.in.data,
                                    .out = args.out.data + skipped,
                                    .bias = linear.BiasOf(shape, skipped)};
  ASSIGN_OR_RETURN(const DeviceSpan<std::byte> workspace, context.Workspace(stream));
  return EnqueueProduct(context.lt(), context.handle(), shape, algorithm, args.in.rows, operands,
                        workspace, stream.get());
}

ProductShape ShapeOf(const CudaLinear& linear, const LinearArgs& args, int64_t features) {
  return {.in_features = linear.in_features_,
          .out_features = features,
          .in_stride = args.in.row_stride,
          .out_stride = args.out.row_stride,
          .out_dtype = args.out.dtype,
          .has_bias = linear.bias_.size_bytes() > 0,
          .accumulate = args.accumulate};
}

// Rounds the activations and multiplies codes by codes, in the memory of a tile: as many rows at a
// time as that holds. False if cuBLASLt cannot: nothing is done then.
absl::StatusOr<bool> RunFp8Products(LinearContext& context, const CudaLinear& linear,
                                    CudaStream& stream, const LinearArgs& args) {
  ProductShape shape = ShapeOf(linear, args, linear.out_features_);
  shape.in_features = shape.in_stride = linear.padded_in_;
  shape.fp8 = true;
  const float* const weight_scales = linear.scales_.as<const float>().device_data();
  ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t* algorithm, context.Algorithm(shape, weight_scales));
  if (algorithm == nullptr) return false;
  ASSIGN_OR_RETURN(const DeviceSpan<std::byte> memory, context.Tile(stream));
  ASSIGN_OR_RETURN(const DeviceSpan<std::byte> workspace, context.Workspace(stream));
  // Scales come first, in a place that leaves the codes aligned.
  const int64_t most_rows = Fp8ProductRows(memory.size(), linear.padded_in_);
  if (most_rows == 0) return false;
  for (int64_t first = 0; first < args.in.rows; first += most_rows) {
    const int64_t rows = std::min(most_rows, args.in.rows - first);
    const Fp8Activations in = {
        .codes = reinterpret_cast<uint8_t*>(memory.device_data()) + Fp8ScaleBytes(most_rows),
        .scales = reinterpret_cast<float*>(memory.device_data()),
        .rows = rows,
        .cols = linear.in_features_,
        .padded_cols = linear.padded_in_};
    const std::byte* const source = args.in.data + first * args.in.row_stride * 2;
    RETURN_IF_ERROR(
        CudaStatus(LaunchQuantizeActivations(source, args.in.row_stride, in, stream.get()),
                   "rounding activations"));
    const auto out_bytes = static_cast<int64_t>(DTypeBytes(args.out.dtype));
    RETURN_IF_ERROR(EnqueueProduct(context.lt(), context.handle(), shape, *algorithm, rows,
                                   {.weight = linear.weight_.bytes().device_data(),
                                    .in = in.codes,
                                    .out = args.out.data + first * args.out.row_stride * out_bytes,
                                    .bias = linear.BiasOf(shape, 0),
                                    .weight_scales = weight_scales,
                                    .in_scales = in.scales},
                                   workspace, stream.get()));
  }
  return true;
}

// Unpacks and multiplies one tile after the other. False if cuBLASLt cannot: nothing is done then.
absl::StatusOr<bool> RunTiles(LinearContext& context, const CudaLinear& linear, CudaStream& stream,
                              const LinearArgs& args) {
  const int64_t step = FeaturesOfTile(linear.out_features_);
  for (const int64_t features : {step, (linear.out_features_ - 1) % step + 1}) {
    ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t* algorithm,
                     context.Algorithm(ShapeOf(linear, args, features)));
    if (algorithm == nullptr) return false;
  }
  ASSIGN_OR_RETURN(const DeviceSpan<std::byte> tile, context.Tile(stream));
  for (int64_t first = 0; first < linear.out_features_; first += step) {
    const int64_t count = std::min(step, linear.out_features_ - first);
    RETURN_IF_ERROR(CudaStatus(LaunchUnpackFp8(linear.fp8(), first, count, tile.device_data(),
                                               linear.in_features_, stream.get()),
                               "unpacking a weight"));
    const ProductShape shape = ShapeOf(linear, args, count);
    ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t* algorithm, context.Algorithm(shape));
    RETURN_IF_ERROR(RunCublas(context, shape, *algorithm, linear,
                              {first, count, tile.device_data()}, stream, args));
  }
  return true;
}

int Log2(int64_t power) {
  int log = 0;
  while (int64_t{1} << log < power) ++log;
  return log;
}

// The weight of a CudaLinear while it is prepared.
class WeightPreparation {
 public:
  WeightPreparation(LinearContext& context, const LinearWeights& weights, CudaStream& stream)
      : context_(context), weights_(weights), stream_(stream) {}

  absl::Status Numbers(CudaLinear& linear) {
    linear.padded_in_ =
        DivideUp(linear.in_features_, kWeightColumnAlignment) * kWeightColumnAlignment;
    ASSIGN_OR_RETURN(linear.weight_, Allocate(linear.out_features_ * linear.padded_in_ * 2));
    return CudaStatus(
        LaunchConvertWeight(weights_.weight.Numbers(), linear.weight_.bytes().device_data(),
                            linear.padded_in_, nullptr, stream_.get()),
        "copying a weight");
  }

  // From codes or numbers. Waits for the work enqueued.
  absl::Status Fp8(CudaLinear& linear) {
    const bool has_scales = weights_.weight.form.is_code();
    const WeightScales& scales = weights_.scales;
    linear.fp8_products_ = MultipliesCodes(linear);
    linear.padded_in_ = DivideUp(linear.in_features_, kFp8ColumnAlignment) * kFp8ColumnAlignment;
    linear.scale_cols_ = has_scales ? scales.num_cols(linear.in_features_) : 1;
    linear.scale_shift_ = has_scales && !linear.fp8_products_ ? Log2(scales.rows_each) : 0;
    const std::vector<float> values = ScaleValues(linear);
    const int64_t num_scales =
        has_scales ? static_cast<int64_t>(values.size()) : linear.out_features_;
    ASSIGN_OR_RETURN(linear.weight_, Allocate(linear.out_features_ * linear.padded_in_));
    ASSIGN_OR_RETURN(linear.scales_, Allocate(num_scales * 4));
    ASSIGN_OR_RETURN(const DeviceBuffer has_nan, Allocate(sizeof(int)));
    int found = 0;
    const auto found_bytes = std::as_writable_bytes(std::span(&found, 1));
    CudaDevice& device = context_.device();
    RETURN_IF_ERROR(device.Upload(stream_, found_bytes, has_nan.bytes()));
    int* const flag = has_nan.as<int>().device_data();
    if (has_scales) {
      RETURN_IF_ERROR(
          device.Upload(stream_, std::as_bytes(std::span(values)), linear.scales_.bytes()));
      const auto* const codes = reinterpret_cast<const uint8_t*>(weights_.weight.data);
      RETURN_IF_ERROR(
          CudaStatus(LaunchPackFp8(codes, linear.fp8(), flag, stream_.get()), "copying a weight"));
    } else {
      RETURN_IF_ERROR(CudaStatus(
          LaunchQuantizeFp8(weights_.weight.Numbers(), linear.fp8(), flag, stream_.get()),
          "rounding a weight"));
    }
    RETURN_IF_ERROR(device.Download(stream_, has_nan.bytes(), found_bytes));
    RETURN_IF_ERROR(stream_.Synchronize());
    if (found != 0) return NotFinite();
    if (linear.in_features_ % kWeightColumnAlignment != 0) return absl::OkStatus();
    return context_.PrepareTile(UnpackedTileBytes(linear.in_features_, linear.out_features_));
  }

  // Codes become bf16.
  absl::Status Unpacked(CudaLinear& linear) {
    CudaLinear packed;
    packed.in_features_ = linear.in_features_;
    packed.out_features_ = linear.out_features_;
    RETURN_IF_ERROR(Fp8(packed));
    linear.padded_in_ =
        DivideUp(linear.in_features_, kWeightColumnAlignment) * kWeightColumnAlignment;
    ASSIGN_OR_RETURN(linear.weight_, Allocate(linear.out_features_ * linear.padded_in_ * 2));
    RETURN_IF_ERROR(CudaStatus(
        LaunchUnpackFp8(packed.fp8(), 0, linear.out_features_, linear.weight_.bytes().device_data(),
                        linear.padded_in_, stream_.get()),
        "unpacking a weight"));
    return stream_.Synchronize();
  }

 private:
  // Whether products of many rows are to be of codes by codes.
  bool MultipliesCodes(const CudaLinear& linear) const {
    return weights_.keep == KeptWeights::kFp8Products &&
           (!weights_.weight.form.is_code() || weights_.scales.cols_each == 0) &&
           linear.in_features_ % kWeightColumnAlignment == 0 &&
           linear.out_features_ % kFp8ProductStep == 0;
  }

  // As they are given, or one for each output feature.
  std::vector<float> ScaleValues(const CudaLinear& linear) const {
    const WeightScales& scales = weights_.scales;
    if (!linear.fp8_products_ || !weights_.weight.form.is_code()) return scales.values;
    std::vector<float> values;
    for (int64_t row = 0; row < linear.out_features_; ++row) {
      values.push_back(scales.At(row, 0, linear.in_features_));
    }
    return values;
  }

  absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes) {
    return context_.device().Allocate(static_cast<size_t>(bytes), MemoryPurpose::kWeights);
  }

  LinearContext& context_;
  const LinearWeights& weights_;
  CudaStream& stream_;
};

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

absl::StatusOr<std::unique_ptr<PreparedLinear>> PrepareLinear(LinearContext& context,
                                                              const LinearWeights& weights) {
  RETURN_IF_ERROR(CheckLinearWeights(weights));
  const WeightView& weight = weights.weight;
  auto linear = std::make_unique<CudaLinear>();
  linear->in_features_ = weight.cols;
  linear->out_features_ = weight.rows;
  ASSIGN_OR_RETURN(std::unique_ptr<CudaStream> stream, CudaStream::Create(StreamKind::kBackground));
  WeightPreparation prepare(context, weights, *stream);
  if (weights.keep == KeptWeights::kFp8Products &&
      context.device().compute_capability() != kHopper) {
    return absl::InvalidArgumentError(
        absl::StrCat("activations in fp8 need a GPU of compute capability 9.0, this one has ",
                     context.device().compute_capability() / 10, ".",
                     context.device().compute_capability() % 10, "; use --activations-dtype bf16"));
  }
  const bool fp8 = RoundsNumbers(weights.keep) ||
                   (weights.keep == KeptWeights::kAsStored && weight.form.is_code());
  RETURN_IF_ERROR(fp8                      ? prepare.Fp8(*linear)
                  : weight.form.is_code() ? prepare.Unpacked(*linear)
                                           : prepare.Numbers(*linear));
  if (weights.bias.has_value()) {
    CudaDevice& device = context.device();
    const auto features = static_cast<size_t>(weight.rows);
    ASSIGN_OR_RETURN(linear->bias_, device.Allocate(features * 2, MemoryPurpose::kWeights));
    ASSIGN_OR_RETURN(linear->bias_f32_, device.Allocate(features * 4, MemoryPurpose::kWeights));
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
  if (linear.fp8_products_) {
    ASSIGN_OR_RETURN(const bool done, RunFp8Products(context, linear, stream, args));
    if (done) return absl::OkStatus();
  }
  if (linear.is_fp8()) {
    ASSIGN_OR_RETURN(const bool done, RunTiles(context, linear, stream, args));
    return done ? absl::OkStatus() : RunSkinny(linear, stream, args);
  }
  const ProductShape shape = ShapeOf(linear, args, linear.out_features_);
  ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t* algorithm, context.Algorithm(shape));
  if (algorithm == nullptr) return RunSkinny(linear, stream, args);
  const Features all = {0, linear.out_features_, linear.weight_.bytes().device_data()};
  return RunCublas(context, shape, *algorithm, linear, all, stream, args);
}

bool FusesGatedLinear(const GatedLinearArgs& args) {
  const auto& linear = static_cast<const CudaLinear&>(*args.linear);
  return args.decode && linear.bias_.size_bytes() == 0 && HasAlignedRows(args.in);
}

absl::Status GatedLinear(CudaStream& stream, const GatedLinearArgs& args) {
  if (args.in.rows == 0) return absl::OkStatus();
  const auto& linear = static_cast<const CudaLinear&>(*args.linear);
  SkinnyGemmLaunch launch = LaunchOf(linear, args.in, args.out);
  launch.gated = true;
  return CudaStatus(LaunchSkinnyGemm(launch, stream.get()), "launching gated_linear");
}

}  // namespace retroinfer::cuda
