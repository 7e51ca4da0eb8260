// out = in * weight^T (+ bias), or out += in * weight^T: every projection of the model.
//
// Batch-invariant: a row of the result does not depend on the other rows, nor on how many there
// are, as long as `decode` has the same value.
//
// Weights may be codes with scales (weight_form.h); a backend has the forms that its needs name
// (backend_needs.h) and refuses others. It may keep their products apart from their scales, or
// round the products of both to the numbers that it multiplies. Activations are rounded to 8 bits
// where kFp8Products asks for it, and nowhere else. A weight that is NaN, or not finite where it is
// to become codes, is refused while it is prepared.
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
  virtual int64_t num_parts() const = 0;  // as LinearWeights
};

// In what a matrix is kept. The values are part of a model's fingerprint: never renumber.
enum class KeptWeights {
  kAsStored = 0,  // codes stay codes, if the backend multiplies them; numbers stay numbers
  kNumbers = 1,   // codes and f32 become the numbers that the backend computes in
  kFp8 = 2,       // numbers become e4m3 with a scale for each output feature (QuantizationScale)
  // As kFp8; and in products without `decode` activations become e4m3, with a scale for each row,
  // where the weight's scales are for whole output features (blocks are multiplied as in kFp8). A
  // backend without such products refuses it.
  kFp8Products = 3,
  kInt4 = 4,  // numbers become 4 bits, groups of kInt4RoundedGroup columns (Int4Group)
};

// Whether numbers become codes.
constexpr bool RoundsNumbers(KeptWeights keep) {
  return keep == KeptWeights::kFp8 || keep == KeptWeights::kFp8Products ||
         keep == KeptWeights::kInt4;
}

struct LinearWeights {
  WeightView weight;               // [out, in]; read only while preparing
  std::optional<WeightView> bias;  // [1, out], numbers
  WeightScales scales = {};        // of codes
  KeptWeights keep = KeptWeights::kAsStored;
  // Matrices of as many rows each, one below the other, of which a product may take some
  // (grouped_linear.h).
  int64_t num_parts = 1;
};

struct LinearArgs {
  const PreparedLinear* linear = nullptr;
  MatrixView in;            // [n, in_features], activation dtype
  MatrixView out;           // [n, out_features], activation dtype or f32; must not overlap `in`
  bool accumulate = false;  // adds to `out` (the residual connection) instead of overwriting it
  bool decode = false;      // few rows of different sequences: use the batch-invariant small shape
};

}  // namespace retroinfer
