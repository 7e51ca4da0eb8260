#include "gpu_worker/assembly/other_ranks.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/build_info/build_info.h"
#include "common/status/status_macros.h"
#include "spdlog/spdlog.h"

namespace retroinfer {
namespace {

// Between signs of progress, while others are waited for.
constexpr absl::Duration kLongestWait = absl::Minutes(5);
// For the kernel to say how a process has ended whose socket is closed.
constexpr absl::Duration kEndLimit = absl::Seconds(1);

}  // namespace

RankHello HelloOf(const ServedEngineOptions& options, const ComputeBackend& backend,
                  const std::string& agreed, const PlannedMemory& memory) {
  return {.version = common::kBuildVersion,
          .revision = common::kBuildRevision,
          .rank = static_cast<uint32_t>(options.rank),
          .num_ranks = static_cast<uint32_t>(options.num_ranks),
          .fingerprint = agreed,
          .backend = backend.device->info().backend,
          .device_name = backend.device->info().name,
          .available_bytes = memory.available_bytes,
          .weight_bytes = memory.weight_bytes};
}

OtherRanks::OtherRanks(const ServedEngineOptions& options, const common::ServiceNotifier& notifier)
    : answer_limit_(options.rank_timeout), limits_({.on_wait = [&notifier] {
        notifier.Progress("waiting for the other ranks", kLongestWait);
      }}) {}

absl::StatusOr<std::unique_ptr<OtherRanks>> OtherRanks::Start(
    const ServedEngineOptions& options, const common::ServiceNotifier& notifier) {
  if (options.rank_program.empty()) {
    return absl::InvalidArgumentError("several ranks need a program to start them by");
  }
  auto ranks = absl::WrapUnique(new OtherRanks(options, notifier));
  RETURN_IF_ERROR(ranks->MakeMemory(options.num_ranks, options.device != "cpu"));
  for (int rank = 1; rank < options.num_ranks; ++rank) {
    std::vector<std::string> arguments = options.rank_program;
    arguments.push_back(absl::StrCat("--rank=", rank));
    ASSIGN_OR_RETURN(auto process, RankProcess::Start(std::move(arguments), ranks->shared_.fd()));
    spdlog::info("rank {} is process {}", rank, process->pid());
    ranks->channels_.push_back(&process->channel());
    ranks->processes_.push_back(std::move(process));
  }
  std::vector<int> sockets;
  for (const RankChannel* const channel : ranks->channels_) sockets.push_back(channel->fd());
  // Whoever waits for the devices of others goes on; what has ended is found out by who asks.
  ASSIGN_OR_RETURN(ranks->watch_,
                   RankWatch::Start(std::move(sockets), absl::InfiniteDuration(),
                                    [memory = &*ranks->memory_](
                                        size_t /*rank*/, absl::Status /*why*/) { memory->End(); }));
  return ranks;
}

absl::Status OtherRanks::MakeMemory(int num_ranks, bool has_pieces) {
  const size_t piece_bytes = has_pieces ? RankMemory::kPieceBytes : 0;
  const uint64_t bytes = RankMemory::Bytes(num_ranks, RankMemory::kTurnBytes, piece_bytes);
  ASSIGN_OR_RETURN(shared_, common::SealedMemory::Create("retroinfer ranks", bytes, 1));
  RETURN_IF_ERROR(
      RankMemory::Format(shared_.bytes(), num_ranks, RankMemory::kTurnBytes, piece_bytes));
  ASSIGN_OR_RETURN(memory_, RankMemory::Attach(shared_.bytes(), {.num_ranks = num_ranks}));
  return absl::OkStatus();
}

void OtherRanks::ReopenLogs() {
  for (const auto& process : processes_) process->Signal(SIGHUP);
}

absl::StatusOr<SharedPlan> OtherRanks::Meet(const RankHello& own) {
  return MeetRanks(channels_, own, limits_);
}

absl::Status OtherRanks::HandOver(const PlannedMemory& memory, StoreLink& link) {
  std::vector<std::vector<int>> descriptors;
  for (uint32_t rank = 1; rank <= channels_.size(); ++rank) {
    descriptors.push_back({link.arena_fd(), link.plane_fd(rank)});
  }
  return HandOverMemory(
      channels_,
      {.available_bytes = memory.available_bytes,
       .weight_bytes = memory.weight_bytes,
       .arena_pages = memory.arena_pages,
       .draft_weight_bytes = memory.draft.has_value() ? memory.draft->weight_bytes : 0},
      descriptors);
}

absl::StatusOr<std::unique_ptr<RankGroup>> OtherRanks::Join(const MemoryPlan& plan,
                                                            const CodecLimits& limits,
                                                            JointSegmentStore& store) {
  RETURN_IF_ERROR(AwaitReady(channels_, plan.ToString(), limits_));
  watch_.reset();  // the group has one of its own
  return RankGroup::Start(
      channels_, {.limits = limits,
                  .answer_limit = answer_limit_,
                  .on_written =
                      [&store](int rank, const WrittenSegment& written) {
                        return store.NoteWritten(rank, written);
                      },
                  .on_lost = [this](int rank, absl::Status status) { EndProcess(rank, status); }});
}

void OtherRanks::EndProcess(int rank, const absl::Status& status) {
  spdlog::critical("rank {} is lost: {} ({}); this process ends, so that all ranks start again",
                   rank, std::string(status.message()),
                   processes_[static_cast<size_t>(rank) - 1]->DescribeEnd(kEndLimit));
  // One that hangs does not see that the socket is closed, and holds its device.
  for (const auto& process : processes_) process->Signal(SIGKILL);
  ::_exit(EXIT_FAILURE);
}

}  // namespace retroinfer
