#include "gpu_worker/assembly/rank_gpus.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

constexpr char kCudaList[] = "cuda:";

// "0 (NVIDIA H100), 1 (NVIDIA H100)", or "none".
std::string Listed(const std::vector<std::string>& gpus) {
  std::vector<std::string> numbered;
  for (const std::string& gpu : gpus) {
    numbered.push_back(absl::StrCat(numbered.size(), " (", gpu, ")"));
  }
  return numbered.empty() ? "none" : absl::StrJoin(numbered, ", ");
}

}  // namespace

absl::StatusOr<int> GpuOfRank(const ServedEngineOptions& options) {
  if (!absl::StartsWith(options.device, kCudaList)) return options.rank;
  std::vector<int> ordinals;
  for (const std::string& name : std::vector<std::string>(
           absl::StrSplit(options.device.substr(sizeof(kCudaList) - 1), ','))) {
    int ordinal = -1;
    const bool is_new = absl::SimpleAtoi(name, &ordinal) && ordinal >= 0 &&
                        std::find(ordinals.begin(), ordinals.end(), ordinal) == ordinals.end();
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--device is '", options.device, "': use auto, cpu, cuda, cuda:N or cuda:N,M,..."));
    }
    ordinals.push_back(ordinal);
  }
  const auto num_ranks = static_cast<size_t>(options.num_ranks);
  if (ordinals.size() == 1) return ordinals.front() + options.rank;
  if (ordinals.size() == num_ranks) return ordinals[static_cast<size_t>(options.rank)];
  return absl::InvalidArgumentError(absl::StrCat("--device names ", ordinals.size(),
                                                 " GPUs, --tensor-parallel is ", options.num_ranks,
                                                 ": name one a rank, or the first one alone"));
}

absl::Status CheckGpusOfRanks(const ServedEngineOptions& options,
                              const std::vector<std::string>& gpus) {
  if (options.device == "cpu" || (options.device == "auto" && gpus.empty())) {
    return absl::OkStatus();
  }
  ServedEngineOptions of_rank = options;
  std::vector<size_t> ordinals;
  for (of_rank.rank = 0; of_rank.rank < options.num_ranks; ++of_rank.rank) {
    ASSIGN_OR_RETURN(const int ordinal, GpuOfRank(of_rank));
    ordinals.push_back(static_cast<size_t>(ordinal));
    const std::string wanted = absl::StrCat("--tensor-parallel ", options.num_ranks, ": rank ",
                                            of_rank.rank, " would compute on GPU ", ordinal);
    if (ordinals.back() >= gpus.size()) {
      return absl::FailedPreconditionError(absl::StrCat(
          wanted, "; the GPUs of this machine are ", Listed(gpus),
          ". Use fewer ranks, others with --device cuda:N,M,..., or a machine with more"));
    }
    if (gpus[ordinals.back()] == gpus[ordinals.front()]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(wanted, ", another kind than rank 0's; the GPUs of this machine are ",
                     Listed(gpus), ". Name some of one kind with --device cuda:N,M,..."));
  }
  return absl::OkStatus();
}

}  // namespace retroinfer
