// In which forms checkpoints store matrices of codes: which tensors make one, and what its scales
// are for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpu_worker/ops/model/int4.h"
#include "gpu_worker/ops/model/weight_form.h"
#include "gpu_worker/ops/model/weight_view.h"

namespace retroinfer {

// What has a scale of its own. The values are part of the fingerprint: never renumber.
enum class ScaledPart : uint32_t { kMatrix = 1, kFeature = 2, kBlock = 3, kGroup = 4 };

// The names of the tensors of a matrix of codes.
struct CodedTensors {
  std::string codes;
  std::string scales;
  std::string zeros;   // empty: it has none
  std::string groups;  // the same
  std::string shape;   // the same
};

struct StoredForm {
  ScaledPart part = ScaledPart::kMatrix;
  std::string_view scales_are;               // for people
  WeightForm form = kFp8Weights;             // of the codes
  WeightType element = WeightType::kF8E4M3;  // of their tensor: [rows][form.RowBytes(cols)]
  // How the names of its tensors end, in the place of "weight".
  std::string_view codes_end = "weight";
  std::string_view scales_end = "weight_scale";
  std::string_view zeros_end = "";  // of a form that has zeros: codes, packed as those of a matrix
  // Of 4-bit codes and their zeros. Scales of a transposed matrix are transposed, too.
  CodeOrder order = kCodesInRows;
  CodeOrder zeros_order = kCodesInRows;
  int zeros_add = 0;  // what a stored zero lacks
  // The number of each column's group, I32 [cols], which says that groups are not of columns side
  // by side; and rows and columns of the matrix, I64 [2]. Empty: there are none. Where there may be
  // numbers of groups, they may also be missing.
  std::string_view groups_end = "";
  std::string_view shape_end = "";
  // Rows and columns of a scale; 0: all. Zeros need a scale for each row.
  int64_t scale_rows = 0;
  int64_t scale_cols = 0;

  // Whether codes are put into rows while they are loaded.
  bool IsArranged() const { return order != kCodesInRows || !groups_end.empty(); }
  // Whether each row of a matrix may be scaled by itself.
  bool ScalesRows() const { return scale_rows <= 1; }

  // Of the matrix that would be called `name`, which ends in "weight".
  CodedTensors NamesOf(const std::string& name) const;
  // The shapes of the tensors of a matrix [rows, cols]; that of scales may be any of the list.
  std::vector<int64_t> CodesShape(const std::vector<int64_t>& matrix) const;
  std::vector<std::vector<int64_t>> ScalesShapes(const std::vector<int64_t>& matrix) const;
  std::vector<int64_t> ZerosShape(const std::vector<int64_t>& matrix) const;
};

inline constexpr StoredForm kFp8OfMatrices = {.part = ScaledPart::kMatrix,
                                              .scales_are = "a scale for each matrix"};
inline constexpr StoredForm kFp8OfFeatures = {
    .part = ScaledPart::kFeature, .scales_are = "a scale for each output feature", .scale_rows = 1};
inline constexpr StoredForm kFp8OfBlocks = {.part = ScaledPart::kBlock,
                                            .scales_are = "a scale for each block of 128 x 128",
                                            .scale_rows = WeightScales::kBlock,
                                            .scale_cols = WeightScales::kBlock};
// The same under another name, which DeepSeek and Qwen give it.
inline constexpr StoredForm kFp8OfBlocksInverse = {.part = ScaledPart::kBlock,
                                                   .scales_are = kFp8OfBlocks.scales_are,
                                                   .scales_end = "weight_scale_inv",
                                                   .scale_rows = WeightScales::kBlock,
                                                   .scale_cols = WeightScales::kBlock};

// int4 with a scale for each `group_cols` input features (0: for each output feature), as AutoAWQ,
// GPTQ's tools and compressed-tensors store it.
constexpr StoredForm StoredInt4(int64_t group_cols, bool has_zeros) {
  StoredForm stored;
  stored.part = group_cols == 0 ? ScaledPart::kFeature : ScaledPart::kGroup;
  stored.scales_are = group_cols == 0     ? "a scale for each output feature"
                      : group_cols == 32  ? "a scale for each 32 input features"
                      : group_cols == 64  ? "a scale for each 64 input features"
                      : group_cols == 128 ? "a scale for each 128 input features"
                                          : "a scale for each group of input features";
  stored.form = Int4Weights(group_cols, has_zeros);
  stored.element = WeightType::kI32;
  stored.scale_rows = 1;
  stored.scale_cols = group_cols;
  return stored;
}
constexpr StoredForm AwqInt4(int64_t group_cols) {
  StoredForm stored = StoredInt4(group_cols, true);
  stored.codes_end = "qweight";
  stored.scales_end = "scales";
  stored.zeros_end = "qzeros";
  stored.order = stored.zeros_order = kAwqCodes;
  return stored;
}
// `zeros_add`: 1, or 0 in the second version of the format.
constexpr StoredForm GptqInt4(int64_t group_cols, int zeros_add) {
  StoredForm stored = AwqInt4(group_cols);
  stored.order = kGptqCodes;
  stored.zeros_order = kGptqZeros;
  stored.zeros_add = zeros_add;
  stored.groups_end = "g_idx";
  return stored;
}
constexpr StoredForm CompressedInt4(int64_t group_cols, bool has_zeros) {
  StoredForm stored = StoredInt4(group_cols, has_zeros);
  stored.codes_end = "weight_packed";
  if (has_zeros) stored.zeros_end = "weight_zero_point";
  stored.zeros_order = kCodesDown;
  stored.groups_end = "weight_g_idx";
  stored.shape_end = "weight_shape";
  return stored;
}

}  // namespace retroinfer
