#include "gpu_worker/server/worker.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "common/status/status_macros.h"
#include "gpu_worker/engine/engine_assembly.h"
#include "gpu_worker/engine/linked_segment_store.h"
#include "gpu_worker/engine/local_engine.h"
#include "gpu_worker/model/checkpoint.h"
#include "gpu_worker/model/fingerprint.h"
#include "gpu_worker/model/transformer.h"
#include "gpu_worker/store_link/store_link.h"
#include "spdlog/spdlog.h"

namespace retroinfer {

// In the order of construction; destroyed in reverse.
struct Worker::Parts {
  ComputeBackend backend;
  ModelConfig config;
  GenerationConfig generation;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;
  MemoryPlan plan;
  std::unique_ptr<Stream> compute;
  std::unique_ptr<Stream> background;
  std::unique_ptr<Transformer> model;
  std::unique_ptr<StoreLink> link;
  std::unique_ptr<LinkedSegmentStore> store;
  std::unique_ptr<LocalEngine> engine;
};

namespace {

size_t AvailableBytes(const ComputeBackend& backend, const WorkerOptions& options) {
  if (options.device_memory_bytes != 0) return options.device_memory_bytes;
  return backend.device->info().memory_bytes / 10 * 6;
}

// The fingerprint also covers what the index does to a segment's bytes.
std::string SegmentFingerprint(const Fingerprint& model, const KvGeometry& geometry,
                               const WaveIndexSettings& settings) {
  FingerprintBuilder builder;
  builder.AddFingerprint("model", model);
  builder.AddInt("kv_dtype", static_cast<int64_t>(geometry.dtype));
  builder.AddInt("segment_version", kSegmentVersion);
  builder.AddInt("kmeans_rounds", settings.kmeans_rounds);
  builder.AddInt("centre_keys", settings.centre_keys ? 1 : 0);
  const Fingerprint fingerprint = builder.Finish();
  return std::string(reinterpret_cast<const char*>(fingerprint.data()), fingerprint.size());
}

absl::StatusOr<std::unique_ptr<StoreLink>> ConnectStore(const WorkerOptions& options,
                                                        const KvGeometry& geometry,
                                                        const std::string& fingerprint,
                                                        size_t block_cache_bytes) {
  StoreLinkOptions link{.target = options.store_target,
                        .geometry = geometry,
                        .model_fingerprint = fingerprint,
                        .num_slots = static_cast<uint32_t>(block_cache_bytes / kPageBytes),
                        .attach_timeout = options.attach_timeout};
  // Room for a snapshot of the whole cache and as many entries again.
  link.log_capacity = std::clamp(std::bit_ceil(2 * link.num_slots + 64), DataPlane::kLogCapacityMin,
                                 DataPlane::kLogCapacityMax);
  return StoreLink::Connect(std::move(link));
}

}  // namespace

Worker::Worker(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Worker::~Worker() = default;

absl::StatusOr<std::unique_ptr<Worker>> Worker::Start(ComputeBackend backend,
                                                      const WorkerOptions& options,
                                                      const Progress& progress) {
  auto parts = std::make_unique<Parts>();
  parts->backend = std::move(backend);
  Device& device = *parts->backend.device;
  Ops& ops = *parts->backend.ops;

  ASSIGN_OR_RETURN(parts->config, LoadModelConfig(options.model_folder));
  ASSIGN_OR_RETURN(parts->generation, LoadGenerationConfig(options.model_folder, parts->config));
  ASSIGN_OR_RETURN(parts->tokenizer, Tokenizer::Load(options.model_folder));
  parts->chat_template = std::make_unique<ChatTemplate>(ChatTemplate::Create(*parts->tokenizer));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(options.model_folder));
  const KvGeometry geometry = parts->config.geometry(parts->backend.kv_dtype);
  RETURN_IF_ERROR(geometry.Validate());

  const size_t available = AvailableBytes(parts->backend, options);
  const size_t cache_bytes = options.block_cache_bytes != 0 ? options.block_cache_bytes
                                                            : DefaultBlockCacheBytes(available);
  ASSIGN_OR_RETURN(
      const Fingerprint fingerprint,
      ModelFingerprint(parts->config, checkpoint, {.num_threads = device.info().num_processors}));
  ASSIGN_OR_RETURN(
      parts->link,
      ConnectStore(options, geometry, SegmentFingerprint(fingerprint, geometry, options.wave_index),
                   cache_bytes));
  parts->store = std::make_unique<LinkedSegmentStore>(*parts->link);

  const int64_t max_model_len =
      options.max_model_len != 0 ? options.max_model_len : parts->config.context_length;
  ASSIGN_OR_RETURN(parts->plan,
                   PlanMemory({.geometry = geometry,
                               .hidden_size = parts->config.hidden_size,
                               .vocab_size = parts->config.vocab_size,
                               .activation_bytes_per_element = DTypeBytes(ops.activation_dtype()),
                               .weight_bytes = checkpoint.total_bytes(),
                               .max_model_len = max_model_len,
                               .max_batch = options.max_batch,
                               .dense_below = options.wave_index.dense_below,
                               .arena_pages = parts->link->arena_pages(),
                               .available_bytes = available,
                               .dense_kv_bytes = options.dense_kv_bytes,
                               .block_cache_bytes = cache_bytes}));

  ASSIGN_OR_RETURN(parts->compute, device.CreateStream(StreamKind::kCompute));
  ASSIGN_OR_RETURN(parts->background, device.CreateStream(StreamKind::kBackground));
  ASSIGN_OR_RETURN(parts->model, Transformer::Load(device, ops, parts->config, checkpoint,
                                                   {.max_prefill_rows = options.prefill_rows,
                                                    .max_decode_rows = options.max_batch,
                                                    .max_positions = max_model_len,
                                                    .progress = progress}));
  ASSIGN_OR_RETURN(
      EngineParts engine_parts,
      MakeEngineParts(parts->backend, parts->plan, options, num_query_heads, *parts->compute,
                      *parts->background, *parts->link, *parts->store));
  engine_parts.model = parts->model.get();
  engine_parts.tokenizer = parts->tokenizer.get();
  BlockCache* const cache = engine_parts.cache.get();
  parts->link->SetReattachCallback([cache] { cache->RequestSnapshot(); });
  ASSIGN_OR_RETURN(parts->engine,
                   LocalEngine::Start({.plan = parts->plan,
                                       .eos_token_ids = parts->generation.eos_token_ids,
                                       .max_live_requests = options.max_live_requests,
                                       .prefill_rows = options.prefill_rows},
                                      std::move(engine_parts)));
  spdlog::info("{}", parts->plan.ToString());
  return std::unique_ptr<Worker>(new Worker(std::move(parts)));
}

Engine& Worker::engine() { return *parts_->engine; }
const ModelConfig& Worker::model_config() const { return parts_->config; }
const GenerationConfig& Worker::generation_config() const { return parts_->generation; }
const Tokenizer& Worker::tokenizer() const { return *parts_->tokenizer; }
const ChatTemplate& Worker::chat_template() const { return *parts_->chat_template; }
const MemoryPlan& Worker::memory_plan() const { return parts_->plan; }
const ComputeBackend& Worker::backend() const { return parts_->backend; }

}  // namespace retroinfer
