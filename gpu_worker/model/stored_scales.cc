#include "gpu_worker/model/stored_scales.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/host_numbers.h"

namespace retroinfer {
namespace {

constexpr char kWeight[] = "weight";

int64_t Blocks(int64_t size) { return (size + WeightScales::kBlock - 1) / WeightScales::kBlock; }

// The shapes that the scales of a matrix may have.
std::vector<std::vector<int64_t>> ShapesOf(ScaledPart part, const std::vector<int64_t>& matrix) {
  switch (part) {
    case ScaledPart::kMatrix:
      return {{}, {1}, {1, 1}};
    case ScaledPart::kFeature:
      return {{matrix[0], 1}, {matrix[0]}};
    case ScaledPart::kBlock:
      return {{Blocks(matrix[0]), Blocks(matrix[1])}};
  }
  return {};
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace

std::string ScaleName(const WeightQuantization& quantization, const std::string& name) {
  RI_CHECK(absl::EndsWith(name, kWeight));
  return name.substr(0, name.size() - std::strlen(kWeight)) + quantization.scale_suffix;
}

bool IsScaleWithoutEffect(const std::string& name) {
  for (const char* suffix :
       {".input_scale", ".k_scale", ".v_scale", ".kv_scale", ".output_scale"}) {
    if (absl::EndsWith(name, suffix)) return true;
  }
  return false;
}

absl::Status CheckScaleTensor(const WeightQuantization& quantization, const Checkpoint& checkpoint,
                              const std::string& name, const std::vector<int64_t>& shape) {
  const std::string scale_name = ScaleName(quantization, name);
  const auto shapes = ShapesOf(quantization.part, shape);
  const auto error = [&](const std::string& problem) {
    return absl::InvalidArgumentError(
        absl::StrCat(checkpoint.folder(), ": tensor \"", scale_name, "\" ", problem, "; \"", name,
                     "\" is F8_E4M3 and needs it as ", ShapeText(shapes.front()),
                     " in F32, BF16 or F16: ", quantization.ToString()));
  };
  const auto found = checkpoint.tensors().find(scale_name);
  if (found == checkpoint.tensors().end()) return error("is missing");
  const HostTensor& scales = found->second;
  if (std::find(shapes.begin(), shapes.end(), scales.shape) == shapes.end()) {
    return error(absl::StrCat("has shape ", ShapeText(scales.shape)));
  }
  return HasScales(scales.type) ? error("is F8_E4M3 itself") : absl::OkStatus();
}

void StoredScales::Add(const std::string& name, const HostTensor& scales,
                       const std::vector<int64_t>& matrix_shape, size_t at) {
  parts_.push_back({name, scales.type, at, scales.num_bytes() / WeightTypeBytes(scales.type),
                    matrix_shape[0], matrix_shape[1]});
}

int64_t StoredScales::RowsEach() const {
  if (part_ != ScaledPart::kBlock) return 1;
  int64_t rows = WeightScales::kBlock;  // a power of two, so every divisor of it is one, too
  for (size_t i = 0; i + 1 < parts_.size(); ++i) rows = std::gcd(rows, parts_[i].rows);
  return rows;
}

absl::StatusOr<WeightScales> StoredScales::Read(Device& device,
                                                DeviceSpan<std::byte> memory) const {
  ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.CreateStream(StreamKind::kCompute));
  WeightScales scales;
  scales.rows_each = RowsEach();
  scales.cols_each = part_ == ScaledPart::kBlock ? WeightScales::kBlock : 0;
  std::vector<std::byte> bytes;
  for (const Part& part : parts_) {
    bytes.resize(part.count * WeightTypeBytes(part.type));
    RETURN_IF_ERROR(device.Download(*stream, memory.subspan(part.at, bytes.size()), bytes));
    RETURN_IF_ERROR(stream->Synchronize());
    const std::vector<float> numbers = NumbersOf(part.type, bytes);
    for (const float scale : numbers) {
      if (std::isfinite(scale) && scale > 0) continue;
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", part.name, "\" holds ", scale,
                                                     "; a scale is finite and above zero"));
    }
    const int64_t cols = scales.num_cols(part.cols);
    for (int64_t row = 0; row < part.rows; row += scales.rows_each) {
      const int64_t stored = part_ == ScaledPart::kMatrix    ? 0
                             : part_ == ScaledPart::kFeature ? row
                                                             : row / WeightScales::kBlock * cols;
      for (int64_t col = 0; col < cols; ++col) {
        scales.values.push_back(numbers[static_cast<size_t>(stored + col)]);
      }
    }
  }
  return scales;
}

}  // namespace retroinfer
