// The forms of weights that the CUDA backend multiplies. Free of CUDA.
#pragma once

#include "gpu_worker/ops/model/weight_form.h"

namespace retroinfer::cuda {

// linear.cc has a class for each.
constexpr bool HasWeightForm(const WeightForm& form) {
  return !form.is_code() || form.id == WeightFormId::kE4m3;
}

}  // namespace retroinfer::cuda
