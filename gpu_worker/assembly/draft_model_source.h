// The draft model of a worker (--draft-model): its folder or file, opened and checked before
// anything is loaded, its weights, and the model that is made of them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/assembly/compute_backend.h"
#include "gpu_worker/assembly/model_source.h"
#include "gpu_worker/assembly/served_engine_options.h"
#include "gpu_worker/engine/memory_plan.h"
#include "gpu_worker/executor/draft_model.h"
#include "gpu_worker/model/transformer.h"

namespace retroinfer {

// Threads: one at a time.
class DraftModelSource {
 public:
  // Opens what options.draft_model_folder names, for the served model.
  //
  // Returns: as ModelSource::Open; INVALID_ARGUMENT if it has other tokens than the served model,
  //          with the first that differs; UNIMPLEMENTED for a form of weights that the backend has
  //          no code for.
  static absl::StatusOr<DraftModelSource> Open(const ServedEngineOptions& options,
                                               const ModelSource& served,
                                               const ComputeBackend& backend);

  const std::string& name() const { return source_.name(); }
  // Reads or makes the weights. Returns: as ModelSource::Load.
  absl::Status LoadWeights(ComputeBackend& backend);
  // What they take of the device. REQUIRES: LoadWeights() was called, here and below.
  size_t allocated_bytes() const { return allocated_bytes_; }
  // For the memory plan.
  absl::StatusOr<MemoryPlanInput::Draft> ToPlan(const ComputeBackend& backend) const;
  // The model of a plan's sizes. Called once. Returns: as Transformer::Create.
  absl::StatusOr<std::unique_ptr<Transformer>> TakeModel(ComputeBackend& backend,
                                                         const DraftModel::Sizes& sizes);

 private:
  explicit DraftModelSource(ModelSource source) : source_(std::move(source)) {}

  ModelSource source_;
  ModelWeights weights_;
  size_t allocated_bytes_ = 0;
};

}  // namespace retroinfer
