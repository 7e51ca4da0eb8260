// The processor that a worker computes on. main.cc chooses it, once; nothing after it asks which it
// is.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/assembly/served_engine_options.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/kv/sequence_segments.h"
#include "gpu_worker/model/weight_jobs.h"
#include "gpu_worker/ops/backend/backend_needs.h"
#include "gpu_worker/ops/backend/ops.h"
#include "gpu_worker/ops/collective/rank_memory.h"
#include "gpu_worker/scheduler/scheduler.h"

namespace retroinfer {

// `ops` refers to `device` and is destroyed first.
struct ComputeBackend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  KvFormat kv_format;
  DType compute_dtype =
      DType::kBf16;  // of matrix products; f32 weights are multiplied in f32 anyway
  BackendNeeds needs{};
  // What a worker may take where options.memory_bytes does not say, and whether nobody else has a
  // use for what it leaves of that (MemoryPlanInput::owns_memory).
  size_t memory_bytes = 0;
  bool owns_memory = false;
  // How weights come from their files: mapped where the device's memory is the host's.
  WeightSource weight_source = WeightSource::kMapping;
  AheadShares ahead{};    // of the engine's scheduler
  Stretches stretches{};  // of long prompts
};

// The backend that options.device names for the rank of this process: "cpu" (a share of the cores
// and the memory), "cuda" (the GPU of the rank's number), "cuda:N" (counted from N), "cuda:N,M,..."
// (one a rank), or "auto": a GPU if this machine has one that can be used and --compute-dtype is
// not f32, else the CPU. A build with CUDA warns of that, and fails where a GPU lies idle
// (MayComputeOnCpu()).
//
// `ranks` is what the ranks of a model share, which outlives the backend: all of them make theirs
// at the same time. Null: there is one, or nothing will be computed.
//
// Returns: INVALID_ARGUMENT for another name; FAILED_PRECONDITION if a GPU is there that cannot be
//          used, for "auto"; what the named backend returns.
absl::StatusOr<ComputeBackend> CreateBackend(const ServedEngineOptions& options,
                                             RankMemory* ranks = nullptr);

// This machine's cores. Precision "auto" is bf16; KV pages follow the precision of the computation
// unless options.kv_dtype says otherwise.
//
// Returns: INVALID_ARGUMENT for a compute dtype other than "auto", "bf16" and "f32", or a KV format
//          that there is not.
absl::StatusOr<ComputeBackend> CreateCpuBackend(const ServedEngineOptions& options,
                                                RankMemory* ranks = nullptr);

// GPU number `ordinal`, with options.gpu_memory_utilization of its memory. It computes in bf16.
//
// Returns: INVALID_ARGUMENT for a compute dtype of f32; FAILED_PRECONDITION if this program was
// built without CUDA, or without a driver or a GPU; as CudaDevice::Create.
absl::StatusOr<ComputeBackend> CreateCudaBackend(const ServedEngineOptions& options, int ordinal,
                                                 RankMemory* ranks = nullptr);

// Whether this program was built with CUDA.
bool HasCuda();

// The names of the machine's GPUs, by number, as far as CUDA sees them; empty without.
std::vector<std::string> CudaGpuNames();

// The dtype that `option` names: "bf16", "f32", or "auto" for `otherwise`; else INVALID_ARGUMENT.
absl::StatusOr<DType> ParseDType(const std::string& name, const char* option, DType otherwise);

// The KV format that --kv-dtype and --index-dtype name; "auto": pages as `otherwise`, and the index
// as the backend that needs `needs` has it.
absl::StatusOr<KvFormat> ParseKvFormat(const ServedEngineOptions& options, DType otherwise,
                                       const BackendNeeds& needs);

}  // namespace retroinfer
