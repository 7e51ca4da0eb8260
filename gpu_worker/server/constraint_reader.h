// Turns what a client says of an answer's form into what the sampler follows.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "gpu_worker/assembly/served_model.h"
#include "gpu_worker/executor/sampling_params.h"
#include "retroinfer/generation/v1/generation.pb.h"
#include "text/constraint/constraint.h"

namespace retroinfer {

// Returns: null for a request without a constraint; INVALID_ARGUMENT, reason INVALID_CONSTRAINT, as
//          ConstraintCompiler::Compile, or for a model that has no compiler; INVALID_SAMPLING where
//          `sampling` never lets an answer end, or wants none.
// Cost:    compiles a constraint that was not seen before: some 10 ms for 5 KB.
absl::StatusOr<std::shared_ptr<const constraint::Constraint>> ReadConstraint(
    const generation::v1::GenerateRequest& request, const SamplingParams& sampling,
    const ServedModel& model);

}  // namespace retroinfer
