// Saves a prefix under a name: computes what is missing and waits until it is on the disk.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gpu_worker/assembly/served_model.h"
#include "gpu_worker/engine/engine.h"
#include "gpu_worker/engine/generation.h"
#include "retroinfer/kvstore/v1/contexts.grpc.pb.h"

namespace retroinfer {

struct PrefixToSave {
  GenerationRequest request;  // the prompt and its salt, as a request for text would have them
  std::string name;
  bool pinned = false;
  bool replace = false;  // the context of the same name
  absl::Duration time_to_live = absl::InfiniteDuration();
};

struct SavedPrefix {
  kvstore::v1::ContextInfo context;
  int64_t computed_tokens = 0;
};

// Threads: Save() on any thread, which it blocks.
class ContextSaver {
 public:
  // REQUIRES: all outlive this object.
  ContextSaver(const ServedModel* model, Engine* engine,
               kvstore::v1::ContextStoreService::StubInterface* store)
      : model_(*model), engine_(*engine), store_(*store) {}

  // Both are called on the caller's thread, every 50 ms: `on_progress` with what is new of the
  // computation.
  //
  // Returns: the errors of SaveContext in generation/v1/contexts.proto; CANCELLED.
  absl::StatusOr<SavedPrefix> Save(PrefixToSave prefix,
                                   const std::function<void(const PrefillProgress&)>& on_progress,
                                   const std::function<bool()>& is_cancelled);

 private:
  // Runs the prompt through the engine. Returns the tokens that it had to compute.
  absl::StatusOr<int64_t> Compute(const GenerationRequest& request,
                                  const std::function<void(const PrefillProgress&)>& on_progress,
                                  const std::function<bool()>& is_cancelled);

  const ServedModel& model_;
  Engine& engine_;
  kvstore::v1::ContextStoreService::StubInterface& store_;
};

}  // namespace retroinfer
