// Time to first token of a whole model with random weights: a prompt of random tokens through the
// engine's own prefill lane, in rounds of policy full and policy wave, whose segments are
// clustered, written to the arena and indexed as the engine does it. Then a few decode steps over
// what the prefill left behind.
//
// usage: first_token_bench [--backend cpu|cuda] [--model llama-3.1-8b] [--tokens 117760]
//          [--rows 1024] [--rounds 2] [--decode-steps 32] [--cache-share 0.05]
// Prints one JSON object. --rows: tokens of a slice. --cache-share: slots of the block cache, of
// all pages of the context. index_share: what wave adds to full's prefill, until decode may begin.
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "bench/support/measure.h"
#include "common/kv/segment_layout.h"
#include "gpu_worker/attention/full_policy.h"
#include "gpu_worker/attention/wave_policy.h"
#include "gpu_worker/engine/decode_step.h"
#include "gpu_worker/engine/prefill_lane.h"
#include "gpu_worker/model/model_shapes.h"
#include "kv_store_service/server/data_plane_server.h"
#include "tests/support/backends.h"
#include "tests/support/data_plane_memory.h"

#if RETROINFER_CUDA
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/ops/cuda/cuda_ops.h"
#endif

namespace retroinfer {
namespace {

using test_support::Backend;
using test_support::DataPlaneMemory;

constexpr uint32_t kTransientSlots = 2048;  // as the memory plan has it on a CPU for one sequence
constexpr absl::Duration kBlockedWait = absl::Microseconds(200);  // as the engine's loop

struct Settings {
  std::string backend = "cpu";
  std::string model = "llama-3.1-8b";
  int64_t tokens = 117'760;
  int64_t rows = 1024;
  int64_t rounds = 2;
  int64_t decode_steps = 32;
  double cache_share = 0.05;
  int64_t dense_below = 8192;
};

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "first_token_bench: %s\n", message.c_str());
  std::exit(1);
}
void Must(const absl::Status& status) {
  if (!status.ok()) Fail(status.ToString());
}
template <typename T>
T Must(absl::StatusOr<T> result) {
  Must(result.status());
  return *std::move(result);
}

Settings Parse(int argc, char** argv) {
  Settings settings;
  if (bench::IsSmoke()) {
    settings.model = "tiny";
    settings.tokens = 2500;
    settings.rows = 300;
    settings.rounds = 1;
    settings.decode_steps = 4;
    settings.cache_share = 0.3;
    settings.dense_below = 1500;
  }
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) Fail(name + " needs a value");
    const std::string value = argv[i + 1];
    if (name == "--backend") {
      settings.backend = value;
    } else if (name == "--model") {
      settings.model = value;
    } else if (name == "--tokens") {
      settings.tokens = std::atoll(value.c_str());
    } else if (name == "--rows") {
      settings.rows = std::atoll(value.c_str());
    } else if (name == "--rounds") {
      settings.rounds = std::atoll(value.c_str());
    } else if (name == "--decode-steps") {
      settings.decode_steps = std::atoll(value.c_str());
    } else if (name == "--cache-share") {
      settings.cache_share = std::atof(value.c_str());
    } else {
      Fail("unknown option " + name);
    }
  }
  if (settings.tokens < 1 || settings.rows < 1 || settings.rounds < 1 ||
      settings.decode_steps < 0) {
    Fail("tokens, rows and rounds must be at least 1, decode steps at least 0");
  }
  return settings;
}

Backend CreateBackend(const std::string& name) {
  for (const test_support::BackendParam& param : test_support::AvailableBackends()) {
    // Suites make small CUDA backends; this one takes the GPU.
    if (name == "cpu" && param.name == "CpuBf16") return std::move(*param.create());
  }
#if RETROINFER_CUDA
  if (name == "cuda") {
    Backend backend;
    auto device = Must(CudaDevice::Create({.ordinal = 0, .memory_utilization = 0.95}));
    backend.ops = Must(CudaOps::Create(*device));
    backend.device = std::move(device);
    backend.stream = Must(backend.device->CreateStream(StreamKind::kCompute));
    backend.background = Must(backend.device->CreateStream(StreamKind::kBackground));
    return backend;
  }
#endif
  Fail("no backend " + name + " here");
}

// Host memory of the size of the arena. Never unmapped: the program ends with it.
std::span<std::byte> MapArena(size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) Fail("no " + std::to_string(bytes) + " bytes of host memory");
  (void)::madvise(memory, bytes, MADV_HUGEPAGE);
  return {static_cast<std::byte*>(memory), bytes};
}

// What one prompt took, in seconds from the begin of its prefill.
struct Round {
  double first_token = 0;  // sampled and on the host
  double indexed = 0;      // decode may begin
  double blocked = 0;      // the host waited, both KV buffers being in use
  double enqueueing = 0;   // the host was busy
  std::vector<double> steps;
  double hit_ratio = 0;  // of the decode steps
  uint64_t misses = 0;
};

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class FirstTokenBench {
 public:
  explicit FirstTokenBench(const Settings& settings)
      : settings_(settings), backend_(CreateBackend(settings.backend)) {
    config_ = Must(NamedModelShape(settings.model));
    total_tokens_ = settings.tokens + settings.decode_steps + 1;
    config_.context_length = std::max(config_.context_length, total_tokens_);
    model_ = Must(Transformer::LoadRandom(*backend_.device, *backend_.ops, config_,
                                          {.max_prefill_rows = settings.rows,
                                           .max_decode_rows = 1,
                                           .max_positions = 0,
                                           .progress = {}}));
    geometry_ = config_.geometry(DType::kBf16);
    CreateMemory();
    CreatePolicies();
    sampler_ = Must(
        Sampler::Create(*backend_.device, *backend_.ops, *backend_.stream, 1, config_.vocab_size));
    step_ = Must(DecodeStep::Create(*backend_.device, *backend_.stream, *model_, *sampler_, 1));
    lane_ = Must(PrefillLane::Create({.device = backend_.device.get(),
                                      .ops = backend_.ops.get(),
                                      .stream = backend_.stream.get(),
                                      .model = model_.get(),
                                      .arena = cache_->device_arena()},
                                     geometry_, settings.tokens, settings.rows));
    std::mt19937 random(1);
    std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(config_.vocab_size) - 1);
    for (int64_t i = 0; i < settings.tokens; ++i) prompt_.push_back(token(random));
  }

  nlohmann::json Run() {
    // Short prompts warm up: kernels are loaded then, and products choose theirs.
    const int64_t short_prompt = std::min(settings_.tokens, 2 * settings_.dense_below);
    (void)Prefill(*full_, short_prompt);
    (void)Prefill(*wave_, short_prompt);
    std::vector<Round> full, wave;
    for (int64_t i = 0; i < settings_.rounds; ++i) {
      full.push_back(Prefill(*full_, settings_.tokens));
      wave.push_back(Prefill(*wave_, settings_.tokens));
    }
    nlohmann::json json = bench::Report("first_token", backend_.device->info());
    json["settings"] = {{"model", settings_.model},    {"tokens", settings_.tokens},
                        {"rows", settings_.rows},      {"rounds", settings_.rounds},
                        {"cache_slots", num_slots_},   {"decode_steps", settings_.decode_steps},
                        {"segments", segments_.size()}};
    json["full"] = ToJson(full);
    json["wave"] = ToJson(wave);
    const auto seconds = [](const nlohmann::json& of) { return of["indexed_s"].get<double>(); };
    json["index_share"] = (seconds(json["wave"]) - seconds(json["full"])) / seconds(json["full"]);
    return json;
  }

 private:
  void CreateMemory() {
    segments_ = PlanSegments(settings_.tokens, total_tokens_, settings_.dense_below);
    uint64_t pages = 0;
    int32_t meta_blocks = 0;
    for (const PlannedSegment& segment : segments_) {
      pages += SegmentLayout(geometry_, segment.num_tokens).max_pages;
      meta_blocks += static_cast<int32_t>(segment.num_tokens / kDecodeSegmentTokens);
    }
    const uint64_t arena_pages = std::max<uint64_t>(64, pages);
    const auto slots =
        static_cast<uint64_t>(static_cast<double>(arena_pages) * settings_.cache_share);
    num_slots_ = static_cast<uint32_t>(std::max<uint64_t>(64, slots));
    arena_ = MapArena(arena_pages * kPageBytes);
    plane_ = std::make_unique<DataPlaneMemory>(num_slots_, std::bit_ceil(2 * num_slots_ + 1024),
                                               1024, arena_pages);
    cache_ = Must(BlockCache::Create(*backend_.device, *backend_.ops, *backend_.stream,
                                     {.num_slots = num_slots_, .num_transient = kTransientSlots},
                                     arena_, plane_->bytes()));
    // The store's half of the block cache, on a thread of this process.
    store_ = std::make_unique<kvstore::DataPlaneServer>(plane_->view(),
                                                        kvstore::DataPlaneServer::Options());
    store_->Start();
    // Policy full has the whole context in dense blocks.
    const int64_t window_blocks = (total_tokens_ + kDenseBlockTokens - 1) / kDenseBlockTokens;
    memory_ = Must(
        KvMemory::Create(*backend_.device, {.geometry = geometry_,
                                            .dense_blocks = static_cast<int32_t>(1 + window_blocks),
                                            .meta_blocks = std::max(1, meta_blocks),
                                            .max_sequences = 1,
                                            .max_model_len = total_tokens_}));
  }

  void CreatePolicies() {
    Device& device = *backend_.device;
    Ops& ops = *backend_.ops;
    const auto query_heads = static_cast<int32_t>(config_.num_query_heads);
    full_ = Must(FullPolicy::Create(device, ops, *backend_.stream, memory_->dense_pool(),
                                    memory_->tables(), query_heads, 1));
    const WaveIndexSettings index{.dense_below = settings_.dense_below};
    WavePolicy::Parts parts{.device = &device,
                            .ops = &ops,
                            .stream = backend_.stream.get(),
                            .memory = memory_.get(),
                            .cache = cache_.get()};
    parts.builder = Must(
        SegmentBuilder::Create(device, ops, *backend_.background, memory_->meta_pool(),
                               {.host = arena_, .device = cache_->device_arena()}, index,
                               {.max_open_segments = static_cast<int32_t>(segments_.size()) + 1}));
    parts.decode = Must(WaveDecode::Create(device, ops, *backend_.stream, *cache_,
                                           memory_->dense_pool(), memory_->meta_pool(),
                                           {.num_query_heads = query_heads,
                                            .max_batch = 1,
                                            .max_tokens = total_tokens_,
                                            .radius_weight = index.radius_weight}));
    parts.on_built = [](const SequenceKv&, size_t, int64_t) {};
    wave_ = Must(WavePolicy::Create(index, 1, std::move(parts)));
  }

  std::unique_ptr<LiveRequest> MakeRequest(AttentionPolicy& policy, int64_t tokens) {
    auto live = std::make_unique<LiveRequest>();
    live->request.sampling.temperature = 0;
    live->request.prompt.assign(prompt_.begin(), prompt_.begin() + tokens);
    live->policy = &policy;
    live->kv.sequence_id = next_sequence_++;
    live->kv.prompt_tokens = tokens;
    live->kv.total_tokens = tokens + settings_.decode_steps + 1;
    live->sampling = Must(SamplingState::Create(*backend_.device, *backend_.stream, live->request,
                                                {}, config_.vocab_size));
    const KvNeed need = policy.Need(tokens, live->kv.total_tokens);
    if (!memory_->Reserve(need, live->kv)) Fail("the KV memory is too small");
    PageId next_page = 0;
    for (const uint32_t num_tokens : need.segment_tokens) {
      const uint32_t pages = SegmentLayout(geometry_, num_tokens).max_pages;
      live->kv.extents.push_back({next_extent_++, next_page, pages, num_tokens});
      next_page += pages;
    }
    return live;
  }

  Round Prefill(AttentionPolicy& policy, int64_t tokens) {
    std::unique_ptr<LiveRequest> live = MakeRequest(policy, tokens);
    Must(backend_.stream->Synchronize());
    Round round;
    const absl::Time begin = absl::Now();
    lane_->Begin(live->request.prompt, live->kv, policy);
    auto outcome = PrefillLane::Outcome::kWorked;
    while (outcome != PrefillLane::Outcome::kDone) {
      const absl::Time before = absl::Now();
      outcome = Must(lane_->RunSlice(settings_.rows, sampler_->logits(1)));
      if (outcome == PrefillLane::Outcome::kBlocked) {
        absl::SleepFor(kBlockedWait);
        round.blocked += absl::ToDoubleSeconds(absl::Now() - before);
      } else {
        round.enqueueing += absl::ToDoubleSeconds(absl::Now() - before);
      }
    }
    SamplingState* const state = &*live->sampling;
    const OutputToken token = Must(sampler_->Sample(std::span(&state, 1))).front();
    live->next_token = token.token;
    live->sampling->Count(token.token);
    round.first_token = absl::ToDoubleSeconds(absl::Now() - begin);
    while (!Must(policy.FinishPrefill(live->kv))) absl::SleepFor(kBlockedWait);
    round.indexed = absl::ToDoubleSeconds(absl::Now() - begin);
    lane_->End();
    Decode(*live, round);
    while (!Must(policy.Release(live->kv))) {
      Must(cache_->Tend());
      std::this_thread::yield();
    }
    memory_->Free(live->kv);
    return round;
  }

  void Decode(LiveRequest& live, Round& round) {
    live.state = RequestState::kDecoding;
    const BlockCacheStats before = CacheStats();
    for (int64_t i = 0; i < settings_.decode_steps; ++i) {
      Must(cache_->Tend());
      const absl::Time begin = absl::Now();
      LiveRequest* batch[] = {&live};
      const OutputToken token = Must(step_->Run(batch)).front();
      round.steps.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
      live.next_token = token.token;
      live.sampling->Count(token.token);
      ++live.num_generated;
    }
    const BlockCacheStats after = CacheStats();
    const uint64_t hits = after.counters.hits - before.counters.hits;
    round.misses = after.counters.misses - before.counters.misses;
    const auto pages = static_cast<double>(hits + round.misses);
    round.hit_ratio = pages > 0 ? static_cast<double>(hits) / pages : 0;
  }

  // As of now: a call begins a copy from the device, the next one gives its result.
  BlockCacheStats CacheStats() {
    Must(cache_->Stats());
    Must(backend_.stream->Synchronize());
    return Must(cache_->Stats());
  }

  nlohmann::json ToJson(const std::vector<Round>& rounds) const {
    std::vector<double> first_token, indexed, after, blocked, enqueueing, steps, first_steps;
    for (const Round& round : rounds) {
      first_token.push_back(round.first_token);
      indexed.push_back(round.indexed);
      after.push_back(round.indexed - round.first_token);
      blocked.push_back(round.blocked);
      enqueueing.push_back(round.enqueueing);
      steps.insert(steps.end(), round.steps.begin(), round.steps.end());
      if (!round.steps.empty()) first_steps.push_back(round.steps.front());
    }
    return {{"first_token_s", Median(first_token)},
            {"first_token_s_rounds", first_token},
            {"indexed_s", Median(indexed)},
            {"indexed_after_first_token_ms", 1e3 * Median(after)},
            {"host_blocked_s", Median(blocked)},
            {"host_enqueueing_s", Median(enqueueing)},
            {"decode_first_step_ms", 1e3 * Median(first_steps)},
            {"decode_step_ms_median", 1e3 * Median(steps)},
            {"decode_hit_ratio", rounds.back().hit_ratio},
            {"decode_pages_missed", rounds.back().misses}};
  }

  const Settings settings_;
  Backend backend_;
  ModelConfig config_;
  KvGeometry geometry_;
  int64_t total_tokens_ = 0;
  std::unique_ptr<Transformer> model_;
  std::vector<PlannedSegment> segments_;
  uint32_t num_slots_ = 0;
  std::span<std::byte> arena_;
  std::unique_ptr<DataPlaneMemory> plane_;
  std::unique_ptr<kvstore::DataPlaneServer> store_;
  std::unique_ptr<BlockCache> cache_;
  std::unique_ptr<KvMemory> memory_;
  std::unique_ptr<FullPolicy> full_;
  std::unique_ptr<WavePolicy> wave_;
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<DecodeStep> step_;
  std::unique_ptr<PrefillLane> lane_;
  std::vector<int32_t> prompt_;
  uint64_t next_sequence_ = 1;
  uint64_t next_extent_ = 1;
};

}  // namespace
}  // namespace retroinfer

int main(int argc, char** argv) {
  const retroinfer::Settings settings = retroinfer::Parse(argc, argv);
  retroinfer::FirstTokenBench bench(settings);
  retroinfer::bench::Print(bench.Run());
  return 0;
}
