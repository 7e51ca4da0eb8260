#include "gpu_worker/assembly/served_engine.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/config/socket_dir.h"
#include "common/status/status_macros.h"
#include "gpu_worker/assembly/default_sampling.h"
#include "gpu_worker/assembly/draft_model_source.h"
#include "gpu_worker/assembly/engine_assembly.h"
#include "gpu_worker/assembly/engine_plan.h"
#include "gpu_worker/assembly/model_source.h"
#include "gpu_worker/assembly/other_ranks.h"
#include "gpu_worker/assembly/retrieval_recording.h"
#include "gpu_worker/assembly/retrieval_subject.h"
#include "gpu_worker/engine/linked_segment_store.h"
#include "gpu_worker/engine/local_engine.h"
#include "gpu_worker/model/fingerprint.h"
#include "gpu_worker/model/transformer.h"
#include "gpu_worker/ranks/joint_segment_store.h"
#include "gpu_worker/ranks/rank_group.h"
#include "gpu_worker/store_link/store_link.h"
#include "gpu_worker/wave_index/wave_index_settings.h"
#include "spdlog/spdlog.h"
#include "text/constraint/token_vocabulary.h"
#include "text/tokenizer/chat_template.h"

namespace retroinfer {
namespace {

constexpr absl::Duration kLongestStep = absl::Minutes(5);  // between signs of progress

std::string StoreTarget(const ServedEngineOptions& options) {
  return absl::StrCat("unix:", common::SocketDirOf(options.store_socket_dir), "/kv_store.sock");
}

absl::StatusOr<std::unique_ptr<StoreLink>> ConnectStore(const ServedEngineOptions& options,
                                                        const MemoryPlan& plan,
                                                        const std::string& fingerprint) {
  StoreLinkOptions link{.target = StoreTarget(options),
                        .geometry = plan.heads.ArenaOf(plan.geometry),
                        .model_fingerprint = fingerprint,
                        .num_slots = plan.num_slots,
                        .num_planes = static_cast<uint32_t>(options.num_ranks)};
  link.log_capacity = DataPlane::LogCapacityFor(plan.num_slots);
  link.request_capacity = DataPlane::RequestCapacityFor(plan.num_slots);
  return StoreLink::Connect(std::move(link));
}

// Of a request that no client sent.
class WarmUpSink final : public GenerationSink {
 public:
  void OnProgress(const PrefillProgress& /*progress*/) override {}
  void OnOutput(const OutputDelta& /*delta*/) override {}
  void OnFinish(const GenerationResult& result) override {
    status_ = result.status;
    finished_.Notify();
  }
  absl::Status Wait() {
    finished_.WaitForNotification();
    return status_;
  }

 private:
  absl::Notification finished_;
  absl::Status status_;
};

// One short request through the whole engine, so that the first client does not pay for first use.
absl::Status RunOnce(Engine& engine, const AttentionSettings& attention, size_t prompt_tokens) {
  auto sink = std::make_shared<WarmUpSink>();
  GenerationRequest request;
  request.request_id = "warm-up";
  request.prompt.assign(prompt_tokens, 0);
  request.attention = attention;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 4;
  request.sampling.ignore_eos = true;
  request.shares_kv = false;  // made-up tokens are no one's prompt, and take no room
  RETURN_IF_ERROR(engine.Submit(std::move(request), sink));
  return sink->Wait();
}

// Then a few more, from which the engine learns what work costs here: longer ones as long as they
// take next to nothing.
absl::Status WarmUp(LocalEngine& engine, const AttentionSettings& attention) {
  constexpr size_t kFirst = 16, kLongest = 768, kGrowth = 4;
  constexpr absl::Duration kQuick = absl::Milliseconds(100);
  RETURN_IF_ERROR(RunOnce(engine, attention, kFirst));
  engine.ForgetCosts();
  absl::Duration took = absl::ZeroDuration();
  for (size_t tokens = kFirst; tokens <= kLongest && took < kQuick; tokens *= kGrowth) {
    const absl::Time begun = absl::Now();
    RETURN_IF_ERROR(RunOnce(engine, attention, tokens));
    took = absl::Now() - begun;
  }
  return absl::OkStatus();
}

// The template that was asked for, or the folder's. One of the folder that cannot be run is no
// reason not to serve `text`.
absl::StatusOr<ChatTemplate> OpenChatTemplate(const ServedEngineOptions& options,
                                              const Tokenizer& tokenizer) {
  if (!options.chat_template_file.empty()) {
    absl::StatusOr<ChatTemplate> chosen =
        ChatTemplate::CreateFromFile(tokenizer, options.chat_template_file);
    if (chosen.ok()) return chosen;
    return absl::Status(chosen.status().code(),
                        absl::StrCat("--chat-template: ", std::string(chosen.status().message())));
  }
  ChatTemplate own = ChatTemplate::Create(tokenizer);
  if (!own.problem().empty()) {
    spdlog::warn("chat template ({}): {}", own.source(), own.problem());
  }
  return own;
}

// Tells the service manager how much of the weights is there, whenever another hundredth is.
class LoadProgressStatus {
 public:
  LoadProgressStatus(const common::ServiceNotifier& notifier, std::string model)
      : notifier_(notifier), model_(std::move(model)) {}
  void Note(size_t done, size_t total) {
    const int percent = static_cast<int>(done * 100 / std::max<size_t>(1, total));
    if (percent == last_percent_) return;
    last_percent_ = percent;
    notifier_.Progress(absl::StrCat("loading ", model_, ": ", percent, " %"), kLongestStep);
  }

 private:
  const common::ServiceNotifier& notifier_;
  const std::string model_;
  int last_percent_ = -1;
};

class LoadedEngine final : public ServedEngine {
 public:
  LoadedEngine(const ServedEngineOptions& options, std::unique_ptr<OtherRanks> ranks,
               ComputeBackend backend, const common::ServiceNotifier& notifier)
      : options_(options),
        notifier_(notifier),
        ranks_(std::move(ranks)),
        backend_(std::move(backend)),
        settings_(IndexSettings(options, backend_.kv_format)) {}
  ~LoadedEngine() override {
    if (link_ != nullptr) link_->SetReattachCallback(nullptr);
  }

  absl::Status Load();
  const ServedModel& model() const override { return model_; }
  Engine& engine() override { return *engine_; }
  const RankGroup* ranks() const override { return group_.get(); }
  void ReopenRankLogs() override {
    if (ranks_ != nullptr) ranks_->ReopenLogs();
  }

 private:
  SegmentStore* store() const {
    return joint_store_ != nullptr ? static_cast<SegmentStore*>(joint_store_.get()) : store_.get();
  }
  absl::Status PlanAndAttach();
  absl::StatusOr<PlannedMemory> MemoryOfAll();
  absl::Status OpenDraftModel();
  absl::Status StartEngine(ModelWeights weights);
  absl::Status JoinRanks(BlockCache* cache);
  absl::StatusOr<EngineParts> Assemble();
  void DescribeModel();
  void LogWeights() const;

  const ServedEngineOptions options_;
  const common::ServiceNotifier& notifier_;
  // In the order of construction; destroyed in reverse.
  std::unique_ptr<OtherRanks> ranks_;  // null: there are none
  ComputeBackend backend_;
  const WaveIndexSettings settings_;
  std::unique_ptr<ModelSource> source_;
  std::optional<DraftModelSource> draft_source_;  // none: there is no draft model
  std::unique_ptr<ChatTemplate> chat_template_;
  ServedModel model_;
  MemoryPlan plan_;
  std::string segment_fingerprint_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Stream> background_;
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<Transformer> draft_model_;  // null: there is none
  std::unique_ptr<StoreLink> link_;
  std::unique_ptr<LinkedSegmentStore> store_;
  std::unique_ptr<JointSegmentStore> joint_store_;  // null: there are no other ranks
  RetrievalRecording recording_;
  std::unique_ptr<RetrievalRecorder> recorder_;
  std::unique_ptr<RankGroup> group_;
  std::unique_ptr<LocalEngine> engine_;
};

absl::Status LoadedEngine::OpenDraftModel() {
  if (options_.draft_model_folder.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(draft_source_, DraftModelSource::Open(options_, *source_, backend_));
  return absl::OkStatus();
}

absl::Status LoadedEngine::Load() {
  // Before anything else, so that a wrong name is told of at once.
  RETURN_IF_ERROR(recording_.Open(options_, backend_.kv_format));
  ASSIGN_OR_RETURN(ModelSource source, ModelSource::Open(options_));
  source_ = std::make_unique<ModelSource>(std::move(source));
  ASSIGN_OR_RETURN(ChatTemplate chat_template, OpenChatTemplate(options_, source_->tokenizer()));
  chat_template_ = std::make_unique<ChatTemplate>(std::move(chat_template));
  RETURN_IF_ERROR(CheckWeightForm(source_->config(), backend_.needs));
  RETURN_IF_ERROR(OpenDraftModel());
  ASSIGN_OR_RETURN(const size_t weight_bytes,
                   source_->WeightBytesOf(ParallelOf(options_), backend_.needs));
  if (weight_bytes > AvailableBytes(backend_, options_)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(source_->name(), " takes ", weight_bytes >> 20, " MiB of weights; there are ",
                     AvailableBytes(backend_, options_) >> 20, " MiB of memory for the worker"));
  }
  LogWeights();
  LoadProgressStatus progress(notifier_, source_->name());
  ASSIGN_OR_RETURN(
      ModelSource::Loaded loaded,
      source_->Load(
          *backend_.device, backend_.ops->model(), backend_.weight_source, backend_.kv_format,
          [&](size_t done, size_t total) { progress.Note(done, total); }, ParallelOf(options_)));
  if (draft_source_.has_value()) {
    notifier_.Progress(absl::StrCat("loading ", draft_source_->name()), kLongestStep);
    RETURN_IF_ERROR(draft_source_->LoadWeights(backend_));
  }
  model_.subject =
      RetrievalSubjectOf(options_, backend_.kv_format, source_->name(), loaded.fingerprint);
  RETURN_IF_ERROR(CheckRetrieval(options_, model_.subject));
  segment_fingerprint_ =
      SegmentFingerprint(loaded.fingerprint, source_->config(), backend_, settings_, options_);
  RETURN_IF_ERROR(PlanAndAttach());
  notifier_.Progress("allocating memory and warming up", kLongestStep);
  RETURN_IF_ERROR(StartEngine(std::move(loaded.weights)));
  DescribeModel();
  RETURN_IF_ERROR(WarmUp(*engine_, model_.default_attention));
  engine_->StartCounting();
  spdlog::info("{}", plan_.ToString());
  if (options_.synthetic_context != 0) {
    spdlog::info("{} tokens of synthetic context before every prompt", options_.synthetic_context);
  }
  return absl::OkStatus();
}

// How much of the memory all ranks can plan with.
absl::StatusOr<PlannedMemory> LoadedEngine::MemoryOfAll() {
  ASSIGN_OR_RETURN(const size_t of_files,
                   source_->WeightBytesOf(ParallelOf(options_), backend_.needs));
  // A backend may keep more than the files have: an embedding that is an output matrix, too.
  PlannedMemory memory{.available_bytes = AvailableBytes(backend_, options_),
                       .weight_bytes = std::max(
                           of_files, backend_.device->allocated_bytes(MemoryPurpose::kWeights))};
  if (draft_source_.has_value()) {
    memory.weight_bytes =
        std::max(of_files, memory.weight_bytes - draft_source_->allocated_bytes());
    ASSIGN_OR_RETURN(memory.draft, draft_source_->ToPlan(backend_));
  }
  if (ranks_ == nullptr) return memory;
  notifier_.Progress("waiting for the other ranks", kLongestStep);
  const std::string agreed = AgreedSettings(source_->config(), source_->WeightBytes(backend_.needs),
                                            backend_, settings_, options_);
  const RankHello own = HelloOf(options_, backend_, agreed, memory);
  ASSIGN_OR_RETURN(const SharedPlan of_all, ranks_->Meet(own));
  memory.available_bytes = of_all.available_bytes;
  memory.weight_bytes = of_all.weight_bytes;
  return memory;
}

absl::Status LoadedEngine::PlanAndAttach() {
  ASSIGN_OR_RETURN(PlannedMemory memory, MemoryOfAll());
  notifier_.Progress("waiting for the kv store", StoreLinkOptions::kAttachTimeout + kLongestStep);
  ASSIGN_OR_RETURN(const uint32_t arena_pages,
                   StoreLink::AwaitArena(StoreTarget(options_), StoreLinkOptions::kAttachTimeout));
  memory.arena_pages = arena_pages;
  ASSIGN_OR_RETURN(plan_, PlanEngine(options_, source_->config(), backend_, settings_, memory));
  ASSIGN_OR_RETURN(link_, ConnectStore(options_, plan_, segment_fingerprint_));
  if (link_->arena_pages() != arena_pages) {
    return absl::UnavailableError(absl::StrCat(
        "the kv_store_service was restarted with another arena, of ", link_->arena_pages(),
        " pages instead of ", arena_pages, ": start the worker again"));
  }
  store_ = std::make_unique<LinkedSegmentStore>(*link_);
  if (ranks_ == nullptr) return absl::OkStatus();
  joint_store_ = std::make_unique<JointSegmentStore>(*store_, options_.num_ranks);
  return ranks_->HandOver(memory, *link_);
}

absl::StatusOr<EngineParts> LoadedEngine::Assemble() {
  ASSIGN_OR_RETURN(recorder_, recording_.TakeRecorder(*backend_.device, plan_));
  const EngineEnvironment environment{.device = backend_.device.get(),
                                      .ops = backend_.ops.get(),
                                      .compute = compute_.get(),
                                      .background = background_.get(),
                                      .model = transformer_.get(),
                                      .draft_model = draft_model_.get(),
                                      .tokenizer = &source_->tokenizer(),
                                      .store = store(),
                                      .arena = link_->arena(),
                                      .data_plane = link_->data_plane().memory(),
                                      .observer = recorder_.get(),
                                      .stretches = backend_.stretches};
  ASSIGN_OR_RETURN(EngineParts parts, AssembleEngine(environment, plan_, settings_));
  if (options_.synthetic_context != 0) {
    RETURN_IF_ERROR(AddSyntheticContexts(environment, plan_, options_.synthetic_overlap,
                                         parts.executor,
                                         DefaultAttention(options_, backend_.kv_format)));
  }
  return parts;
}

absl::Status LoadedEngine::StartEngine(ModelWeights weights) {
  Device& device = *backend_.device;
  ASSIGN_OR_RETURN(compute_, device.CreateStream(StreamKind::kCompute));
  ASSIGN_OR_RETURN(background_, device.CreateStream(StreamKind::kBackground));
  ASSIGN_OR_RETURN(transformer_,
                   Transformer::Create(device, *backend_.ops, source_->config(), std::move(weights),
                                       {.max_prefill_rows = plan_.prefill_rows,
                                        .max_decode_rows = plan_.max_step_rows,
                                        .max_positions = plan_.max_model_len,
                                        .parallel = ParallelOf(options_),
                                        .progress = {}}));
  if (plan_.draft.has_value()) {
    ASSIGN_OR_RETURN(draft_model_, draft_source_->TakeModel(backend_, *plan_.draft));
  }
  ASSIGN_OR_RETURN(EngineParts parts, Assemble());
  if (parts.executor.draft_model != nullptr) {
    RETURN_IF_ERROR(parts.executor.draft_model->WarmUp());
  }
  RETURN_IF_ERROR(JoinRanks(parts.executor.cache.get()));
  ASSIGN_OR_RETURN(
      engine_,
      LocalEngine::Start(
          {.plan = plan_,
           .eos_token_ids = source_->generation().eos_token_ids,
           .segment_fingerprint = segment_fingerprint_,
           .max_live_requests = static_cast<size_t>(options_.max_queued_requests),
           .max_waiting_tokens = options_.max_waiting_tokens > 0 ? options_.max_waiting_tokens
                                                                 : common::Tenant::kNoLimit,
           .max_expected_wait = options_.max_expected_wait > absl::ZeroDuration()
                                    ? options_.max_expected_wait
                                    : absl::InfiniteDuration(),
           .share_segments = options_.synthetic_context == 0,
           .inter_token_target = options_.inter_token_target,
           .ahead = backend_.ahead,
           .reserves_all = options_.reserve == "all",
           .drafts = options_.speculation == "auto",
           .on_progress =
               [this] {
                 notifier_.Feed();
                 if (joint_store_ != nullptr) joint_store_->Settle();
               },
           .hooks = group_ == nullptr ? CommandHooks() : group_->Hooks()},
          std::move(parts)));
  return absl::OkStatus();
}

// Where there are other ranks, waits for them, and lets them carry out what rank 0 does.
absl::Status LoadedEngine::JoinRanks(BlockCache* cache) {
  if (ranks_ != nullptr) {
    const CodecLimits limits{.vocab_size = source_->config().vocab_size,
                             .max_model_len = plan_.max_model_len};
    ASSIGN_OR_RETURN(group_, ranks_->Join(plan_, limits, *joint_store_));
  }
  link_->SetReattachCallback([cache, group = group_.get()] {
    cache->RequestSnapshot();
    if (group != nullptr) group->RequestSnapshots();
  });
  return absl::OkStatus();
}

void LoadedEngine::LogWeights() const {
  const ModelConfig& config = source_->config();
  const std::string scales = WeightScalesFrom(config, source_->keep());
  if (scales.empty()) return;
  spdlog::info("weights: {}; {}", scales, WeightsInMemory(config, source_->keep(), backend_.needs));
  if (config.has_kv_scheme) {
    spdlog::info("the checkpoint's scales for an 8-bit KV cache have no effect; KV is {}",
                 backend_.kv_format.name);
  }
}

void LoadedEngine::DescribeModel() {
  const ModelConfig& config = source_->config();
  const GenerationConfig& generation = source_->generation();
  model_.tokenizer = &source_->tokenizer();
  model_.chat_template = chat_template_.get();
  model_.name = options_.served_model_name.empty() ? source_->name() : options_.served_model_name;
  model_.architecture = std::string(ModelArchitecture(config.family));
  model_.vocab_size = static_cast<int32_t>(config.vocab_size);
  model_.num_layers = static_cast<int32_t>(config.num_layers);
  model_.num_query_heads = static_cast<int32_t>(config.num_query_heads);
  model_.num_kv_heads = static_cast<int32_t>(config.num_kv_heads);
  model_.head_dim = static_cast<int32_t>(config.head_dim);
  model_.compute_dtype = std::string(DTypeName(backend_.compute_dtype));
  model_.kv_dtype = std::string(PagesName(backend_.kv_format));
  model_.index_dtype = std::string(IndexName(backend_.kv_format));
  model_.weights_dtype = WeightsDtype(config, source_->keep());
  model_.weight_scales = WeightScalesFrom(config, source_->keep());
  model_.backend = backend_.device->info().backend;
  model_.device_name = backend_.device->info().name;
  model_.load_format = options_.load_format;
  if (options_.synthetic_context != 0) {
    model_.synthetic_context = options_.synthetic_context;
    model_.synthetic_overlap = options_.synthetic_overlap;
  }
  model_.eos_token_ids = generation.eos_token_ids;
  model_.constraints =
      std::make_shared<constraint::ConstraintCompiler>(constraint::TokenVocabulary::Create(
          source_->tokenizer(), generation.eos_token_ids, static_cast<int32_t>(config.vocab_size)));
  model_.segment_fingerprint = segment_fingerprint_;
  model_.dense_below = options_.dense_below;
  model_.store_target = StoreTarget(options_);
  model_.default_attention = DefaultAttention(options_, backend_.kv_format);
  model_.min_retrieved = settings_.min_retrieved;
  model_.retrieval = options_.retrieval;
  model_.default_sampling = DefaultSampling(generation);
  model_.default_sampling.max_tokens = options_.default_max_tokens;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServedEngine>> LoadServedEngine(
    const ServedEngineOptions& options, ComputeBackend backend,
    const common::ServiceNotifier& notifier, std::unique_ptr<OtherRanks> ranks) {
  auto engine =
      std::make_unique<LoadedEngine>(options, std::move(ranks), std::move(backend), notifier);
  RETURN_IF_ERROR(engine->Load());
  return engine;
}

}  // namespace retroinfer
