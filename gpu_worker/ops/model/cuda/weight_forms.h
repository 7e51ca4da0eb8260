// The forms of weights that the CUDA backend multiplies. Free of CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu_worker/ops/model/cuda/int4_layout.h"
#include "gpu_worker/ops/model/weight_form.h"

namespace retroinfer::cuda {

// linear.cc has a class for each.
constexpr bool HasWeightForm(const WeightForm& form) {
  if (form.id == WeightFormId::kInt4) return HasInt4Groups(form);
  return !form.is_code() || form.id == WeightFormId::kE4m3;
}

// As BackendNeeds::weight_bytes.
constexpr size_t WeightBytes(const WeightForm& form, int64_t in, int64_t out) {
  return form.id == WeightFormId::kInt4 ? Int4WeightBytes(form, in, out) : form.Bytes(out, in);
}

}  // namespace retroinfer::cuda
