// What follows from a worker's options, its model and its backend: the same in each process that
// has the same of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "gpu_worker/assembly/compute_backend.h"
#include "gpu_worker/assembly/served_engine_options.h"
#include "gpu_worker/engine/memory_plan.h"
#include "gpu_worker/kv/attention_settings.h"
#include "gpu_worker/model/fingerprint.h"
#include "gpu_worker/model/model_config.h"
#include "gpu_worker/ops/collective/tensor_parallel.h"
#include "gpu_worker/wave_index/wave_index_settings.h"

namespace retroinfer {

WaveIndexSettings IndexSettings(const ServedEngineOptions& options, const KvFormat& format);

// What requests that do not say attend by.
AttentionSettings DefaultAttention(const ServedEngineOptions& options, const KvFormat& format);

// Which part of the model this process has.
TensorParallel ParallelOf(const ServedEngineOptions& options);

// Memory of the device for this process.
size_t AvailableBytes(const ComputeBackend& backend, const ServedEngineOptions& options);

// What ranks must have in common beside the bytes of the model's files, which rank 0 hashes: all
// that makes a segment, and the shape of the model. Weights take `weight_bytes` as a whole.
std::string AgreedSettings(const ModelConfig& config, size_t weight_bytes,
                           const ComputeBackend& backend, const WaveIndexSettings& settings,
                           const ServedEngineOptions& options);

// Covers what the index does to a segment's bytes as well, and the backend: backends round apart.
std::string SegmentFingerprint(const Fingerprint& model, const ModelConfig& config,
                               const ComputeBackend& backend, const WaveIndexSettings& settings,
                               const ServedEngineOptions& options);

// What is there for a plan beside the options.
struct PlannedMemory {
  size_t available_bytes = 0;
  size_t weight_bytes = 0;
  uint32_t arena_pages = 0;
  std::optional<MemoryPlanInput::Draft> draft = {};
};

// The plan of an engine, the same for all ranks of a model, whose largest part it has room for;
// `config` is the whole model's. With options.max_model_len 0 for the model's length, or the
// largest half, quarter, ... of it that fits.
//
// Returns: as ShardConfig(); UNIMPLEMENTED or INVALID_ARGUMENT for what the backend has no code
// for; as PlanMemory().
absl::StatusOr<MemoryPlan> PlanEngine(const ServedEngineOptions& options, const ModelConfig& config,
                                      const ComputeBackend& backend,
                                      const WaveIndexSettings& settings,
                                      const PlannedMemory& memory);

}  // namespace retroinfer
