#include "gpu_worker/model/stored_form.h"

#include "common/log/check.h"

namespace retroinfer {
namespace {

constexpr std::string_view kWeight = "weight";

int64_t Parts(int64_t size, int64_t each) { return each == 0 ? 1 : (size + each - 1) / each; }

}  // namespace

CodedTensors StoredForm::NamesOf(const std::string& name) const {
  RI_CHECK(name.ends_with(kWeight));
  const std::string stem = name.substr(0, name.size() - kWeight.size());
  const auto named = [&stem](std::string_view end) {
    return end.empty() ? std::string() : stem + std::string(end);
  };
  return {named(codes_end), named(scales_end), named(zeros_end)};
}

std::vector<int64_t> StoredForm::CodesShape(const std::vector<int64_t>& matrix) const {
  const size_t elements = form.RowBytes(matrix[1]) / WeightTypeBytes(element);
  return {matrix[0], static_cast<int64_t>(elements)};
}

std::vector<std::vector<int64_t>> StoredForm::ScalesShapes(
    const std::vector<int64_t>& matrix) const {
  if (scale_rows == 0) return {{}, {1}, {1, 1}};
  const int64_t rows = Parts(matrix[0], scale_rows);
  if (scale_cols == 0) return {{rows, 1}, {rows}};
  return {{rows, Parts(matrix[1], scale_cols)}};
}

std::vector<int64_t> StoredForm::ZerosShape(const std::vector<int64_t>& matrix) const {
  return CodesShape({matrix[0], Parts(matrix[1], scale_cols)});
}

}  // namespace retroinfer
