// The matrices of experts in a GPU's memory, one below the other, in any form: what the kernels of
// grouped_linear take of a CudaLinear.
#pragma once

#include <cstdint>

namespace retroinfer::cuda {

enum class GroupedForm : uint8_t {
  kBf16,
  kFp8Features,  // a scale for each feature (fp8_weight.h)
  kFp8Blocks,    // or for blocks of columns
  kInt4Steps,    // groups of whole steps (int4_layout.h)
  kInt4Words,    // or of 32 or 64 columns
  kNone,         // which they do not take
};

struct GroupedWeight {
  GroupedForm form = GroupedForm::kNone;
  const void* codes = nullptr;  // or numbers
  int64_t padded_cols = 0;
  // Of 8 bits, as SkinnyGemmLaunch has them.
  const float* scales = nullptr;
  int64_t scale_cols = 0;
  int scale_shift = 0;
  // Of 4 bits, as Int4Weight has them.
  const uint32_t* groups = nullptr;
  int64_t group_cols = 0;
};

}  // namespace retroinfer::cuda
