// The processes that share the model with this one, which is rank 0: from their start to the first
// command. What a rank above 0 does meanwhile is in served_rank.h.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/service/service_notifier.h"
#include "common/shm/sealed_memory.h"
#include "gpu_worker/assembly/compute_backend.h"
#include "gpu_worker/assembly/engine_plan.h"
#include "gpu_worker/assembly/served_engine_options.h"
#include "gpu_worker/engine/memory_plan.h"
#include "gpu_worker/executor/command_codec.h"
#include "gpu_worker/ops/collective/rank_memory.h"
#include "gpu_worker/ranks/joint_segment_store.h"
#include "gpu_worker/ranks/rank_group.h"
#include "gpu_worker/ranks/rank_handshake.h"
#include "gpu_worker/ranks/rank_process.h"
#include "gpu_worker/ranks/rank_watch.h"
#include "gpu_worker/store_link/store_link.h"

namespace retroinfer {

// What a process says of itself that has its part of the model; `agreed` as AgreedSettings().
RankHello HelloOf(const ServedEngineOptions& options, const ComputeBackend& backend,
                  const std::string& agreed, const PlannedMemory& memory);

// Threads: one. Methods are called once each, in their order.
// Owns:    the processes, which end with it. `notifier` outlives it.
class OtherRanks {
 public:
  // Starts the processes of ranks 1 to options.num_ranks - 1, which make their backends at the same
  // time as this one and begin to load.
  //
  // Returns: INVALID_ARGUMENT without options.rank_program; as RankProcess::Start().
  static absl::StatusOr<std::unique_ptr<OtherRanks>> Start(const ServedEngineOptions& options,
                                                           const common::ServiceNotifier& notifier);

  // Their logs are opened again, too. Any time.
  void ReopenLogs();

  // What the devices of all ranks share, for CreateBackend(). If a rank ends meanwhile, it is
  // ended.
  RankMemory& memory() { return *memory_; }

  // As MeetRanks(), HandOverMemory(), AwaitReady().
  absl::StatusOr<SharedPlan> Meet(const RankHello& own);
  absl::Status HandOver(const PlannedMemory& memory, StoreLink& link);
  // When a rank is lost later, this process ends, for its supervisor to start all of them again;
  // what is in the store stays. The group is destroyed before the ranks.
  absl::StatusOr<std::unique_ptr<RankGroup>> Join(const MemoryPlan& plan, const CodecLimits& limits,
                                                  JointSegmentStore& store);

 private:
  OtherRanks(const ServedEngineOptions& options, const common::ServiceNotifier& notifier);

  // `has_pieces`: for GPUs that may turn out not to reach each other.
  absl::Status MakeMemory(int num_ranks, bool has_pieces);
  [[noreturn]] void EndProcess(int rank, const absl::Status& status);

  const absl::Duration answer_limit_;
  const HandshakeLimits limits_;
  common::SealedMemory shared_;
  std::optional<RankMemory> memory_;
  std::vector<std::unique_ptr<RankProcess>> processes_;
  std::vector<RankChannel*> channels_;
  std::unique_ptr<RankWatch> watch_;  // until Join()
};

}  // namespace retroinfer
