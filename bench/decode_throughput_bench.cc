// Decode steps of a whole model with random weights over synthetic contexts: what a step takes, how
// much of it the host is busy, what the block cache finds. The engine's own step, policies and
// memory; contexts go through the normal construction of segments, queries are the bench's own
// (gpu_worker/measuring/synthetic).
//
// usage: decode_throughput_bench [--backend cpu|cuda] [--model llama-3.1-8b] [--policy wave|full]
//          [--batch 1] [--context 122880] [--steps 64] [--warm-up 64]
//          [--reuse code|needle] [--overlap COSINE] [--cache-share 0.05] [--free-slots-low 0.05]
//          [--free-slots-high 0.1] [--weights-dtype auto|fp8|int4] [--kv-dtype bf16|int8]
//          [--index-dtype auto|coded|packed|int8|bf16] [--retrieval 0.018] [--temperature 0]
//          [--schema FILE --tokenizer FOLDER] [--layers N] [--record-trace FILE]
//          [--rows-per-sequence 1]
// Prints one JSON object. --layers: instead of the model's. --record-trace: writes what every step
// looked up and missed, for `python3 -m tools.lab.evictions`. --reuse: which model's recorded steps
// the queries repeat (recorded_reuse.h); with --overlap they repeat none (SyntheticShape).
// --cache-share: slots of the block cache, of all pages of the contexts. --free-slots-low,
// --free-slots-high: as kv_store_service has them. --schema: every sequence writes JSON of this
// schema, answer after answer, in tokens of the folder's vocabulary, which must not be larger than
// the model's. --rows-per-sequence: tokens that a step feeds to each sequence, as drafts that all
// turn out right; fewer where a segment goes live between them.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "bench/support/backend.h"
#include "bench/support/measure.h"
#include "bench/support/must.h"
#include "bench/support/wave_memory.h"
#include "gpu_worker/executor/decode_step.h"
#include "gpu_worker/measuring/retrieval_trace/retrieval_recorder.h"
#include "gpu_worker/measuring/synthetic/drifting_queries.h"
#include "gpu_worker/measuring/synthetic/synthetic_context.h"
#include "gpu_worker/model/kept_weights.h"
#include "gpu_worker/model/model_shapes.h"
#include "tests/support/decoding_sequence.h"
#include "tests/support/tend_cache.h"
#include "text/constraint/constraint_compiler.h"
#include "text/constraint/token_vocabulary.h"
#include "text/tokenizer/tokenizer.h"

namespace retroinfer {
namespace {

using bench::Must;
using test_support::DecodingSequence;

constexpr uint64_t kMaxTraceBytes = uint64_t{1} << 32;

struct Settings {
  std::string backend = "cpu";
  std::string model = "llama-3.1-8b";
  uint32_t layers = 0;  // 0: as the model has
  std::string policy = "wave";
  int32_t batch = 1;
  int32_t rows_per_sequence = 1;
  int64_t context = 122'880;
  int64_t steps = 64;
  int64_t warm_up = 64;
  std::optional<double> overlap;
  std::string reuse = "code";
  double cache_share = 0.05;
  int64_t dense_below = 8192;
  std::string weights_dtype = "auto";
  std::string kv_dtype = "bf16";
  std::string index_dtype = "auto";
  double retrieval = AttentionSettings().retrieval_ratio;
  float temperature = 0;
  std::string schema, tokenizer;
  std::string trace;
  kvstore::Watermarks watermarks;
};

Settings Parse(int argc, char** argv) {
  Settings settings;
  if (bench::IsSmoke()) {
    settings.model = "tiny";
    settings.context = 2500;
    settings.steps = 4;
    settings.warm_up = 4;
    settings.batch = 2;
    settings.cache_share = 0.3;
    settings.dense_below = 1500;
  }
  CLI::App app;
  app.add_option("--backend", settings.backend)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--model", settings.model);
  app.add_option("--layers", settings.layers)->check(CLI::Range(1, 1000));
  app.add_option("--record-trace", settings.trace);
  app.add_option("--policy", settings.policy)->check(CLI::IsMember({"wave", "full"}));
  app.add_option("--batch", settings.batch)->check(CLI::Range(1, 1'000'000'000));
  app.add_option("--context", settings.context)->check(CLI::Range(1, 1'000'000'000));
  app.add_option("--steps", settings.steps)->check(CLI::Range(1, 1'000'000'000));
  app.add_option("--warm-up", settings.warm_up)->check(CLI::Range(0, 1'000'000'000));
  CLI::Option* overlap = app.add_option("--overlap", settings.overlap)->check(CLI::Range(0.0, 1.0));
  app.add_option("--reuse", settings.reuse)
      ->check(CLI::IsMember({"code", "needle"}))
      ->excludes(overlap);
  app.add_option("--weights-dtype", settings.weights_dtype)
      ->check(CLI::IsMember({"auto", "fp8", "int4"}));
  app.add_option("--kv-dtype", settings.kv_dtype)->check(CLI::IsMember({"bf16", "int8"}));
  app.add_option("--index-dtype", settings.index_dtype)
      ->check(CLI::IsMember({"auto", "coded", "packed", "int8", "bf16"}));
  app.add_option("--retrieval", settings.retrieval, "Share of the clusters")
      ->check(CLI::Range(0.001, 0.2));
  app.add_option("--temperature", settings.temperature)->check(CLI::Range(0.0, 100.0));
  CLI::Option* rows =
      app.add_option("--rows-per-sequence", settings.rows_per_sequence)->check(CLI::Range(1, 9));
  CLI::Option* schema = app.add_option("--schema", settings.schema)->check(CLI::ExistingFile);
  CLI::Option* tokenizer =
      app.add_option("--tokenizer", settings.tokenizer)->check(CLI::ExistingDirectory);
  schema->needs(tokenizer)->excludes(rows);
  tokenizer->needs(schema);
  app.add_option("--cache-share", settings.cache_share)->check(CLI::Range(0.0, 1.0));
  app.add_option("--free-slots-low", settings.watermarks.low)->check(CLI::Range(0.0, 1.0));
  app.add_option("--free-slots-high", settings.watermarks.high)->check(CLI::Range(0.0, 1.0));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return settings;
}

double Seconds(absl::Time begin, absl::Time end) { return absl::ToDoubleSeconds(end - begin); }

class DecodeBench {
 public:
  explicit DecodeBench(const Settings& settings)
      : settings_(settings), backend_(bench::CreateBackend(settings.backend)) {
    config_ = Must(NamedModelShape(settings.model));
    if (settings.layers != 0) config_.num_layers = settings.layers;
    max_rows_ = settings.batch * settings.rows_per_sequence;
    total_tokens_ =
        settings.context + 1 + (settings.steps + settings.warm_up) * settings.rows_per_sequence;
    config_.context_length = std::max(config_.context_length, total_tokens_);
    const absl::Time begin = absl::Now();
    model_ = Must(
        Transformer::LoadRandom(*backend_.device, *backend_.ops, config_,
                                {.max_prefill_rows = 1,
                                 .max_decode_rows = max_rows_,
                                 .max_positions = 0,
                                 .weights = Must(KeptWeightsNamed(settings.weights_dtype, config_)),
                                 .progress = {}}));
    load_seconds_ = Seconds(begin, absl::Now());
    geometry_ = config_.geometry(Must(KvFormatNamed(settings.kv_dtype, settings.index_dtype)));
    CreateConstraint();
    CreateMemory();
    CreatePolicy();
    sampler_ = Must(Sampler::Create(*backend_.device, backend_.ops->model(), *backend_.stream,
                                    max_rows_, config_.vocab_size));
    step_ =
        Must(DecodeStep::Create(*backend_.device, *backend_.stream, *model_, *sampler_, max_rows_));
  }

  nlohmann::json Run() {
    const absl::Time begin = absl::Now();
    FillContexts();
    const double fill_seconds = Seconds(begin, absl::Now());
    for (int64_t i = 0; i < settings_.warm_up; ++i) Step();
    Measured measured;
    measured.fill_seconds = fill_seconds;
    measured.before = memory_->CacheStats().counters;
    const DecodeStep::Counters counters_before = step_->counters();
    num_tokens_ = 0;
    for (int64_t i = 0; i < settings_.steps; ++i) {
      if (i == settings_.steps * 3 / 4) measured.at_last_quarter = memory_->CacheStats().counters;
      measured.seconds.push_back(Step());
    }
    measured.tokens = num_tokens_;
    measured.after = memory_->CacheStats().counters;
    measured.host_ns = step_->counters().host_ns - counters_before.host_ns;
    measured.mask_ns = step_->counters().mask_ns - counters_before.mask_ns;
    measured.launched = step_->counters().graphs.launched - counters_before.graphs.launched;
    return Result(measured);
  }

 private:
  struct Measured {
    double fill_seconds = 0;
    BlockCacheCounters before{}, at_last_quarter{}, after{};
    uint64_t host_ns = 0;
    uint64_t mask_ns = 0;
    uint64_t launched = 0;
    uint64_t tokens = 0;
    std::vector<double> seconds;  // of each step, in their order
  };

  void CreateConstraint() {
    if (settings_.schema.empty()) return;
    tokenizer_ = Must(Tokenizer::Load(settings_.tokenizer));
    compiler_ =
        std::make_unique<constraint::ConstraintCompiler>(constraint::TokenVocabulary::Create(
            *tokenizer_, {tokenizer_->eos_id().value()}, static_cast<int32_t>(config_.vocab_size)));
    std::ifstream file(settings_.schema, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const absl::Time begin = absl::Now();
    constraint_ = Must(
        compiler_->Compile({.form = constraint::ConstraintSpec::Form::kJsonSchema, .text = text}));
    compile_ms_ = 1e3 * Seconds(begin, absl::Now());
  }

  SamplingState Sampling(uint64_t seed) {
    SamplingParams params{.temperature = settings_.temperature, .seed = seed};
    params.constraint = constraint_;
    const std::vector<int32_t> prompt = {1};
    return Must(SamplingState::Create(*backend_.device, *backend_.stream, params, prompt, {},
                                      config_.vocab_size));
  }

  KvNeed Need() const {
    // What either policy says of a sequence; they exist only once there is memory for them.
    const bool full = settings_.policy == "full";
    KvNeed need;
    const auto plan = full ? std::vector<PlannedSegment>()
                           : PlanSegments(settings_.context, total_tokens_, settings_.dense_below);
    int64_t window = total_tokens_ - kSinkTokens;
    if (!full) window = MaxWindowTokens(plan, settings_.context, total_tokens_);
    need.dense_blocks =
        static_cast<int32_t>(1 + (window + kDenseBlockTokens - 1) / kDenseBlockTokens);
    for (const PlannedSegment& segment : plan) {
      need.meta_blocks += static_cast<int32_t>(segment.num_tokens / kDecodeSegmentTokens);
      need.segment_tokens.push_back(segment.num_tokens);
    }
    return need;
  }

  void CreateMemory() {
    need_ = Need();
    bench::WaveMemory::Sizes sizes{.geometry = geometry_,
                                   .cache_share = settings_.cache_share,
                                   .num_query_heads = static_cast<int32_t>(config_.num_query_heads),
                                   .dense_blocks = need_.dense_blocks * settings_.batch,
                                   .max_batch = max_rows_,
                                   .max_model_len = total_tokens_,
                                   .dense_below = settings_.dense_below,
                                   .watermarks = settings_.watermarks};
    for (int32_t i = 0; i < settings_.batch; ++i) {
      sizes.segment_tokens.insert(sizes.segment_tokens.end(), need_.segment_tokens.begin(),
                                  need_.segment_tokens.end());
    }
    memory_ = std::make_unique<bench::WaveMemory>(backend_, std::move(sizes));
  }

  void CreatePolicy() {
    Device& device = *backend_.device;
    Ops& ops = *backend_.ops;
    const auto query_heads = static_cast<int32_t>(config_.num_query_heads);
    if (settings_.policy == "full") {
      policy_ = memory_->CreateFullPolicy();
    } else {
      policy_ = memory_->CreateWavePolicy(CreateRecorder());
    }
    context_ = std::make_unique<SyntheticContext>(Must(SyntheticContext::Create(
        device, ops,
        {.geometry = geometry_,
         .num_query_heads = query_heads,
         .max_tokens = settings_.context,
         .overlap = settings_.overlap,
         .reuse = settings_.reuse == "needle" ? RecordedModel::kNeedle : RecordedModel::kCode,
         .retrieval_ratio = settings_.retrieval})));
    drifting_ = Must(DriftingQueries::Create(device, ops.model(), *backend_.stream, *policy_,
                                             *context_, geometry_.num_layers, max_rows_));
  }

  // Null unless a trace is wanted.
  RetrievalObserver* CreateRecorder() {
    if (settings_.trace.empty()) return nullptr;
    if (geometry_.format.token_code_bits != 0) {
      bench::Fail("--record-trace needs an index without codes of tokens: --index-dtype int8");
    }
    const int64_t clusters = std::min<int64_t>(RetrievalRecorder::kMaxClusters,
                                               total_tokens_ / int64_t{kTokensPerCluster} + 1);
    recorder_ = Must(RetrievalRecorder::Create(
        *backend_.device, {.geometry = geometry_, .max_batch = max_rows_, .max_clusters = clusters},
        Must(TraceFile::Open(settings_.trace, TraceEncoder::kMagic, kMaxTraceBytes))));
    return recorder_.get();
  }

  std::unique_ptr<DecodingSequence> MakeSequence(uint64_t id) {
    auto live = std::make_unique<DecodingSequence>();
    live->prompt = {1};
    live->sequence.policy = drifting_.get();
    live->sequence.kv.sequence_id = id;
    live->sequence.kv.settings.retrieval_ratio = settings_.retrieval;
    live->sequence.kv.prompt_tokens = settings_.context;
    live->sequence.kv.part.end = settings_.context;
    live->sequence.kv.total_tokens = total_tokens_;
    live->next_token = 1;
    live->sequence.sampling = Sampling(id);
    next_page_ = memory_->Reserve(need_, next_page_, live->sequence.kv);
    return live;
  }

  void FillContexts() {
    for (int32_t i = 0; i < settings_.batch; ++i) {
      live_.push_back(MakeSequence(static_cast<uint64_t>(i) + 1));
      SequenceKv& kv = live_.back()->sequence.kv;
      for (uint32_t layer = 0; layer < geometry_.num_layers; ++layer) {
        const LayerKv layer_kv =
            Must(context_->MakeLayer(*backend_.stream, layer, settings_.context));
        Must(drifting_->TakeLayer(kv, layer, layer_kv));
        Must(backend_.stream->Synchronize());
        while (!Must(drifting_->LayerTaken(kv, layer))) std::this_thread::yield();
      }
      while (!Must(drifting_->FinishPrefill(kv))) std::this_thread::yield();
    }
  }

  // Returns the seconds of the step.
  double Step() {
    const absl::Time begin = absl::Now();
    Must(test_support::Tend(memory_->cache()));
    Must(memory_->cache().BeginStep());
    rows_.clear();
    std::vector<size_t> firsts;  // rows of sequences
    for (const auto& live : live_) {
      firsts.push_back(rows_.size());
      const int64_t num_rows = std::min<int64_t>(settings_.rows_per_sequence,
                                                 drifting_->RowsTogether(live->sequence.kv));
      for (int64_t i = 0; i < num_rows; ++i) {
        rows_.push_back(live->Row());
        rows_.back().position += i;
      }
    }
    const std::span<const StepResult> results = Must(step_->Run(rows_));
    const double seconds = Seconds(begin, absl::Now());
    num_tokens_ += rows_.size();
    for (size_t i = 0; i < live_.size(); ++i) Take(*live_[i], results[firsts[i]]);
    return seconds;
  }

  void Take(DecodingSequence& live, const StepResult& result) {
    live.Take(result);
    Must(live.sequence.sampling->Count(live.next_token));
    if (!live.sequence.sampling->MustEnd()) return;
    ++num_answers_;
    live.sequence.sampling = Sampling(live.sequence.id() + 1000 * num_answers_);
  }

  static double Median(std::span<const double> values) {
    std::vector<double> sorted(values.begin(), values.end());
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }

  static double HitRatio(const BlockCacheCounters& from, const BlockCacheCounters& to) {
    const auto hits = static_cast<double>(to.hits - from.hits);
    const auto misses = static_cast<double>(to.misses - from.misses);
    return hits + misses > 0 ? hits / (hits + misses) : 0;
  }

  nlohmann::json Result(const Measured& measured) {
    double read = 0, full = 0;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const auto bytes = drifting_->LastStepBytes(i);
      read += bytes.read;
      full += bytes.full;
    }
    double sum = 0;
    for (const double s : measured.seconds) sum += s;
    std::vector<double> sorted = measured.seconds;
    std::sort(sorted.begin(), sorted.end());
    const auto steps = static_cast<double>(sorted.size());
    const auto per_step = [&](uint64_t BlockCacheCounters::*count) {
      return static_cast<double>(measured.after.*count - measured.before.*count) / steps;
    };
    nlohmann::json json = bench::Report("decode_throughput", backend_.device->info());
    json["settings"] = {
        {"model", settings_.model},
        {"policy", settings_.policy},
        {"weights_dtype", settings_.weights_dtype},
        {"kv_format", std::string(geometry_.format.name)},
        {"retrieval", settings_.retrieval},
        {"batch", settings_.batch},
        {"rows_per_sequence", settings_.rows_per_sequence},
        {"context_tokens", settings_.context},
        {"steps", settings_.steps},
        {"overlap",
         settings_.overlap ? nlohmann::json(*settings_.overlap) : nlohmann::json("as recorded")},
        {"reuse", settings_.overlap ? "" : settings_.reuse},
        {"cache_slots", memory_->num_slots()},
        {"free_slots_low", settings_.watermarks.low},
        {"free_slots_high", settings_.watermarks.high},
        {"arena_gib", static_cast<double>(memory_->arena_bytes()) / (1 << 30)},
        {"arena_used_gib", static_cast<double>(memory_->arena_bytes_used()) / (1 << 30)}};
    json["load_s"] = load_seconds_;
    json["fill_s"] = measured.fill_seconds;
    json["step_ms_median"] = 1e3 * Median(measured.seconds);
    json["step_ms_mean"] = 1e3 * sum / steps;
    json["step_ms_p99"] = 1e3 * sorted[static_cast<size_t>(0.99 * (steps - 1))];
    json["output_throughput"] = static_cast<double>(measured.tokens) / sum;
    json["host_us_per_step"] = static_cast<double>(measured.host_ns) / 1e3 / steps;
    if (constraint_ != nullptr) {
      json["schema_compile_ms"] = compile_ms_;
      json["mask_us_per_step"] = static_cast<double>(measured.mask_ns) / 1e3 / steps;
      json["answers"] = num_answers_;
    }
    json["graph_launches"] = measured.launched;
    json["hit_ratio"] = HitRatio(measured.before, measured.after);
    json["pages_missed_per_step"] = per_step(&BlockCacheCounters::misses);
    json["pages_evicted_per_step"] = per_step(&BlockCacheCounters::evictions);
    json["pages_kept_per_step"] = per_step(&BlockCacheCounters::evictions_kept);
    json["last_quarter"] = {
        {"step_ms_median",
         1e3 * Median(std::span(measured.seconds).subspan(measured.seconds.size() * 3 / 4))},
        {"hit_ratio", HitRatio(measured.at_last_quarter, measured.after)}};
    json["kv_bytes_read_last_step"] = read;
    json["kv_bytes_of_full_attention"] = full;
    return json;
  }

  const Settings settings_;
  test_support::Backend backend_;
  ModelConfig config_;
  KvGeometry geometry_;
  int32_t max_rows_ = 0;
  int64_t total_tokens_ = 0;
  uint64_t num_tokens_ = 0;  // that steps have fed
  double load_seconds_ = 0;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<constraint::ConstraintCompiler> compiler_;
  std::shared_ptr<const constraint::Constraint> constraint_;  // null: none
  double compile_ms_ = 0;
  uint64_t num_answers_ = 0;
  std::unique_ptr<Transformer> model_;
  KvNeed need_;
  std::unique_ptr<bench::WaveMemory> memory_;
  std::unique_ptr<RetrievalRecorder> recorder_;
  std::unique_ptr<AttentionPolicy> policy_;
  std::unique_ptr<SyntheticContext> context_;
  std::unique_ptr<DriftingQueries> drifting_;
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<DecodeStep> step_;
  std::vector<std::unique_ptr<DecodingSequence>> live_;
  std::vector<StepRow> rows_;
  PageId next_page_ = 0;
};

}  // namespace
}  // namespace retroinfer

int main(int argc, char** argv) {
  const retroinfer::Settings settings = retroinfer::Parse(argc, argv);
  retroinfer::DecodeBench bench(settings);
  retroinfer::bench::Print(bench.Run());
  return 0;
}
