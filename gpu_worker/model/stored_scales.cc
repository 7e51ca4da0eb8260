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
#include "gpu_worker/model/stored_groups.h"

namespace retroinfer {
namespace {

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace

bool IsScaleWithoutEffect(const std::string& name) {
  for (const char* suffix : {".input_scale", ".input_global_scale", ".k_scale", ".v_scale",
                             ".kv_scale", ".output_scale"}) {
    if (absl::EndsWith(name, suffix)) return true;
  }
  return false;
}

std::optional<CodedTensors> FindCodes(const std::optional<WeightQuantization>& quantization,
                                      const Checkpoint& checkpoint, const std::string& name) {
  if (!quantization.has_value()) return std::nullopt;
  CodedTensors names = quantization->form.NamesOf(name);
  const auto codes = checkpoint.tensors().find(names.codes);
  const bool found =
      codes != checkpoint.tensors().end() && codes->second.type == quantization->form.element;
  return found ? std::optional(std::move(names)) : std::nullopt;
}

absl::Status CheckCodes(const WeightQuantization& quantization, const Checkpoint& checkpoint,
                        const std::string& name, const std::vector<int64_t>& shape) {
  const StoredForm& form = quantization.form;
  const CodedTensors names = form.NamesOf(name);
  RETURN_IF_ERROR(checkpoint.Find(names.codes, form.CodesShape(shape)).status());
  const auto shapes = form.ScalesShapes(shape);
  const auto error = [&](const std::string& problem) {
    return absl::InvalidArgumentError(absl::StrCat(
        checkpoint.folder(), ": tensor \"", names.scales, "\" ", problem, "; \"", names.codes,
        "\" is ", std::string(WeightTypeName(form.element)), " and needs it as ",
        ShapeText(shapes.front()), " in F32, BF16 or F16: ", quantization.ToString()));
  };
  const auto found = checkpoint.tensors().find(names.scales);
  if (found == checkpoint.tensors().end()) return error("is missing");
  const HostTensor& scales = found->second;
  if (std::find(shapes.begin(), shapes.end(), scales.shape) == shapes.end()) {
    return error(absl::StrCat("has shape ", ShapeText(scales.shape)));
  }
  if (HasScales(scales.type)) {
    return error(absl::StrCat("is ", std::string(WeightTypeName(scales.type)), " itself"));
  }
  RETURN_IF_ERROR(GroupsOfColumns(form, names, checkpoint, shape[1]).status());
  RETURN_IF_ERROR(CheckStoredShape(form, names, checkpoint, shape));
  if (names.zeros.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const HostTensor zeros, checkpoint.Find(names.zeros, form.ZerosShape(shape)));
  if (zeros.type == form.element) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(checkpoint.folder(), ": tensor \"", names.zeros,
                                                 "\" is ", std::string(WeightTypeName(zeros.type)),
                                                 "; zeros are as the codes, ",
                                                 std::string(WeightTypeName(form.element))));
}

std::vector<float> DecodedRow(const StoredForm& form, std::span<const std::byte> codes, int64_t row,
                              int64_t cols) {
  std::vector<float> decoded(static_cast<size_t>(cols));
  const size_t begin = static_cast<size_t>(row) * form.form.RowBytes(cols);
  form.form.decode(codes.data() + begin, cols, decoded.data());
  return decoded;
}

std::vector<float> CodesOfRow(const CodeOrder& order, std::span<const std::byte> codes, int64_t row,
                              int64_t rows, int64_t cols) {
  std::vector<float> numbers;
  for (int64_t col = 0; col < cols; ++col) {
    const CodeOrder::Place place = order.PlaceOf(row, col, rows, cols);
    uint32_t word;
    std::memcpy(&word, codes.data() + place.word * 4, sizeof(word));
    numbers.push_back(static_cast<float>(word >> place.shift & 0xf));
  }
  return numbers;
}

std::vector<float> StoredZeros(const StoredForm& form, std::span<const std::byte> zeros,
                               int64_t row, int64_t rows, int64_t num_groups) {
  if (form.zeros_order == kCodesInRows) return DecodedRow(form, zeros, row, num_groups);
  std::vector<float> numbers = CodesOfRow(form.zeros_order, zeros, row, rows, num_groups);
  for (float& zero : numbers) zero += static_cast<float>(form.zeros_add);
  return numbers;
}

void StoredScales::Add(const std::string& name, const HostTensor& scales, int64_t rows,
                       int64_t cols, size_t at) {
  parts_.push_back({.scales = {name, scales.type, at, scales.num_bytes()},
                    .zeros = {},
                    .rows = rows,
                    .cols = cols});
}

void StoredScales::AddZeros(const std::string& name, const HostTensor& zeros, size_t at) {
  RI_CHECK(form_.scale_rows == 1 && !parts_.empty());
  parts_.back().zeros = {name, zeros.type, at, zeros.num_bytes()};
}

int64_t StoredScales::RowsEach() const {
  if (form_.ScalesRows()) return 1;
  int64_t rows = form_.scale_rows;  // a power of two, so every divisor of it is one, too
  for (size_t i = 0; i + 1 < parts_.size(); ++i) rows = std::gcd(rows, parts_[i].rows);
  return rows;
}

absl::Status StoredScales::AppendScales(const Part& part, std::span<const std::byte> bytes,
                                        WeightScales& scales) const {
  const std::vector<float> numbers = NumbersOf(part.scales.type, bytes);
  for (const float scale : numbers) {
    if (std::isfinite(scale) && scale > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", part.scales.name, "\" holds ",
                                                   scale, "; a scale is finite and above zero"));
  }
  const int64_t cols = scales.num_cols(part.cols);
  for (int64_t row = 0; row < part.rows; row += scales.rows_each) {
    const int64_t stored = form_.scale_rows == 0 ? 0 : row / form_.scale_rows * cols;
    for (int64_t col = 0; col < cols; ++col) {
      const int64_t at = form_.order.transposed ? col * part.rows + row : stored + col;
      scales.values.push_back(numbers[static_cast<size_t>(at)]);
    }
  }
  return absl::OkStatus();
}

absl::Status StoredScales::AppendZeros(const Part& part, std::span<const std::byte> bytes,
                                       WeightScales& scales) const {
  const int64_t cols = scales.num_cols(part.cols);
  for (int64_t row = 0; row < part.rows; ++row) {
    for (const float zero : StoredZeros(form_, bytes, row, part.rows, cols)) {
      if (!std::isfinite(zero)) {
        return absl::InvalidArgumentError(absl::StrCat("tensor \"", part.zeros.name, "\" holds ",
                                                       zero, "; a zero is a finite number"));
      }
      scales.zeros.push_back(zero);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<WeightScales> StoredScales::Read(Device& device,
                                                DeviceSpan<std::byte> memory) const {
  ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.CreateStream(StreamKind::kCompute));
  WeightScales scales;
  scales.rows_each = RowsEach();
  scales.cols_each = form_.scale_cols;
  std::vector<std::byte> bytes;
  const auto download = [&](const Stored& stored) {
    bytes.resize(stored.bytes);
    const absl::Status status =
        device.Download(*stream, memory.subspan(stored.at, stored.bytes), bytes);
    return status.ok() ? stream->Synchronize() : status;
  };
  for (const Part& part : parts_) {
    RETURN_IF_ERROR(download(part.scales));
    RETURN_IF_ERROR(AppendScales(part, bytes, scales));
    if (part.zeros.bytes == 0) continue;
    RETURN_IF_ERROR(download(part.zeros));
    RETURN_IF_ERROR(AppendZeros(part, bytes, scales));
  }
  return scales;
}

}  // namespace retroinfer
