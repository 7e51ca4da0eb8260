#include "gpu_worker/assembly/compute_backend.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/assembly/gpu_nodes.h"
#include "gpu_worker/assembly/rank_gpus.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/ops/backend/cpu/cpu_needs.h"
#include "gpu_worker/ops/backend/cpu/cpu_ops.h"
#include "spdlog/spdlog.h"

namespace retroinfer {
namespace {

// The rest of the machine is for the arena and everybody else.
constexpr double kCpuMemoryShare = 0.5;
// What is ahead of a short prompt is most of what it waits for here, and short passes cost a CPU
// little (docs/benchmarks.md has what).
// A CPU reads a cached token in a small part of the time that it takes to compute one, and a
// client's patience ends sooner.
constexpr Stretches kCpuStretches{.least_tokens = kPrefillSegmentTokens, .share_of_prefix = 0};
constexpr AheadShares kCpuAhead{.all = 0.2, .pass = 0.1};

absl::Status WrongDevice(const std::string& name) {
  return absl::InvalidArgumentError(
      absl::StrCat("--device is '", name, "': use auto, cpu, cuda, cuda:N or cuda:N,M,..."));
}

// Says why the CPU computes in the place of a GPU, if it may. A program that was built without CUDA
// was meant to.
absl::Status LeaveGpu(const absl::Status& why) {
  const std::optional<std::string> node = FindGpuNode();
  if (HasCuda()) {
    RETURN_IF_ERROR(MayComputeOnCpu(why, node, std::getenv("CUDA_VISIBLE_DEVICES")));
  }
  const bool is_expected = !HasCuda() && !node.has_value();
  spdlog::log(is_expected ? spdlog::level::info : spdlog::level::warn,
              "computing on the CPU, which is slow for all but small models: {}",
              std::string(why.message()));
  return absl::OkStatus();
}

// Ranks share the cores.
int32_t ThreadsOfRank(const ServedEngineOptions& options) {
  if (options.num_ranks == 1) return options.num_threads;
  const auto cores = static_cast<int32_t>(std::thread::hardware_concurrency());
  const int32_t all = options.num_threads > 0 ? options.num_threads : cores;
  return std::max(1, all / options.num_ranks);
}

}  // namespace

absl::StatusOr<DType> ParseDType(const std::string& name, const char* option, DType otherwise) {
  if (name == "auto") return otherwise;
  if (name == "bf16") return DType::kBf16;
  if (name == "f32") return DType::kF32;
  return absl::InvalidArgumentError(
      absl::StrCat(option, " is '", name, "': use auto, bf16 or f32"));
}

absl::StatusOr<KvFormat> ParseKvFormat(const ServedEngineOptions& options, DType otherwise,
                                       const BackendNeeds& needs) {
  const std::string_view pages =
      options.kv_dtype == "auto" ? DTypeName(otherwise) : std::string_view(options.kv_dtype);
  absl::StatusOr<KvFormat> format =
      KvFormatNamed(pages, IndexNameFor(needs, pages, options.index_dtype));
  if (format.ok()) return format;
  return absl::InvalidArgumentError(absl::StrCat(
      "--kv-dtype, --index-dtype: ", std::string(format.status().message()), ", and auto"));
}

absl::StatusOr<ComputeBackend> CreateCpuBackend(const ServedEngineOptions& options,
                                                RankMemory* ranks) {
  ComputeBackend backend;
  ASSIGN_OR_RETURN(backend.compute_dtype,
                   ParseDType(options.compute_dtype, "--compute-dtype", DType::kBf16));
  ASSIGN_OR_RETURN(backend.kv_format, ParseKvFormat(options, backend.compute_dtype, kCpuNeeds));
  auto device =
      std::make_unique<CpuDevice>(CpuDeviceOptions{.num_threads = ThreadsOfRank(options)});
  backend.ops = std::make_unique<CpuOps>(
      *device,
      backend.compute_dtype == DType::kBf16 ? ComputePrecision::kBf16 : ComputePrecision::kF32,
      ranks);
  backend.needs = kCpuNeeds;
  backend.ahead = kCpuAhead;
  backend.stretches = kCpuStretches;
  backend.device = std::move(device);
  backend.memory_bytes =
      static_cast<size_t>(static_cast<double>(backend.device->info().memory_bytes) *
                          kCpuMemoryShare / options.num_ranks);
  return backend;
}

absl::StatusOr<ComputeBackend> CreateBackend(const ServedEngineOptions& options,
                                             RankMemory* ranks) {
  const std::string& name = options.device;
  if (name == "cpu") return CreateCpuBackend(options, ranks);
  if (name == "auto") {
    if (options.compute_dtype == "f32") {
      spdlog::info("computing on the CPU: a GPU computes in bf16, --compute-dtype is f32");
      return CreateCpuBackend(options, ranks);
    }
    absl::StatusOr<ComputeBackend> cuda = CreateCudaBackend(options, options.rank, ranks);
    if (cuda.ok() || !absl::IsFailedPrecondition(cuda.status())) return cuda;
    RETURN_IF_ERROR(LeaveGpu(cuda.status()));
    return CreateCpuBackend(options, ranks);
  }
  if (name == "cuda") return CreateCudaBackend(options, options.rank, ranks);
  if (!absl::StartsWith(name, "cuda:")) return WrongDevice(name);
  ASSIGN_OR_RETURN(const int ordinal, GpuOfRank(options));
  return CreateCudaBackend(options, ordinal, ranks);
}

}  // namespace retroinfer
