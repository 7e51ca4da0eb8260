// Time to first token of a whole model with random weights: a prompt of random tokens through the
// engine's own prefill lane, in rounds of policy full and policy wave, whose segments are
// clustered, written to the arena and indexed as the engine does it. Then a few decode steps over
// what the prefill left behind.
//
// usage: first_token_bench [--backend cpu|cuda] [--model llama-3.1-8b] [--tokens 117760]
//          [--rows 1024] [--rounds 2] [--decode-steps 32] [--cache-share 0.05]
//          [--weights-dtype auto|fp8|int4] [--activations-dtype bf16|fp8] [--stretch-tokens 32768]
//          [--prefill exact|sparse] [--density 0.25] [--sparse-alone] [--policy both|full|wave]
//          [--kv-dtype bf16|int8] [--index-dtype auto|packed|int8|bf16] [--layers N]
// Prints one JSON object. --rows: tokens of a slice. --cache-share: slots of the block cache, of
// all pages of the context. --stretch-tokens: the least of a stretch that goes through all layers
// before the next one does, which grows to half of the tokens before it; 0: the prompt is read as
// one. --prefill sparse: prompts attend to chosen blocks of keys; exact ones are timed beside, but
// for --sparse-alone.
// Random weights weigh all blocks about alike: with --density blocks are chosen, and then drawn
// instead (bench/support/drawn_blocks.h; cuda). index_share: what wave adds to full's prefill,
// until decode may begin, the median over the rounds. Every other round begins with wave: a GPU
// that warms up slows down.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "bench/support/backend.h"
#include "bench/support/measure.h"
#include "bench/support/must.h"
#include "bench/support/wave_memory.h"
#include "gpu_worker/executor/decode_step.h"
#include "gpu_worker/executor/prefill_lane.h"
#include "gpu_worker/model/kept_weights.h"
#include "gpu_worker/model/model_shapes.h"
#include "tests/support/decoding_sequence.h"
#include "tests/support/tend_cache.h"

namespace retroinfer {
namespace {

using bench::Must;
using test_support::DecodingSequence;

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
  Stretches stretches;
  std::string weights_dtype = "auto";
  std::string activations_dtype = "bf16";
  std::string kv_dtype = "bf16";
  std::string index_dtype = "auto";
  PrefillKind prefill = PrefillKind::kExact;
  double density = 0;  // 0: blocks are not drawn
  int64_t layers = 0;  // 0: the model's
  bool runs_full = true;
  bool runs_wave = true;
  bool runs_exact = true;  // beside sparse prompts
};

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
    settings.stretches = {.least_tokens = 1024, .share_of_prefix = 0};
  }
  CLI::App app;
  app.add_option("--backend", settings.backend)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--model", settings.model);
  app.add_option("--tokens", settings.tokens)->check(CLI::Range(1, 1'000'000'000));
  app.add_option("--rows", settings.rows)->check(CLI::Range(1, 1'000'000'000));
  app.add_option("--rounds", settings.rounds)->check(CLI::Range(1, 1'000'000'000));
  app.add_option("--decode-steps", settings.decode_steps)->check(CLI::NonNegativeNumber);
  app.add_option("--weights-dtype", settings.weights_dtype)
      ->check(CLI::IsMember({"auto", "fp8", "int4"}));
  app.add_option("--activations-dtype", settings.activations_dtype)
      ->check(CLI::IsMember({"bf16", "fp8"}));
  app.add_option("--kv-dtype", settings.kv_dtype)->check(CLI::IsMember({"bf16", "int8"}));
  app.add_option("--index-dtype", settings.index_dtype)
      ->check(CLI::IsMember({"auto", "packed", "int8", "bf16"}));
  app.add_option("--stretch-tokens", settings.stretches.least_tokens)
      ->check(CLI::NonNegativeNumber);
  std::string prefill = "exact", policy = "both";
  app.add_option("--prefill", prefill)->check(CLI::IsMember({"exact", "sparse"}));
  app.add_option("--policy", policy)->check(CLI::IsMember({"both", "full", "wave"}));
  app.add_option("--density", settings.density)->check(CLI::Range(0.01, 0.5));
  app.add_option("--cache-share", settings.cache_share)->check(CLI::Range(0.0, 1.0));
  app.add_option("--layers", settings.layers)->check(CLI::Range(1, 1000));
  bool sparse_alone = false;
  app.add_flag("--sparse-alone", sparse_alone, "No exact prompts beside sparse ones");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  if (prefill == "sparse") settings.prefill = PrefillKind::kSparse;
  settings.runs_full = policy != "wave";
  settings.runs_wave = policy != "full";
  settings.runs_exact = settings.prefill == PrefillKind::kSparse && !sparse_alone;
  return settings;
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
      : settings_(settings), backend_(bench::CreateBackend(settings.backend)) {
    if (settings.density > 0) drawn_ = bench::DrawChoices(backend_, settings.density);
    config_ = Must(NamedModelShape(settings.model));
    if (settings.layers != 0) config_.num_layers = settings.layers;
    total_tokens_ = settings.tokens + settings.decode_steps + 1;
    config_.context_length = std::max(config_.context_length, total_tokens_);
    model_ = Must(Transformer::LoadRandom(
        *backend_.device, *backend_.ops, config_,
        {.max_prefill_rows = settings.rows,
         .max_decode_rows = 1,
         .max_positions = 0,
         .weights =
             Must(KeptWeightsNamed(settings.weights_dtype, config_, settings.activations_dtype)),
         .progress = {}}));
    geometry_ = config_.geometry(Must(KvFormatNamed(settings.kv_dtype, settings.index_dtype)));
    CreateMemory();
    full_ = memory_->CreateFullPolicy();
    wave_ = memory_->CreateWavePolicy();
    sampler_ = Must(Sampler::Create(*backend_.device, backend_.ops->model(), *backend_.stream, 1,
                                    config_.vocab_size));
    step_ = Must(DecodeStep::Create(*backend_.device, *backend_.stream, *model_, *sampler_, 1));
    lane_ = Must(PrefillLane::Create({.device = backend_.device.get(),
                                      .ops = backend_.ops.get(),
                                      .stream = backend_.stream.get(),
                                      .model = model_.get(),
                                      .arena = memory_->cache().device_arena()},
                                     geometry_, settings.tokens, settings.rows));
    std::mt19937 random(1);
    std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(config_.vocab_size) - 1);
    for (int64_t i = 0; i < settings.tokens; ++i) prompt_.push_back(token(random));
  }

  nlohmann::json Run() {
    // Short prompts warm up: kernels are loaded then, and products choose theirs.
    const int64_t short_prompt = std::min(settings_.tokens, 2 * settings_.dense_below);
    AttentionPolicy& first = settings_.runs_full ? static_cast<AttentionPolicy&>(*full_) : *wave_;
    (void)Prefill(first, short_prompt);
    if (settings_.runs_wave) (void)Prefill(*wave_, short_prompt);
    if (drawn_ != nullptr) (void)Prefill(first, settings_.tokens);  // draws
    std::vector<Round> exact, full, wave;
    std::vector<double> shares;
    for (int64_t i = 0; i < settings_.rounds; ++i) {
      if (settings_.runs_exact) {
        exact.push_back(Prefill(first, settings_.tokens, PrefillKind::kExact));
      }
      const bool wave_is_first = settings_.runs_wave && i % 2 != 0;
      if (settings_.runs_full && !wave_is_first) full.push_back(Prefill(*full_, settings_.tokens));
      if (settings_.runs_wave) wave.push_back(Prefill(*wave_, settings_.tokens));
      if (settings_.runs_full && wave_is_first) full.push_back(Prefill(*full_, settings_.tokens));
      if (full.empty() || wave.empty()) continue;
      shares.push_back(wave.back().indexed / full.back().indexed - 1);
    }
    nlohmann::json json = bench::Report("first_token", backend_.device->info());
    json["settings"] = {{"model", settings_.model},
                        {"layers", config_.num_layers},
                        {"tokens", settings_.tokens},
                        {"rows", settings_.rows},
                        {"weights_dtype", settings_.weights_dtype},
                        {"activations_dtype", settings_.activations_dtype},
                        {"kv_format", std::string(geometry_.format.name)},
                        {"rounds", settings_.rounds},
                        {"prefill", kPrefillNames[static_cast<size_t>(settings_.prefill)]},
                        {"stretch_tokens", settings_.stretches.least_tokens},
                        {"cache_slots", memory_->num_slots()},
                        {"decode_steps", settings_.decode_steps},
                        {"segments", num_segments_}};
    if (drawn_ != nullptr) {
      json["density"] = drawn_->density();
      json["copied_of_chosen"] = drawn_->copied_of_chosen();
    }
    if (!exact.empty()) json[settings_.runs_full ? "full_exact" : "wave_exact"] = ToJson(exact);
    if (!full.empty()) json["full"] = ToJson(full);
    if (!wave.empty()) json["wave"] = ToJson(wave);
    if (!shares.empty()) {
      json["index_share"] = Median(shares);
      json["index_share_rounds"] = shares;
    }
    return json;
  }

 private:
  // Policy full has the whole context in dense blocks, wave what segments do not hold.
  int32_t DenseBlocks() const {
    const int64_t tokens =
        settings_.runs_full
            ? total_tokens_
            : std::min(total_tokens_, settings_.dense_below + 4 * kDecodeSegmentTokens);
    return static_cast<int32_t>(1 + (tokens + kDenseBlockTokens - 1) / kDenseBlockTokens);
  }

  void CreateMemory() {
    bench::WaveMemory::Sizes sizes{.geometry = geometry_,
                                   .cache_share = settings_.cache_share,
                                   .num_query_heads = static_cast<int32_t>(config_.num_query_heads),
                                   .dense_blocks = DenseBlocks(),
                                   .max_model_len = total_tokens_,
                                   .dense_below = settings_.dense_below,
                                   .stretches = settings_.stretches};
    for (const PlannedSegment& segment :
         PlanSegments(settings_.tokens, total_tokens_, settings_.dense_below)) {
      sizes.segment_tokens.push_back(segment.num_tokens);
    }
    num_segments_ = sizes.segment_tokens.size();
    memory_ = std::make_unique<bench::WaveMemory>(backend_, std::move(sizes));
  }

  std::unique_ptr<DecodingSequence> MakeSequence(AttentionPolicy& policy, int64_t tokens,
                                                 PrefillKind prefill) {
    auto live = std::make_unique<DecodingSequence>();
    live->prompt.assign(prompt_.begin(), prompt_.begin() + tokens);
    live->sequence.policy = &policy;
    live->sequence.kv.sequence_id = next_sequence_++;
    live->sequence.kv.prompt_tokens = tokens;
    live->sequence.kv.total_tokens = tokens + settings_.decode_steps + 1;
    live->sequence.kv.settings.prefill = prefill;
    live->sequence.sampling =
        Must(SamplingState::Create(*backend_.device, *backend_.stream, {.temperature = 0},
                                   live->prompt, {}, config_.vocab_size));
    memory_->Reserve(policy.Need({}, tokens, live->sequence.kv.total_tokens), 0, live->sequence.kv);
    return live;
  }

  Round Prefill(AttentionPolicy& policy, int64_t tokens) {
    return Prefill(policy, tokens, settings_.prefill);
  }
  Round Prefill(AttentionPolicy& policy, int64_t tokens, PrefillKind prefill) {
    std::unique_ptr<DecodingSequence> live = MakeSequence(policy, tokens, prefill);
    Must(backend_.stream->Synchronize());
    Round round;
    const absl::Time begin = absl::Now();
    while (true) {
      ReadPart(*live, policy, round);
      if (lane_->FinishesPrompt(live->sequence.kv)) break;
      if (!policy.TakesInOrder(live->sequence.kv)) {
        while (!Must(policy.PromptTaken(live->sequence.kv))) absl::SleepFor(kBlockedWait);
        policy.EndPart(live->sequence.kv);
      }
      lane_->Leave(live->sequence.kv);
    }
    SamplingState* const state = &*live->sequence.sampling;
    const OutputToken token = Must(sampler_->Sample(std::span(&state, 1))).front();
    live->next_token = token.token;
    Must(live->sequence.sampling->Count(token.token));
    round.first_token = absl::ToDoubleSeconds(absl::Now() - begin);
    while (!Must(policy.FinishPrefill(live->sequence.kv))) absl::SleepFor(kBlockedWait);
    round.indexed = absl::ToDoubleSeconds(absl::Now() - begin);
    lane_->Leave(live->sequence.kv);
    Decode(*live, round);
    while (!Must(policy.Release(live->sequence.kv))) {
      Must(test_support::Tend(memory_->cache()));
      std::this_thread::yield();
    }
    memory_->memory().Free(live->sequence.kv);
    return round;
  }

  void ReadPart(DecodingSequence& live, AttentionPolicy& policy, Round& round) {
    Must(lane_->Begin(live.prompt, live.sequence.kv, policy));
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
  }

  void Decode(DecodingSequence& live, Round& round) {
    const BlockCacheStats before = memory_->CacheStats();
    for (int64_t i = 0; i < settings_.decode_steps; ++i) {
      Must(test_support::Tend(memory_->cache()));
      const absl::Time begin = absl::Now();
      const StepRow rows[] = {live.Row()};
      const StepResult result = Must(step_->Run(rows)).front();
      round.steps.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
      live.Take(result);
      Must(live.sequence.sampling->Count(live.next_token));
    }
    const BlockCacheStats after = memory_->CacheStats();
    const uint64_t hits = after.counters.hits - before.counters.hits;
    round.misses = after.counters.misses - before.counters.misses;
    const auto pages = static_cast<double>(hits + round.misses);
    round.hit_ratio = pages > 0 ? static_cast<double>(hits) / pages : 0;
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
  test_support::Backend backend_;
  const bench::BlockTotals* drawn_ = nullptr;  // of backend_.ops
  ModelConfig config_;
  KvGeometry geometry_;
  int64_t total_tokens_ = 0;
  std::unique_ptr<Transformer> model_;
  size_t num_segments_ = 0;
  std::unique_ptr<bench::WaveMemory> memory_;
  std::unique_ptr<FullPolicy> full_;
  std::unique_ptr<WavePolicy> wave_;
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<DecodeStep> step_;
  std::unique_ptr<PrefillLane> lane_;
  std::vector<int32_t> prompt_;
  uint64_t next_sequence_ = 1;
};

}  // namespace
}  // namespace retroinfer

int main(int argc, char** argv) {
  const retroinfer::Settings settings = retroinfer::Parse(argc, argv);
  retroinfer::FirstTokenBench bench(settings);
  retroinfer::bench::Print(bench.Run());
  return 0;
}
