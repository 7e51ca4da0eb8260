// Checks of the arguments of prepare_linear and linear, shared by the backends.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/model/int4.h"
#include "gpu_worker/ops/model/linear.h"

namespace retroinfer {

// Checks that input features are permuted, if they are.
inline absl::Status CheckColumns(const WeightView& weight, const WeightScales& scales) {
  if (scales.columns.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckArg(weight.form.id == WeightFormId::kInt4, "prepare_linear",
                           "columns are permuted; only those of int4 may be"));
  std::vector<bool> seen(static_cast<size_t>(weight.cols));
  for (const int32_t column : scales.columns) {
    const bool is_new = column >= 0 && column < weight.cols && !seen[static_cast<size_t>(column)];
    RETURN_IF_ERROR(CheckArg(is_new, "prepare_linear", "column ", column,
                             " comes twice or is none; needs each of ", weight.cols, " once"));
    seen[static_cast<size_t>(column)] = true;
  }
  return CheckArg(std::ssize(scales.columns) == weight.cols, "prepare_linear", "there are ",
                  scales.columns.size(), " columns; needs ", weight.cols);
}

inline absl::Status CheckZero(const WeightForm& form, float zero) {
  RETURN_IF_ERROR(CheckArg(std::isfinite(zero), "prepare_linear", "a zero is ", zero,
                           "; needs one that is finite"));
  const bool fits = zero >= 0 && zero <= kInt4MaxZero && zero == std::floor(zero);
  return CheckArg(form.id != WeightFormId::kInt4 || fits, "prepare_linear", "a zero is ", zero,
                  "; int4 needs a whole number from 0 to ", kInt4MaxZero);
}

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
    RETURN_IF_ERROR(CheckZero(weight.form, zero));
  }
  return CheckColumns(weight, scales);
}

// What is said of a weight with values that cannot be kept.
inline absl::Status NotFinite() {
  return absl::InvalidArgumentError("has values that are not finite numbers");
}

inline absl::Status CheckLinearWeights(const LinearWeights& weights) {
  const WeightView& weight = weights.weight;
  RETURN_IF_ERROR(CheckArg(weight.data != nullptr && weight.rows > 0 && weight.cols > 0,
                           "prepare_linear", "the weight is empty"));
  RETURN_IF_ERROR(CheckArg(weights.num_parts > 0 && weight.rows % weights.num_parts == 0,
                           "prepare_linear", weight.rows, " rows are not ", weights.num_parts,
                           " parts of as many each"));
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
