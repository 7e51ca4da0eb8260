// Builds what an engine runs on: KV memory, block cache and policies, from a memory plan.
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/statusor.h"
#include "gpu_worker/engine/local_engine.h"
#include "gpu_worker/engine/memory_plan.h"
#include "gpu_worker/wave_index/wave_index_settings.h"

namespace retroinfer {

// Everything outlives the engine.
struct EngineEnvironment {
  Device* device = nullptr;
  Ops* ops = nullptr;
  Stream* compute = nullptr;
  Stream* background = nullptr;
  Transformer* model = nullptr;
  const Tokenizer* tokenizer = nullptr;
  SegmentStore* store = nullptr;
  std::span<std::byte> arena;  // store->arena_pages() pages
  std::span<std::byte>
      data_plane;  // formatted (common/shm/data_plane.h), with plan.num_slots slots
};

// Returns RESOURCE_EXHAUSTED if the device has less memory than the plan says.
absl::StatusOr<EngineParts> AssembleEngine(const EngineEnvironment& environment,
                                           const MemoryPlan& plan,
                                           const WaveIndexSettings& settings);

}  // namespace retroinfer
