#include "gpu_worker/server/served_engine.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/status/status_macros.h"
#include "gpu_worker/engine/engine_assembly.h"
#include "gpu_worker/engine/linked_segment_store.h"
#include "gpu_worker/engine/local_engine.h"
#include "gpu_worker/model/checkpoint.h"
#include "gpu_worker/model/fingerprint.h"
#include "gpu_worker/model/generation_config.h"
#include "gpu_worker/model/transformer.h"
#include "gpu_worker/store_link/store_link.h"
#include "gpu_worker/wave_index/wave_index_settings.h"
#include "spdlog/spdlog.h"

namespace retroinfer {
namespace {

constexpr int64_t kPrefillRows = 1024;  // tokens of a prefill slice
constexpr int64_t kMinModelLen = 1024;  // what a server must be able to hold at least

WaveIndexSettings IndexSettings(const WorkerOptions& options) {
  WaveIndexSettings settings;
  settings.dense_below = options.dense_below;
  if (options.wave_index == "paper") {
    settings.centre_keys = false;
    settings.radius_weight = 0;
  }
  return settings;
}

size_t AvailableBytes(const ComputeBackend& backend, const WorkerOptions& options) {
  if (options.memory_bytes == 0) return backend.memory_bytes;
  return std::min<size_t>(options.memory_bytes, backend.device->info().memory_bytes);
}

// The fingerprint also covers what the index does to a segment's bytes, and what computes them:
// backends round differently.
std::string SegmentFingerprint(const Fingerprint& model, const ComputeBackend& backend,
                               const WaveIndexSettings& settings) {
  FingerprintBuilder builder;
  builder.AddFingerprint("model", model);
  builder.AddBytes("backend", std::as_bytes(std::span(backend.device->info().backend)));
  builder.AddInt("kv_dtype", static_cast<int64_t>(backend.kv_dtype));
  builder.AddInt("compute_dtype", static_cast<int64_t>(backend.compute_dtype));
  builder.AddInt("segment_version", kSegmentVersion);
  builder.AddInt("kmeans_rounds", settings.kmeans_rounds);
  builder.AddInt("centre_keys", settings.centre_keys ? 1 : 0);
  const Fingerprint fingerprint = builder.Finish();
  return std::string(reinterpret_cast<const char*>(fingerprint.data()), fingerprint.size());
}

std::string StoreTarget(const WorkerOptions& options) {
  return absl::StrCat("unix:", options.store_socket_dir, "/kv_store.sock");
}

absl::StatusOr<std::unique_ptr<StoreLink>> ConnectStore(const WorkerOptions& options,
                                                        const KvGeometry& geometry,
                                                        const std::string& fingerprint,
                                                        size_t block_cache_bytes) {
  StoreLinkOptions link{.target = StoreTarget(options),
                        .geometry = geometry,
                        .model_fingerprint = fingerprint,
                        .num_slots = static_cast<uint32_t>(block_cache_bytes / kPageBytes)};
  // Room for a snapshot of the whole cache and as many entries again.
  link.log_capacity = std::clamp(std::bit_ceil(2 * link.num_slots + 64), DataPlane::kLogCapacityMin,
                                 DataPlane::kLogCapacityMax);
  return StoreLink::Connect(std::move(link));
}

// With max_model_len 0 in `options`: the model's length, or the largest half, quarter, ... that
// fits.
absl::StatusOr<MemoryPlan> PlanFor(const WorkerOptions& options, const ModelConfig& config,
                                   MemoryPlanInput input) {
  input.max_model_len = options.max_model_len != 0 ? options.max_model_len : config.context_length;
  while (true) {
    absl::StatusOr<MemoryPlan> plan = PlanMemory(input);
    if (plan.ok() || options.max_model_len != 0 || input.max_model_len / 2 < kMinModelLen) {
      return plan;
    }
    input.max_model_len /= 2;
  }
}

// One short request through the whole engine, so that the first client does not pay for first use.
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

absl::Status WarmUp(Engine& engine) {
  auto sink = std::make_shared<WarmUpSink>();
  GenerationRequest request;
  request.request_id = "warm-up";
  request.prompt.assign(16, 0);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 4;
  request.sampling.ignore_eos = true;
  RETURN_IF_ERROR(engine.Submit(std::move(request), sink));
  return sink->Wait();
}

class LoadedEngine final : public ServedEngine {
 public:
  LoadedEngine(const WorkerOptions& options, ComputeBackend backend)
      : options_(options), backend_(std::move(backend)), settings_(IndexSettings(options)) {}
  ~LoadedEngine() override {
    if (link_ != nullptr) link_->SetReattachCallback(nullptr);
  }

  absl::Status Load();
  const ServedModel& model() const override { return model_; }
  Engine& engine() override { return *engine_; }

 private:
  absl::Status ReadFolder();
  absl::Status AttachAndPlan(const Checkpoint& checkpoint);
  absl::Status StartEngine(const Checkpoint& checkpoint);
  void DescribeModel();

  const WorkerOptions options_;
  // In the order of construction; destroyed in reverse.
  ComputeBackend backend_;
  const WaveIndexSettings settings_;
  ModelConfig config_;
  GenerationConfig generation_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> chat_template_;
  ServedModel model_;
  MemoryPlan plan_;
  std::string segment_fingerprint_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Stream> background_;
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<StoreLink> link_;
  std::unique_ptr<LinkedSegmentStore> store_;
  std::unique_ptr<LocalEngine> engine_;
};

absl::Status LoadedEngine::Load() {
  RETURN_IF_ERROR(ReadFolder());
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(options_.model_folder));
  RETURN_IF_ERROR(AttachAndPlan(checkpoint));
  RETURN_IF_ERROR(StartEngine(checkpoint));
  RETURN_IF_ERROR(WarmUp(*engine_));
  DescribeModel();
  spdlog::info("{}", plan_.ToString());
  return absl::OkStatus();
}

absl::Status LoadedEngine::ReadFolder() {
  ASSIGN_OR_RETURN(config_, LoadModelConfig(options_.model_folder));
  ASSIGN_OR_RETURN(generation_, LoadGenerationConfig(options_.model_folder, config_));
  ASSIGN_OR_RETURN(tokenizer_, Tokenizer::Load(options_.model_folder));
  chat_template_ = std::make_unique<ChatTemplate>(ChatTemplate::Create(*tokenizer_));
  if (tokenizer_->vocab_size() > config_.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        options_.model_folder, ": the tokenizer has ", tokenizer_->vocab_size(),
        " tokens, the model's vocabulary ", config_.vocab_size, ": they do not belong together"));
  }
  return absl::OkStatus();
}

absl::Status LoadedEngine::AttachAndPlan(const Checkpoint& checkpoint) {
  const KvGeometry geometry = config_.geometry(backend_.kv_dtype);
  RETURN_IF_ERROR(geometry.Validate());
  const size_t available = AvailableBytes(backend_, options_);
  const auto for_slots = static_cast<size_t>(
      static_cast<double>(available - std::min(available, checkpoint.total_bytes())) *
      backend_.block_cache_share);
  const size_t cache_bytes = options_.block_cache_bytes != 0 ? options_.block_cache_bytes
                                                             : DefaultBlockCacheBytes(for_slots);
  ASSIGN_OR_RETURN(const Fingerprint fingerprint,
                   ModelFingerprint(config_, checkpoint,
                                    {.num_threads = backend_.device->info().num_processors}));
  segment_fingerprint_ = SegmentFingerprint(fingerprint, backend_, settings_);
  ASSIGN_OR_RETURN(link_, ConnectStore(options_, geometry, segment_fingerprint_, cache_bytes));
  store_ = std::make_unique<LinkedSegmentStore>(*link_);
  ASSIGN_OR_RETURN(
      plan_, PlanFor(options_, config_,
                     {.geometry = geometry,
                      .hidden_size = config_.hidden_size,
                      .vocab_size = config_.vocab_size,
                      .activation_bytes_per_element = DTypeBytes(backend_.ops->activation_dtype()),
                      .weight_bytes = checkpoint.total_bytes(),
                      .max_batch = options_.max_batch,
                      .dense_below = options_.dense_below,
                      .arena_pages = link_->arena_pages(),
                      .available_bytes = available,
                      .dense_kv_bytes = options_.dense_kv_bytes,
                      .block_cache_bytes = cache_bytes}));
  return absl::OkStatus();
}

absl::Status LoadedEngine::StartEngine(const Checkpoint& checkpoint) {
  Device& device = *backend_.device;
  ASSIGN_OR_RETURN(compute_, device.CreateStream(StreamKind::kCompute));
  ASSIGN_OR_RETURN(background_, device.CreateStream(StreamKind::kBackground));
  int last_tenth = -1;
  const auto progress = [&last_tenth](size_t done, size_t total) {
    const int tenth = total == 0 ? 10 : static_cast<int>(done * 10 / total);
    if (tenth != last_tenth) spdlog::info("weights: {} of {} MiB", done >> 20, total >> 20);
    last_tenth = tenth;
  };
  ASSIGN_OR_RETURN(transformer_, Transformer::Load(device, *backend_.ops, config_, checkpoint,
                                                   {.max_prefill_rows = kPrefillRows,
                                                    .max_decode_rows = options_.max_batch,
                                                    .max_positions = plan_.max_model_len,
                                                    .progress = progress}));
  ASSIGN_OR_RETURN(EngineParts parts, AssembleEngine({.device = &device,
                                                      .ops = backend_.ops.get(),
                                                      .compute = compute_.get(),
                                                      .background = background_.get(),
                                                      .model = transformer_.get(),
                                                      .tokenizer = tokenizer_.get(),
                                                      .store = store_.get(),
                                                      .arena = link_->arena(),
                                                      .data_plane = link_->data_plane().memory()},
                                                     plan_, settings_));
  link_->SetReattachCallback([cache = parts.cache.get()] { cache->RequestSnapshot(); });
  ASSIGN_OR_RETURN(
      engine_,
      LocalEngine::Start({.plan = plan_,
                          .eos_token_ids = generation_.eos_token_ids,
                          .segment_fingerprint = segment_fingerprint_,
                          .max_live_requests = static_cast<size_t>(options_.max_queued_requests),
                          .prefill_rows = kPrefillRows},
                         std::move(parts)));
  return absl::OkStatus();
}

void LoadedEngine::DescribeModel() {
  model_.tokenizer = tokenizer_.get();
  model_.chat_template = chat_template_.get();
  const std::filesystem::path folder =
      std::filesystem::path(options_.model_folder).lexically_normal();
  const std::string folder_name =
      folder.has_filename() ? folder.filename().string() : folder.parent_path().filename().string();
  model_.name = options_.served_model_name.empty() ? folder_name : options_.served_model_name;
  model_.architecture = std::string(ModelFamilyName(config_.family));
  model_.vocab_size = static_cast<int32_t>(config_.vocab_size);
  model_.num_layers = static_cast<int32_t>(config_.num_layers);
  model_.num_query_heads = static_cast<int32_t>(config_.num_query_heads);
  model_.num_kv_heads = static_cast<int32_t>(config_.num_kv_heads);
  model_.head_dim = static_cast<int32_t>(config_.head_dim);
  model_.compute_dtype = std::string(DTypeName(backend_.compute_dtype));
  model_.kv_dtype = std::string(DTypeName(backend_.kv_dtype));
  model_.backend = backend_.device->info().backend;
  model_.device_name = backend_.device->info().name;
  model_.eos_token_ids = generation_.eos_token_ids;
  model_.segment_fingerprint = segment_fingerprint_;
  model_.dense_below = options_.dense_below;
  model_.store_target = StoreTarget(options_);
  model_.default_attention = options_.default_attention;
  if (options_.wave_index == "paper") {
    model_.default_attention.ranking = GroupRanking::kSumOfSoftmax;
  }

  SamplingParams& sampling = model_.default_sampling;
  sampling.max_tokens = options_.default_max_tokens;
  sampling.temperature = generation_.temperature.value_or(sampling.temperature);
  if (generation_.do_sample.has_value() && !*generation_.do_sample) sampling.temperature = 0;
  sampling.top_p = generation_.top_p.value_or(sampling.top_p);
  sampling.top_k = generation_.top_k.value_or(sampling.top_k);
  sampling.min_p = generation_.min_p.value_or(sampling.min_p);
  sampling.repetition_penalty =
      generation_.repetition_penalty.value_or(sampling.repetition_penalty);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServedEngine>> LoadServedEngine(const WorkerOptions& options,
                                                               ComputeBackend backend) {
  auto engine = std::make_unique<LoadedEngine>(options, std::move(backend));
  RETURN_IF_ERROR(engine->Load());
  return engine;
}

}  // namespace retroinfer
