// In which forms checkpoints store matrices of floats of 4 bits (e2m1.h), two in a byte, the first
// in the low half: which tensors make one, and what their scales are.
//
// Sources: compressed-tensors, NVFP4PackedCompressor and MXFP4PackedCompressor; NVIDIA ModelOpt,
// NVFP4QTensor.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "gpu_worker/ops/model/weight_type.h"

namespace retroinfer {

struct Float4Form {
  std::string_view name;    // "NVFP4"
  std::string_view method;  // what makes such folders
  int64_t group = 16;       // input features that share a scale
  // How the names of its tensors end, in the place of "weight".
  std::string_view codes_end = "weight_packed";  // U8 [rows, cols / 2]
  std::string_view scales_end = "weight_scale";  // [rows, cols / group]
  std::string_view global_end = "";              // F32 [1] or []; empty: there is none
  // Of the scales: kF8E4M3 or, of exponents (e8m0), kU8.
  WeightType scale_type = WeightType::kF8E4M3;
  // Whether the global scale divides; it multiplies otherwise.
  bool global_divides = false;

  // For people: "NVFP4 (compressed-tensors, a scale for each 16 input features)".
  std::string ToString() const;
};

inline constexpr Float4Form kCompressedNvfp4 = {.name = "NVFP4",
                                                .method = "compressed-tensors",
                                                .global_end = "weight_global_scale",
                                                .global_divides = true};
inline constexpr Float4Form kCompressedMxfp4 = {
    .name = "MXFP4", .method = "compressed-tensors", .group = 32, .scale_type = WeightType::kU8};
inline constexpr Float4Form kModelOptNvfp4 = {
    .name = "NVFP4", .method = "modelopt", .codes_end = "weight", .global_end = "weight_scale_2"};

// What people are told where matrices of such a form are not rounded.
inline constexpr std::string_view kFloat4Note =
    "they become bf16, four times their size; --weights-dtype fp8 or int4 rounds them on the way";

}  // namespace retroinfer
