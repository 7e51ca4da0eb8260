// Checks of the arguments of prepare_linear and linear, shared by the backends.
#pragma once

#include <cmath>
#include <string>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/model/linear.h"

namespace retroinfer {

inline absl::Status CheckWeightScales(const WeightView& weight, const WeightScales& scales) {
  constexpr int64_t kBlock = WeightScales::kBlock;
  const int64_t each = scales.rows_each;
  RETURN_IF_ERROR(CheckArg(each >= 1 && each <= kBlock && (each & (each - 1)) == 0,
                           "prepare_linear", "a scale is for ", each, " rows; needs 1, 2, 4 to ",
                           kBlock));
  const int64_t group = weight.form.group_cols;
  const bool is_block = weight.form.may_be_blocks && scales.cols_each == kBlock;
  RETURN_IF_ERROR(CheckArg(scales.cols_each == group || is_block, "prepare_linear",
                           "a scale is for ", scales.cols_each, " columns; needs ",
                           group == 0 ? "all" : std::to_string(group),
                           weight.form.may_be_blocks ? " or 128" : ""));
  const auto wanted =
      static_cast<size_t>(scales.num_rows(weight.rows) * scales.num_cols(weight.cols));
  RETURN_IF_ERROR(CheckArg(scales.values.size() == wanted, "prepare_linear", "there are ",
                           scales.values.size(), " scales; needs ", wanted));
  for (const float scale : scales.values) {
    RETURN_IF_ERROR(CheckArg(std::isfinite(scale) && scale > 0, "prepare_linear", "a scale is ",
                             scale, "; needs one that is finite and above zero"));
  }
  const size_t zeros = weight.form.has_zeros ? wanted : 0;
  RETURN_IF_ERROR(CheckArg(scales.zeros.size() == zeros, "prepare_linear", "there are ",
                           scales.zeros.size(), " zeros; needs ", zeros));
  for (const float zero : scales.zeros) {
    RETURN_IF_ERROR(CheckArg(std::isfinite(zero), "prepare_linear", "a zero is ", zero,
                             "; needs one that is finite"));
  }
  return absl::OkStatus();
}

// What is said of a weight with values that cannot be kept.
inline absl::Status NotFinite() {
  return absl::InvalidArgumentError("has values that are not finite numbers");
}

inline absl::Status CheckLinearWeights(const LinearWeights& weights) {
  const WeightView& weight = weights.weight;
  RETURN_IF_ERROR(CheckArg(weight.data != nullptr && weight.rows > 0 && weight.cols > 0,
                           "prepare_linear", "the weight is empty"));
  if (weight.form.is_code()) RETURN_IF_ERROR(CheckWeightScales(weight, weights.scales));
  if (!weights.bias.has_value()) return absl::OkStatus();
  return CheckShape("prepare_linear", "bias", weights.bias->Numbers(), 1, weight.rows);
}

// The dtype of `out` is the backend's to check.
inline absl::Status CheckLinear(const LinearArgs& args, DType activations) {
  RETURN_IF_ERROR(CheckArg(args.linear != nullptr, "linear", "no weights were given"));
  const int64_t rows = args.in.rows;
  RETURN_IF_ERROR(CheckShape("linear", "in", args.in, rows, args.linear->in_features()));
  RETURN_IF_ERROR(CheckShape("linear", "out", args.out, rows, args.linear->out_features()));
  return CheckDType("linear", "in", args.in, activations);
}

}  // namespace retroinfer
