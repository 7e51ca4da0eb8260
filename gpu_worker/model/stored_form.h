// In which forms checkpoints store matrices of codes: which tensors make one, and what its scales
// are for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpu_worker/ops/model/weight_form.h"
#include "gpu_worker/ops/model/weight_view.h"

namespace retroinfer {

// What has a scale of its own. The values are part of the fingerprint: never renumber.
enum class ScaledPart : uint32_t { kMatrix = 1, kFeature = 2, kBlock = 3 };

// The names of the tensors of a matrix of codes.
struct CodedTensors {
  std::string codes;
  std::string scales;
  std::string zeros;  // empty: it has none
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
  // Rows and columns of a scale; 0: all. Zeros need a scale for each row.
  int64_t scale_rows = 0;
  int64_t scale_cols = 0;

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

// All forms that there are.
inline constexpr StoredForm kStoredForms[] = {kFp8OfMatrices, kFp8OfFeatures, kFp8OfBlocks,
                                              kFp8OfBlocksInverse};

}  // namespace retroinfer
