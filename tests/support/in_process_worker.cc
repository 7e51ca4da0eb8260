#include "tests/support/in_process_worker.h"

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "build_paths.h"
#include "common/log/check.h"
#include "common/shm/data_plane.h"
#include "gpu_worker/assembly/engine_assembly.h"
#include "gpu_worker/model/float4_matrices.h"
#include "gpu_worker/model/padded_heads.h"
#include "gpu_worker/model/stacked_experts.h"
#include "gpu_worker/ops/backend/cpu/cpu_needs.h"
#include "gpu_worker/ops/backend/cuda/cuda_needs.h"
#include "nlohmann/json.hpp"

namespace retroinfer::test_support {
namespace {

template <typename T>
T OrDie(absl::StatusOr<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "in-process worker: %s\n", result.status().ToString().c_str());
    std::abort();
  }
  return *std::move(result);
}

std::unique_ptr<Backend> MakeBackend(ComputePrecision precision) {
  const char* const named = std::getenv("RETROINFER_TEST_BACKEND");
  const std::string name = named != nullptr                      ? named
                           : precision == ComputePrecision::kF32 ? "CpuF32"
                                                                 : "CpuBf16";
  for (const BackendParam& backend : AvailableBackends()) {
    if (backend.name == name) return backend.create();
  }
  std::fprintf(stderr, "this machine has no backend %s\n", name.c_str());
  std::abort();
}

// A formatted data plane inside `storage`, aligned to a cache line.
std::span<std::byte> MakeDataPlane(uint32_t num_slots, uint64_t arena_pages,
                                   std::vector<std::byte>& storage) {
  const DataPlaneHeader header =
      MakeDataPlaneHeader(num_slots, std::bit_ceil(2 * num_slots + 64), 1024, arena_pages);
  storage.resize(header.total_bytes + 4096);
  void* address = storage.data();
  size_t space = storage.size();
  RI_CHECK(std::align(4096, header.total_bytes, address, space) != nullptr);
  const std::span<std::byte> memory(static_cast<std::byte*>(address), header.total_bytes);
  DataPlane::Format(memory, header);
  return memory;
}

// Copies the model with another context length into a new folder.
std::filesystem::path CopyWithContext(const std::filesystem::path& model, int64_t context_length) {
  std::string name = (std::filesystem::temp_directory_path() / "retroinfer-model-XXXXXX").string();
  RI_CHECK(mkdtemp(name.data()) != nullptr);
  std::filesystem::copy(model, name, std::filesystem::copy_options::recursive);
  std::ifstream in(model / "config.json");
  nlohmann::json config = nlohmann::json::parse(in);
  config["max_position_embeddings"] = context_length;
  std::ofstream(std::filesystem::path(name) / "config.json") << config;
  return name;
}

}  // namespace

void CollectingSink::OnProgress(const PrefillProgress& progress) {
  absl::MutexLock lock(&mutex_);
  progress_.push_back(progress);
}

void CollectingSink::OnOutput(const OutputDelta& delta) {
  absl::MutexLock lock(&mutex_);
  RI_CHECK(!finished_);
  for (const OutputToken& token : delta.tokens) {
    tokens_.push_back(token.token);
    logprobs_.push_back(token.logprob);
    measured_[delta.continuation].push_back(token);
  }
  text_ += delta.text;
}

void CollectingSink::OnFinish(const GenerationResult& result) {
  absl::MutexLock lock(&mutex_);
  RI_CHECK(!finished_);
  result_ = result;
  finished_ = true;
}

const GenerationResult& CollectingSink::Wait() {
  absl::MutexLock lock(&mutex_);
  RI_CHECK(mutex_.AwaitWithTimeout(absl::Condition(&finished_), absl::Minutes(2)));
  return result_;
}

bool CollectingSink::finished() const {
  absl::MutexLock lock(&mutex_);
  return finished_;
}
std::vector<int32_t> CollectingSink::tokens() const {
  absl::MutexLock lock(&mutex_);
  return tokens_;
}
std::vector<float> CollectingSink::logprobs() const {
  absl::MutexLock lock(&mutex_);
  return logprobs_;
}
std::map<int32_t, std::vector<OutputToken>> CollectingSink::measured() const {
  absl::MutexLock lock(&mutex_);
  return measured_;
}
std::string CollectingSink::text() const {
  absl::MutexLock lock(&mutex_);
  return text_;
}
std::vector<PrefillProgress> CollectingSink::progress() const {
  absl::MutexLock lock(&mutex_);
  return progress_;
}

namespace {

std::optional<MemoryPlanInput::Draft> DraftOf(const InProcessWorkerOptions& options) {
  if (options.draft_folder.empty()) return std::nullopt;
  return MemoryPlanInput::Draft{.model = OrDie(LoadModelConfig(options.draft_folder.string()))};
}

// As StoredModel::OpenWeights of a folder.
Checkpoint OpenWeights(const std::string& folder, const ModelConfig& config) {
  Checkpoint checkpoint = OrDie(Checkpoint::Open(folder));
  RI_CHECK(PadHeads(config, checkpoint).ok());
  RI_CHECK(UnstackExperts(config, checkpoint).ok());
  RI_CHECK(UnpackFloat4(config, checkpoint).ok());
  return checkpoint;
}

// The model's own tokenizer, or one of the tree's.
std::filesystem::path TokenizerFolderOf(const std::filesystem::path& model_folder) {
  if (std::filesystem::exists(model_folder / "tokenizer.json")) return model_folder;
  return std::filesystem::path(RETROINFER_SOURCE_DIR) / "tests/golden/tokenizer/llama";
}

}  // namespace

InProcessWorker::InProcessWorker(const InProcessWorkerOptions& original) {
  InProcessWorkerOptions options = original;
  if (options.context_length != 0) {
    temporary_folder_ = CopyWithContext(options.model_folder, options.context_length);
    options.model_folder = temporary_folder_;
  }
  backend_ = MakeBackend(options.precision);
  auto faulty = std::make_unique<OpsWithFaultyBlockCache>(std::move(backend_->ops));
  faulty_block_cache_ = &faulty->block_cache();
  backend_->ops = std::move(faulty);
  Device& device = *backend_->device;
  ModelConfig config = OrDie(LoadModelConfig(options.model_folder.string()));
  if (!options.layer_windows.empty()) config.layer_windows = options.layer_windows;
  generation_ = OrDie(LoadGenerationConfig(options.model_folder.string(), config));
  tokenizer_ = OrDie(Tokenizer::Load(TokenizerFolderOf(options.model_folder)));
  Checkpoint checkpoint = OpenWeights(options.model_folder.string(), config);
  const uint32_t arena_pages = static_cast<uint32_t>(options.arena_bytes / kPageBytes);
  const KvGeometry geometry = config.geometry(options.kv_format);
  constexpr int64_t kPrefillRows = 256;
  const std::optional<MemoryPlanInput::Draft> draft = DraftOf(options);
  const MemoryPlan plan =
      OrDie(PlanMemory({.model = config,
                        .kv_format = options.kv_format,
                        .backend = device.info().backend == "cuda" ? kCudaNeeds : kCpuNeeds,
                        .index = options.wave_index,
                        .weight_bytes = checkpoint.total_bytes(),
                        .max_model_len = options.max_model_len,
                        .max_whole_prompt = options.max_whole_prompt,
                        .max_batch = options.max_batch,
                        .tail_run = options.tail_run,
                        .prefill_rows = kPrefillRows,
                        .arena_pages = arena_pages,
                        .available_bytes = size_t{8} << 30,
                        .dense_kv_bytes = options.dense_kv_bytes,
                        .block_cache_bytes = options.block_cache_bytes,
                        .preemption = options.preemption,
                        .suspended_kv_bytes = options.suspended_kv_bytes,
                        .draft = draft}));
  model_ = OrDie(Transformer::Load(device, *backend_->ops, config, checkpoint,
                                   {.max_prefill_rows = kPrefillRows,
                                    .max_decode_rows = plan.max_step_rows,
                                    .max_positions = options.max_model_len,
                                    .weights = options.weights,
                                    .progress = {}}));
  if (draft.has_value()) LoadDraftModel(options, draft->model, plan);
  store_ = std::make_unique<FakeSegmentStore>(geometry, arena_pages, options.serves_parts);
  const std::span<std::byte> data_plane =
      MakeDataPlane(plan.num_slots, arena_pages, data_plane_storage_);
  log_reader_ = std::thread(
      [this, data_plane, one_in = options.evict_one_in] { ReadLog(data_plane, one_in); });
  EngineParts parts = OrDie(AssembleEngine({.device = &device,
                                            .ops = backend_->ops.get(),
                                            .compute = backend_->stream.get(),
                                            .background = backend_->background.get(),
                                            .model = model_.get(),
                                            .draft_model = draft_model_.get(),
                                            .tokenizer = tokenizer_.get(),
                                            .store = StoreFor(options),
                                            .arena = store_->arena(),
                                            .data_plane = data_plane,
                                            .stretches = options.stretches},
                                           plan, options.wave_index));
  if (options.is_commanded) {
    StartCommanded(plan, std::move(parts), options.drawing);
  } else {
    StartEngine(options, plan, std::move(parts));
  }
}

void InProcessWorker::LoadDraftModel(const InProcessWorkerOptions& options,
                                     const ModelConfig& config, const MemoryPlan& plan) {
  const Checkpoint checkpoint = OpenWeights(options.draft_folder.string(), config);
  draft_model_ = OrDie(Transformer::Load(*backend_->device, *backend_->ops, config, checkpoint,
                                         plan.draft->model_options()));
}

void InProcessWorker::StartEngine(const InProcessWorkerOptions& options, const MemoryPlan& plan,
                                  EngineParts parts) {
  engine_ = OrDie(LocalEngine::Start({.plan = plan,
                                      .eos_token_ids = generation_.eos_token_ids,
                                      .segment_fingerprint = "in-process worker",
                                      .max_live_requests = options.max_live_requests,
                                      .inter_token_target = options.inter_token_target,
                                      .reserves_all = options.reserves_all,
                                      .sparse = options.sparse,
                                      .drafts = options.drafts,
                                      .on_progress =
                                          [this, on_progress = options.on_progress] {
                                            if (joint_store_ != nullptr) joint_store_->Settle();
                                            if (on_progress) on_progress();
                                          },
                                      .on_plan = options.on_plan,
                                      .hooks = options.hooks},
                                     std::move(parts)));
}

SegmentStore* InProcessWorker::StoreFor(const InProcessWorkerOptions& options) {
  if (options.is_commanded) return &written_;
  if (options.num_ranks == 1) return store_.get();
  joint_store_ = std::make_unique<JointSegmentStore>(*store_, options.num_ranks);
  return joint_store_.get();
}

void InProcessWorker::StartCommanded(const MemoryPlan& plan, EngineParts parts, Drawing drawing) {
  executor_ =
      OrDie(Executor::Create(std::move(parts.executor),
                             {.geometry = plan.geometry,
                              .max_batch = plan.max_step_rows,
                              .max_rows = plan.prefill_rows,
                              .lane_tokens = {plan.long_lane_tokens, plan.short_lane_tokens}},
                             costs_));
  commands_ = OrDie(CommandRunner::Create(*executor_, parts.arena, {}, drawing));
}

void InProcessWorker::ReadLog(std::span<std::byte> data_plane, uint64_t evict_one_in) {
  DataPlane plane = OrDie(DataPlane::Open(data_plane));
  std::vector<LogEntry> entries(1024);
  uint64_t num_admitted = 0;
  while (!stop_reading_) {
    size_t count = entries.size();
    while (count == entries.size()) {
      count = OrDie(plane.log().Pop(std::span(entries)));
      for (const LogEntry& entry : std::span(entries).first(count)) {
        if (evict_one_in == 0 || entry.kind != static_cast<uint32_t>(LogKind::kAdmit)) continue;
        if (++num_admitted % evict_one_in != 0) continue;
        // Of a ring that is full nothing is lost: the page stays.
        plane.requests().TryPush({entry.slot, entry.page, entry.step, 0});
      }
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
}

InProcessWorker::~InProcessWorker() {
  engine_.reset();
  commands_.reset();
  executor_.reset();
  stop_reading_ = true;
  log_reader_.join();
  if (!temporary_folder_.empty()) std::filesystem::remove_all(temporary_folder_);
}

GenerationRequest InProcessWorker::Greedy(std::vector<int32_t> prompt, int32_t max_tokens,
                                          PolicyKind policy) {
  GenerationRequest request;
  request.request_id = absl::StrCat("test-", next_id_++);
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.attention.policy = policy;
  return request;
}

std::shared_ptr<CollectingSink> InProcessWorker::Submit(GenerationRequest request) {
  auto sink = std::make_shared<CollectingSink>();
  const absl::Status status = engine_->Submit(std::move(request), sink);
  if (!status.ok()) {
    std::fprintf(stderr, "submit: %s\n", status.ToString().c_str());
    std::abort();
  }
  return sink;
}

std::vector<int32_t> InProcessWorker::Generate(GenerationRequest request) {
  const auto sink = Submit(std::move(request));
  const GenerationResult& result = sink->Wait();
  if (!result.status.ok()) {
    std::fprintf(stderr, "generation: %s\n", result.status.ToString().c_str());
    std::abort();
  }
  return sink->tokens();
}

bool InProcessWorker::WaitUntilIdle(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (absl::Now() < deadline) {
    const EngineStats stats = engine_->stats();
    if (stats.requests_running == 0 && stats.requests_waiting == 0 &&
        stats.dense_blocks_used == 0 && stats.meta_blocks_used == 0 &&
        store_->num_sequences() == 0) {
      return true;
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  return false;
}

std::vector<int32_t> RandomPrompt(int64_t length, int64_t vocab_size, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  for (int32_t& token : prompt) {
    token = static_cast<int32_t>(generator() % static_cast<uint64_t>(vocab_size));
  }
  return prompt;
}

}  // namespace retroinfer::test_support
