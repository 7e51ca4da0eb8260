#include "gpu_worker/model/stored_matrix.h"

#include "common/log/check.h"
#include "gpu_worker/model/host_numbers.h"
#include "gpu_worker/model/stored_groups.h"

namespace retroinfer {

StoredMatrix::StoredMatrix(const ModelConfig& config, const Checkpoint& checkpoint,
                           const TensorSpec& spec)
    : spec_(spec), codes_(FindCodes(config.quantization, checkpoint, spec.stored)) {
  tensor_ = &checkpoint.tensors().at(codes_.has_value() ? codes_->codes : spec.stored);
  if (!codes_.has_value()) return;
  form_ = &config.quantization->form;
  const HostTensor& scales = checkpoint.tensors().at(codes_->scales);
  scales_ = NumbersOf(scales.type, scales.stored);
  if (!codes_->zeros.empty()) zeros_ = checkpoint.tensors().at(codes_->zeros).stored;
  auto groups = GroupsOfColumns(*form_, *codes_, checkpoint, spec.shape[1]);
  RI_CHECK(groups.ok());
  groups_ = *std::move(groups);
  if (form_->scale_cols != 0) {
    num_groups_ = (spec.shape[1] + form_->scale_cols - 1) / form_->scale_cols;
  }
  stored_rows_ = form_->order.transposed ? scales.shape[1] : tensor_->shape[0];
}

std::vector<float> StoredMatrix::Row(int64_t index) const {
  const int64_t row = spec_.first_row + index;
  const auto cols = static_cast<size_t>(spec_.shape[1]);
  if (form_ == nullptr) {
    const size_t bytes = cols * WeightTypeBytes(tensor_->type);
    std::vector<std::byte> memory;
    return NumbersOf(tensor_->type,
                     tensor_->Bytes(static_cast<size_t>(row) * bytes, bytes, memory));
  }
  std::vector<float> numbers = Codes(row);
  const std::vector<float> zeros = Zeros(row);
  std::vector<float> scales(static_cast<size_t>(num_groups_));
  for (size_t group = 0; group < scales.size(); ++group) {
    scales[group] = ScaleAt(row, static_cast<int64_t>(group));
  }
  for (size_t col = 0; col < cols; ++col) {
    const auto group = static_cast<size_t>(groups_[col]);
    numbers[col] = (numbers[col] - zeros[group]) * scales[group];
  }
  return numbers;
}

std::vector<float> StoredMatrix::Codes(int64_t row) const {
  const int64_t cols = spec_.shape[1];
  if (form_->order == kCodesInRows) return DecodedRow(*form_, tensor_->stored, row, cols);
  return CodesOfRow(form_->order, tensor_->stored, row, stored_rows_, cols);
}

std::vector<float> StoredMatrix::Zeros(int64_t row) const {
  if (zeros_.empty()) return std::vector<float>(static_cast<size_t>(num_groups_));
  return StoredZeros(*form_, zeros_, row, stored_rows_, num_groups_);
}

float StoredMatrix::ScaleAt(int64_t row, int64_t group) const {
  const int64_t part = form_->scale_rows == 0 ? 0 : row / form_->scale_rows;
  const int64_t at =
      form_->order.transposed ? group * stored_rows_ + row : part * num_groups_ + group;
  return scales_[static_cast<size_t>(at)];
}

}  // namespace retroinfer
