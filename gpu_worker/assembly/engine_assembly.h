// Builds what an engine runs on: KV memory, block cache and policies, from a memory plan.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "gpu_worker/engine/local_engine.h"
#include "gpu_worker/engine/memory_plan.h"
#include "gpu_worker/measuring/synthetic/synthetic_context.h"
#include "gpu_worker/wave_index/wave_index_settings.h"

namespace retroinfer {

// Everything outlives the engine.
struct EngineEnvironment {
  Device* device = nullptr;
  Ops* ops = nullptr;
  Stream* compute = nullptr;
  Stream* background = nullptr;
  Transformer* model = nullptr;
  Transformer* draft_model = nullptr;  // where the plan has one, on rank 0: of its model_options()
  const Tokenizer* tokenizer = nullptr;
  SegmentStore* store = nullptr;
  std::span<std::byte> arena;  // store->arena_pages() pages
  std::span<std::byte>
      data_plane;  // formatted (common/shm/data_plane.h), with plan.num_slots slots
  RetrievalObserver* observer = nullptr;  // of policy wave; may be null
  Stretches stretches;
};

// Returns RESOURCE_EXHAUSTED if the device has less memory than the plan says.
absl::StatusOr<EngineParts> AssembleEngine(const EngineEnvironment& environment,
                                           const MemoryPlan& plan,
                                           const WaveIndexSettings& settings);

// What synthetic contexts of up to `max_tokens`, prompt and output included, are made of.
SyntheticShape SyntheticShapeOf(const ModelConfig& config, const KvGeometry& geometry,
                                int64_t max_tokens, std::optional<double> overlap);

// Device bytes that AddSyntheticContexts takes: MemoryPlanInput::synthetic_bytes.
size_t SyntheticBytes(const SyntheticShape& shape, DType activation_dtype, int32_t max_batch);

// Puts plan.synthetic_tokens tokens of context before every prompt, and other queries in the place
// of the model's, by `overlap` (SyntheticShape) and for requests that retrieve as `attention` says.
// Requests must share no segments then (LocalEngineOptions::share_segments).
//
// Returns RESOURCE_EXHAUSTED if the device has less memory than that needs.
absl::Status AddSyntheticContexts(const EngineEnvironment& environment, const MemoryPlan& plan,
                                  std::optional<double> overlap, ExecutorParts& parts,
                                  const AttentionSettings& attention = {});

}  // namespace retroinfer
