// Checks of the arguments of sampling, shared by the backends.
#pragma once

#include <string_view>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/model/sampling.h"

namespace retroinfer {

inline absl::Status CheckSampling(const SamplingArgs& args) {
  constexpr std::string_view kOp = "sampling";
  const int64_t batch = args.logits.rows;
  RETURN_IF_ERROR(CheckShape(kOp, "logits", args.logits, batch, args.logits.cols));
  RETURN_IF_ERROR(CheckDType(kOp, "logits", args.logits, DType::kF32));
  RETURN_IF_ERROR(CheckArg(args.logits.cols > 0, kOp, "the vocabulary is empty"));
  RETURN_IF_ERROR(CheckSize(kOp, "rows", args.rows, batch));
  if (!args.biases.empty()) RETURN_IF_ERROR(CheckSize(kOp, "biases", args.biases, batch));
  if (!args.occurrences.empty()) {
    RETURN_IF_ERROR(CheckSize(kOp, "occurrences", args.occurrences, batch));
  }
  if (!args.masks.empty()) RETURN_IF_ERROR(CheckSize(kOp, "masks", args.masks, batch));
  RETURN_IF_ERROR(CheckSize(kOp, "tokens", args.tokens, batch));
  RETURN_IF_ERROR(CheckSize(kOp, "logprobs", args.logprobs, batch));
  RETURN_IF_ERROR(CheckSize(kOp, "top_tokens", args.top_tokens, batch * kMaxTopLogprobs));
  RETURN_IF_ERROR(CheckSize(kOp, "top_logprobs", args.top_logprobs, batch * kMaxTopLogprobs));
  RETURN_IF_ERROR(CheckSize(kOp, "ranks", args.ranks, batch));
  return CheckArg(args.scratch.size() >= SamplingScratchBytes(batch, args.logits.cols), kOp,
                  "needs SamplingScratchBytes() of scratch");
}

}  // namespace retroinfer
