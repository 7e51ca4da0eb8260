// The feed-forward network of experts, in two products of rows with the matrices of the experts
// that each takes (route_experts.h):
//
//   gated[p] = f(in[r] * gate_e^T, in[r] * up_e^T)    for each pair p of a row r and expert e
//   out[r]  += the sum over the pairs p of r, in their order, of weight[p] * (gated[p] * down_e^T)
//
// with f a gated activation (silu_mul.h); each product may have a bias. The second may overwrite
// `out` instead of adding to it.
//
// Batch-invariant as linear is: a row of `out` depends neither on the other rows nor on how many
// there are or which experts they take. Few rows cost reading the matrices of the experts that are
// taken, once.
//
// Nothing of the routes is looked at by the host: a recorded step may be run with others.
#pragma once

#include "gpu_worker/ops/matrix.h"
#include "gpu_worker/ops/model/linear.h"
#include "gpu_worker/ops/model/route_experts.h"
#include "gpu_worker/ops/model/silu_mul.h"

namespace retroinfer {

// Routes are those that route_experts has filled for the same rows and `decode`. Weights have
// in_features that are a multiple of 8; int4 ones, on a GPU, parts of a multiple of 16
// features, and their columns in order.
struct GroupedGatedLinearArgs {
  const PreparedLinear* linear = nullptr;  // of 2 E parts of f features: gate and up of each expert
  MatrixView in;                           // [n, in_features], activation dtype
  ExpertRoutes routes;
  MatrixView out;       // [n * per_row, f], activation dtype, by pair
  bool decode = false;  // as LinearArgs
  GatedActivation activation = GatedActivation::kSilu;
};

struct GroupedLinearArgs {
  const PreparedLinear* linear = nullptr;  // of E parts of `out`'s features
  MatrixView in;                           // [n * per_row, in_features], activation dtype, by pair
  ExpertRoutes routes;
  MatrixView products;     // [n * per_row, features], activation dtype: scratch
  MatrixView out;          // [n, features], activation dtype
  bool decode = false;     // as LinearArgs
  bool accumulate = true;  // adds to `out` instead of overwriting it
};

}  // namespace retroinfer
