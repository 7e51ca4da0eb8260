// A model, loaded and attached to the store, and the engine that runs it.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/service/service_notifier.h"
#include "gpu_worker/assembly/compute_backend.h"
#include "gpu_worker/assembly/other_ranks.h"
#include "gpu_worker/assembly/served_engine_options.h"
#include "gpu_worker/assembly/served_model.h"
#include "gpu_worker/engine/engine.h"
#include "gpu_worker/ranks/rank_group.h"

namespace retroinfer {

// Threads: immutable; engine() as Engine.
// Owns:    model, tokenizer, device, store link and engine.
class ServedEngine {
 public:
  virtual ~ServedEngine() = default;
  virtual const ServedModel& model() const = 0;
  virtual Engine& engine() = 0;
  // As OtherRanks::ReopenLogs(), where there are some.
  virtual void ReopenRankLogs() = 0;
  // Null: there are no other ranks.
  virtual const RankGroup* ranks() const = 0;
};

// Loads the model folder, plans and allocates the memory (and prints the split), attaches to the
// store, and warms up. Progress goes to the log and to `notifier`, whose watchdog the engine's loop
// feeds; it must outlive the engine. `ranks` are the other processes that share the model, whose
// memory `backend` was made with; null: there are none.
//
// Returns: INVALID_ARGUMENT or UNIMPLEMENTED for a model folder that is not right or not supported;
//          RESOURCE_EXHAUSTED, with the numbers and the largest context that fits, if the memory
//          does not; UNAVAILABLE if there is no store.
absl::StatusOr<std::unique_ptr<ServedEngine>> LoadServedEngine(
    const ServedEngineOptions& options, ComputeBackend backend,
    const common::ServiceNotifier& notifier, std::unique_ptr<OtherRanks> ranks = nullptr);

}  // namespace retroinfer
