// out = in * weight^T (+ bias), or out += in * weight^T: every projection of the model.
//
// Batch-invariant for up to kInvariantRows rows a call or any multiple: a row of the result does
// not depend on the other rows, nor on how many there are, as long as `decode` has the same value.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "gpu_worker/ops/matrix.h"
#include "gpu_worker/ops/model/weight_view.h"

namespace retroinfer {

// Weights in the form that a backend multiplies fastest. Immutable; may be shared by threads.
class PreparedLinear {
 public:
  virtual ~PreparedLinear() = default;
  virtual int64_t in_features() const = 0;
  virtual int64_t out_features() const = 0;
};

struct LinearWeights {
  WeightView weight;               // [out, in]; read only while preparing
  std::optional<WeightView> bias;  // [1, out]
};

struct LinearArgs {
  const PreparedLinear* linear = nullptr;
  MatrixView in;            // [n, in_features], activation dtype
  MatrixView out;           // [n, out_features], activation dtype or f32; must not overlap `in`
  bool accumulate = false;  // adds to `out` (the residual connection) instead of overwriting it
  bool decode = false;      // few rows of different sequences: use the batch-invariant small shape
};

}  // namespace retroinfer
