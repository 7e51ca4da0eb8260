#include "gpu_worker/assembly/served_rank.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/shm/data_plane.h"
#include "common/shm/sealed_memory.h"
#include "common/status/status_macros.h"
#include "gpu_worker/assembly/compute_backend.h"
#include "gpu_worker/assembly/draft_model_source.h"
#include "gpu_worker/assembly/engine_assembly.h"
#include "gpu_worker/assembly/engine_plan.h"
#include "gpu_worker/assembly/model_source.h"
#include "gpu_worker/assembly/other_ranks.h"
#include "gpu_worker/assembly/retrieval_recording.h"
#include "gpu_worker/executor/executor.h"
#include "gpu_worker/model/transformer.h"
#include "gpu_worker/ops/collective/rank_memory.h"
#include "gpu_worker/ranks/rank_follower.h"
#include "gpu_worker/ranks/rank_watch.h"
#include "gpu_worker/ranks/written_segments.h"
#include "gpu_worker/scheduler/cost_model.h"
#include "spdlog/spdlog.h"

namespace retroinfer {
namespace {

constexpr absl::Duration kSendLimit = absl::Minutes(1);

class LoadedRank {
 public:
  LoadedRank(const ServedEngineOptions& options, RankChannel& channel)
      : options_(options), channel_(channel) {}

  // From the model to the first command.
  absl::Status Prepare(common::UniqueFd shared);
  // Until the end of rank 0.
  absl::Status Follow();

 private:
  absl::Status JoinRanks(common::UniqueFd shared);
  absl::Status Load();
  absl::Status TakeMemory();
  absl::Status LeaveRoomForDraftModel(uint64_t weight_bytes);
  absl::Status AdoptMemory(RankMessage message);
  absl::Status Assemble();

  const ServedEngineOptions& options_;
  RankChannel& channel_;
  // In the order of construction; destroyed in reverse.
  common::SealedMemory shared_;
  std::optional<RankMemory> ranks_;
  ComputeBackend backend_;
  WaveIndexSettings settings_;
  std::unique_ptr<ModelSource> source_;
  ModelWeights weights_;
  PlannedMemory memory_;
  MemoryPlan plan_;
  common::SealedMemory arena_;
  common::SealedMemory data_plane_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Stream> background_;
  std::unique_ptr<Transformer> transformer_;
  RetrievalRecording recording_;
  std::unique_ptr<RetrievalRecorder> recorder_;
  WrittenSegments written_;
  CostModel costs_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<CommandRunner> commands_;
};

absl::Status LoadedRank::Prepare(common::UniqueFd shared) {
  RETURN_IF_ERROR(JoinRanks(std::move(shared)));
  RETURN_IF_ERROR(Load());
  RETURN_IF_ERROR(TakeMemory());
  RETURN_IF_ERROR(Assemble());
  return channel_.Send(RankMessageType::kReady, EncodeReady(plan_.ToString()), kSendLimit);
}

absl::Status LoadedRank::Follow() {
  const absl::Status end = RankFollower({.channel = &channel_,
                                         .commands = commands_.get(),
                                         .written = &written_,
                                         .limits = {.vocab_size = source_->config().vocab_size,
                                                    .max_model_len = plan_.max_model_len}})
                               .Run();
  // The recorder's last step. Where the device has failed, `end` says more.
  compute_->Synchronize().IgnoreError();
  return end;
}

absl::Status LoadedRank::JoinRanks(common::UniqueFd shared) {
  ASSIGN_OR_RETURN(shared_, common::SealedMemory::Adopt(std::move(shared), UINT64_MAX));
  ASSIGN_OR_RETURN(ranks_, RankMemory::Attach(shared_.bytes(), ParallelOf(options_)));
  ASSIGN_OR_RETURN(backend_, CreateBackend(options_, &*ranks_));
  settings_ = IndexSettings(options_, backend_.kv_format);
  const DeviceInfo& device = backend_.device->info();
  spdlog::info("computing on {} ({}, {} MiB)", device.name, device.backend,
               device.memory_bytes >> 20);
  return absl::OkStatus();
}

absl::Status LoadedRank::Load() {
  RETURN_IF_ERROR(recording_.Open(options_, backend_.kv_format));
  ASSIGN_OR_RETURN(ModelSource source, ModelSource::Open(options_));
  source_ = std::make_unique<ModelSource>(std::move(source));
  RETURN_IF_ERROR(CheckWeightForm(source_->config(), backend_.needs));
  ASSIGN_OR_RETURN(const size_t of_files,
                   source_->WeightBytesOf(ParallelOf(options_), backend_.needs));
  ASSIGN_OR_RETURN(ModelSource::Loaded loaded,
                   source_->Load(*backend_.device, backend_.ops->model(), backend_.weight_source,
                                 backend_.kv_format, {}, ParallelOf(options_)));
  weights_ = std::move(loaded.weights);
  memory_ = {.available_bytes = AvailableBytes(backend_, options_),
             .weight_bytes =
                 std::max(of_files, backend_.device->allocated_bytes(MemoryPurpose::kWeights))};
  const std::string agreed = AgreedSettings(source_->config(), source_->WeightBytes(backend_.needs),
                                            backend_, settings_, options_);
  return channel_.Send(RankMessageType::kHello,
                       EncodeHello(HelloOf(options_, backend_, agreed, memory_)), kSendLimit);
}

absl::Status LoadedRank::TakeMemory() {
  ASSIGN_OR_RETURN(RankMessage message, channel_.Receive(absl::InfiniteDuration()));
  if (message.type != RankMessageType::kMemory || message.fds.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of type ", static_cast<int>(message.type), " with ",
                     message.fds.size(), " descriptors in the place of arena and data plane"));
  }
  ASSIGN_OR_RETURN(const SharedPlan of_all, DecodeSharedPlan(message.payload));
  memory_ = {.available_bytes = of_all.available_bytes,
             .weight_bytes = of_all.weight_bytes,
             .arena_pages = of_all.arena_pages};
  RETURN_IF_ERROR(LeaveRoomForDraftModel(of_all.draft_weight_bytes));
  ASSIGN_OR_RETURN(plan_, PlanEngine(options_, source_->config(), backend_, settings_, memory_));
  return AdoptMemory(std::move(message));
}

// The draft model is rank 0's alone; the plan is all ranks'.
absl::Status LoadedRank::LeaveRoomForDraftModel(uint64_t weight_bytes) {
  if (options_.draft_model_folder.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const DraftModelSource draft,
                   DraftModelSource::Open(options_, *source_, backend_));
  ASSIGN_OR_RETURN(memory_.draft, draft.ToPlan(backend_));
  memory_.draft->weight_bytes = weight_bytes;
  return absl::OkStatus();
}

absl::Status LoadedRank::AdoptMemory(RankMessage message) {
  const uint64_t bytes = uint64_t{plan_.arena_pages} * plan_.geometry.page_bytes();
  ASSIGN_OR_RETURN(arena_, common::SealedMemory::Adopt(std::move(message.fds[0]), UINT64_MAX));
  if (arena_.bytes().size() < bytes) {
    return absl::InvalidArgumentError(absl::StrCat("an arena of ", arena_.bytes().size(),
                                                   " bytes; ", plan_.arena_pages, " pages need ",
                                                   bytes));
  }
  ASSIGN_OR_RETURN(data_plane_, common::SealedMemory::Adopt(std::move(message.fds[1]), UINT64_MAX));
  ASSIGN_OR_RETURN(const DataPlane plane, DataPlane::Open(data_plane_.bytes()));
  if (plane.num_slots() != plan_.num_slots || plane.arena_pages() != plan_.arena_pages) {
    return absl::InvalidArgumentError(
        absl::StrCat("a data plane of ", plane.num_slots(), " slots for ", plane.arena_pages(),
                     " pages; the plan has ", plan_.num_slots, " for ", plan_.arena_pages));
  }
  return absl::OkStatus();
}

absl::Status LoadedRank::Assemble() {
  Device& device = *backend_.device;
  ASSIGN_OR_RETURN(compute_, device.CreateStream(StreamKind::kCompute));
  ASSIGN_OR_RETURN(background_, device.CreateStream(StreamKind::kBackground));
  ASSIGN_OR_RETURN(transformer_, Transformer::Create(device, *backend_.ops, source_->config(),
                                                     std::move(weights_),
                                                     {.max_prefill_rows = plan_.prefill_rows,
                                                      .max_decode_rows = plan_.max_step_rows,
                                                      .max_positions = plan_.max_model_len,
                                                      .parallel = ParallelOf(options_),
                                                      .progress = {}}));
  ASSIGN_OR_RETURN(recorder_, recording_.TakeRecorder(device, plan_));
  const std::span<std::byte> arena =
      arena_.bytes().first(size_t{plan_.arena_pages} * plan_.geometry.page_bytes());
  const EngineEnvironment environment{.device = &device,
                                      .ops = backend_.ops.get(),
                                      .compute = compute_.get(),
                                      .background = background_.get(),
                                      .model = transformer_.get(),
                                      .tokenizer = &source_->tokenizer(),
                                      .store = &written_,
                                      .arena = arena,
                                      .data_plane = data_plane_.bytes(),
                                      .observer = recorder_.get(),
                                      .stretches = backend_.stretches};
  ASSIGN_OR_RETURN(EngineParts parts, AssembleEngine(environment, plan_, settings_));
  if (options_.synthetic_context != 0) {
    RETURN_IF_ERROR(AddSyntheticContexts(environment, plan_, options_.synthetic_overlap,
                                         parts.executor,
                                         DefaultAttention(options_, backend_.kv_format)));
  }
  ASSIGN_OR_RETURN(
      executor_,
      Executor::Create(std::move(parts.executor),
                       {.geometry = plan_.geometry,
                        .max_batch = plan_.max_step_rows,
                        .max_rows = plan_.prefill_rows,
                        .lane_tokens = {plan_.long_lane_tokens, plan_.short_lane_tokens}},
                       costs_));
  ASSIGN_OR_RETURN(commands_, CommandRunner::Create(*executor_, arena, {}, Drawing::kElsewhere));
  return absl::OkStatus();
}

}  // namespace

absl::Status ServeRank(const ServedEngineOptions& options, common::UniqueFd shared,
                       RankChannel& channel, std::function<void()> on_orphaned) {
  ASSIGN_OR_RETURN(
      const std::unique_ptr<RankWatch> watch,
      RankWatch::Start({channel.fd()}, absl::InfiniteDuration(),
                       [on_orphaned = std::move(on_orphaned)](
                           size_t /*index*/, absl::Status /*why*/) { on_orphaned(); }));
  LoadedRank rank(options, channel);
  if (const absl::Status status = rank.Prepare(std::move(shared)); !status.ok()) {
    // Rank 0 may be gone as well: then nobody is to be told.
    (void)channel.Send(RankMessageType::kFailure, EncodeFailure(status), kSendLimit);
    return status;
  }
  spdlog::info("ready for the commands of rank 0");
  return rank.Follow();
}

}  // namespace retroinfer
