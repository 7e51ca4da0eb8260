// Questions behind a long text that is in the arena, fed to decode steps (PrefillKind::kIndexed): a
// whole model with random weights over a synthetic context, whose queries repeat recorded steps of
// a real model (recorded_reuse.h). The engine's lane, steps, policy and memory, without the engine:
// each question loads the text's index unless another one has, reads its window, computes the sink,
// and feeds its tokens; then it lets go of everything.
//
// usage: indexed_tail_bench [--backend cpu|cuda] [--model llama-3.1-8b] [--context 102400]
//          [--tail 64] [--clients 1 8] [--batch 64] [--rounds 8] [--first-rows 0 8]
//          [--tail-run 1 64] [--retrieval 0.018]
//          [--cache-share 0.1] [--reuse code|needle] [--weights-dtype auto|fp8|int4]
//          [--kv-dtype bf16|int8] [--index-dtype auto|packed|int8|bf16] [--layers N]
// Prints one JSON object: for each number of clients, who all ask at once, the time until all have
// the first token of the answer, the steps of a round, and questions a second. --first-rows: the
// first step of a question feeds at most so many of its tokens; 0: as many as there are rows.
// --tail-run: rows that share what they retrieve, all of which are in one step; 1: each retrieves
// for itself. Of such rows --first-rows says nothing.
// "held": another sequence attends to the text all the time, so that its index is on the device,
// and pages in the block cache.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "bench/support/backend.h"
#include "bench/support/measure.h"
#include "bench/support/must.h"
#include "bench/support/wave_memory.h"
#include "common/kv/block_layout.h"
#include "gpu_worker/executor/decode_step.h"
#include "gpu_worker/executor/prefill_lane.h"
#include "gpu_worker/measuring/synthetic/drifting_queries.h"
#include "gpu_worker/measuring/synthetic/synthetic_context.h"
#include "gpu_worker/model/kept_weights.h"
#include "gpu_worker/model/model_shapes.h"
#include "tests/support/decoding_sequence.h"
#include "tests/support/tend_cache.h"

namespace retroinfer {
namespace {

using bench::Must;
using test_support::DecodingSequence;

struct Settings {
  std::string backend = "cpu";
  std::string model = "llama-3.1-8b";
  uint32_t layers = 0;  // 0: as the model has
  int64_t context = 102'400;
  int64_t tail = 64;
  std::vector<int64_t> clients = {1, 8};
  int32_t batch = 64;
  int64_t rounds = 8;
  std::vector<int64_t> first_rows = {0, 8};
  std::vector<int32_t> tail_runs = {1, 64};
  double retrieval = AttentionSettings().retrieval_ratio;
  double cache_share = 0.1;
  int64_t dense_below = 8192;
  std::string reuse = "code";
  std::string weights_dtype = "auto";
  std::string kv_dtype = "bf16";
  std::string index_dtype = "auto";
};

Settings Parse(int argc, char** argv) {
  Settings settings;
  if (bench::IsSmoke()) {
    settings.model = "tiny";
    settings.context = 2500;
    settings.clients = {1, 3};
    settings.batch = 8;
    settings.rounds = 1;
    settings.cache_share = 0.3;
    settings.dense_below = 1500;
    settings.tail = 20;
    settings.tail_runs = {1, 4};
  }
  CLI::App app;
  app.add_option("--backend", settings.backend)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--model", settings.model);
  app.add_option("--layers", settings.layers)->check(CLI::Range(1, 1000));
  app.add_option("--context", settings.context)->check(CLI::Range(1, 1'000'000'000));
  app.add_option("--tail", settings.tail)->check(CLI::Range(1, 900));
  app.add_option("--clients", settings.clients)->check(CLI::Range(1, 1000));
  app.add_option("--batch", settings.batch)->check(CLI::Range(1, 1024));
  app.add_option("--rounds", settings.rounds)->check(CLI::Range(1, 1'000'000));
  app.add_option("--first-rows", settings.first_rows)->check(CLI::Range(0, 1024));
  app.add_option("--tail-run", settings.tail_runs)->check(CLI::IsMember({1, 2, 4, 8, 16, 32, 64}));
  app.add_option("--retrieval", settings.retrieval)->check(CLI::Range(0.0, 1.0));
  app.add_option("--cache-share", settings.cache_share)->check(CLI::Range(0.0, 1.0));
  app.add_option("--reuse", settings.reuse)->check(CLI::IsMember({"code", "needle"}));
  app.add_option("--weights-dtype", settings.weights_dtype)
      ->check(CLI::IsMember({"auto", "fp8", "int4"}));
  app.add_option("--kv-dtype", settings.kv_dtype)->check(CLI::IsMember({"bf16", "int8"}));
  app.add_option("--index-dtype", settings.index_dtype)
      ->check(CLI::IsMember({"auto", "packed", "int8", "bf16"}));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  if (settings.batch < *std::ranges::max_element(settings.tail_runs)) {
    std::cerr << "--batch is less than a --tail-run\n";
    std::exit(EXIT_FAILURE);
  }
  return settings;
}

double Ms(absl::Time begin, absl::Time end) { return 1e3 * absl::ToDoubleSeconds(end - begin); }

class IndexedTailBench {
 public:
  explicit IndexedTailBench(const Settings& settings)
      : settings_(settings), backend_(bench::CreateBackend(settings.backend)) {
    config_ = Must(NamedModelShape(settings.model));
    if (settings.layers != 0) config_.num_layers = settings.layers;
    most_clients_ = *std::ranges::max_element(settings.clients);
    head_ = kSinkTokens + (settings.context - kSinkTokens) / kDenseBlockTokens * kDenseBlockTokens;
    total_tokens_ = head_ + settings.tail + 1;
    config_.context_length = std::max(config_.context_length, total_tokens_);
    model_ = Must(
        Transformer::LoadRandom(*backend_.device, *backend_.ops, config_,
                                {.max_prefill_rows = kSinkTokens * most_clients_,
                                 .max_decode_rows = settings.batch,
                                 .max_positions = 0,
                                 .weights = Must(KeptWeightsNamed(settings.weights_dtype, config_)),
                                 .progress = {}}));
    geometry_ = config_.geometry(Must(KvFormatNamed(settings.kv_dtype, settings.index_dtype)));
    plan_ = PlanSegments(head_, total_tokens_, settings.dense_below);
    CreateMemory();
    CreatePolicy();
    sampler_ = Must(Sampler::Create(*backend_.device, backend_.ops->model(), *backend_.stream,
                                    settings.batch, config_.vocab_size));
    step_ = Must(
        DecodeStep::Create(*backend_.device, *backend_.stream, *model_, *sampler_, settings.batch));
    lane_ =
        Must(PrefillLane::Create({.device = backend_.device.get(),
                                  .ops = backend_.ops.get(),
                                  .stream = backend_.stream.get(),
                                  .model = model_.get(),
                                  .arena = memory_->cache().device_arena()},
                                 geometry_, (most_clients_ + 1) * (kSinkTokens + Window()),
                                 kSinkTokens * most_clients_, static_cast<int32_t>(most_clients_)));
  }

  nlohmann::json Run() {
    const absl::Time begin = absl::Now();
    auto text = FillContext();
    const double fill_ms = Ms(begin, absl::Now());
    LetGo(*text);
    nlohmann::json json = bench::Report("indexed_tail", backend_.device->info());
    json["settings"] = {{"model", settings_.model},
                        {"context_tokens", head_},
                        {"tail_tokens", settings_.tail},
                        {"batch", settings_.batch},
                        {"retrieval_ratio", settings_.retrieval},
                        {"reuse", settings_.reuse},
                        {"kv_format", std::string(geometry_.format.name)},
                        {"weights_dtype", settings_.weights_dtype},
                        {"cache_slots", memory_->num_slots()}};
    json["fill_ms"] = fill_ms;
    std::vector<std::unique_ptr<DecodingSequence>> holder;
    for (const bool is_held : {false, true}) {
      if (is_held) holder = ReadHeads(1);
      for (const int64_t clients : settings_.clients) {
        for (const int32_t tail_run : settings_.tail_runs) {
          tail_run_ = tail_run;
          for (const int64_t first_rows : settings_.first_rows) {
            if (tail_run > 1 && first_rows > 0) continue;
            first_rows_ = first_rows;
            nlohmann::json one = AskOften(clients);
            one["held"] = is_held;
            one["first_rows"] = first_rows;
            one["tail_run"] = tail_run;
            json["rounds"].push_back(std::move(one));
          }
        }
      }
    }
    LetGo(*holder.front());
    return json;
  }

 private:
  struct Round {
    double head_ms = 0;   // until the first token of the tail can be fed
    double all_ms = 0;    // until all first tokens are drawn
    double mean_ms = 0;   // of the times until a question has its first token
    double whole_ms = 0;  // until everything is let go
    std::vector<double> step_ms;
    uint64_t hits = 0, misses = 0;
  };

  nlohmann::json AskOften(int64_t clients) {
    for (int64_t i = 0; i < 2; ++i) (void)Ask(clients);  // graphs are recorded
    std::vector<Round> rounds;
    for (int64_t i = 0; i < settings_.rounds; ++i) rounds.push_back(Ask(clients));
    return ToJson(clients, rounds);
  }

  int64_t Window() const { return head_ - SegmentsEnd(); }
  int64_t SegmentsEnd() const {
    return plan_.empty() ? kSinkTokens : plan_.back().token_begin + plan_.back().num_tokens;
  }

  void CreateMemory() {
    const auto window_blocks = static_cast<int32_t>((Window() + settings_.tail) / 64 + 3);
    bench::WaveMemory::Sizes sizes{
        .geometry = geometry_,
        .cache_share = settings_.cache_share,
        .num_query_heads = static_cast<int32_t>(config_.num_query_heads),
        .dense_blocks = window_blocks * static_cast<int32_t>(most_clients_ + 1),
        .max_batch = std::max(settings_.batch, static_cast<int32_t>(most_clients_ + 1)),
        .max_model_len = total_tokens_,
        .dense_below = settings_.dense_below};
    // A question reserves an index of its own before it shares the text's.
    for (const PlannedSegment& segment : plan_) {
      sizes.segment_tokens.push_back(segment.num_tokens);
      sizes.more_meta_blocks += segment.num_tokens / kDecodeSegmentTokens;
    }
    sizes.segment_tokens.resize(sizes.segment_tokens.size() + 2, kDecodeSegmentTokens);  // blocks
    memory_ = std::make_unique<bench::WaveMemory>(backend_, std::move(sizes));
  }

  void CreatePolicy() {
    policy_ = memory_->CreateWavePolicy();
    context_ = std::make_unique<SyntheticContext>(Must(SyntheticContext::Create(
        *backend_.device, *backend_.ops,
        {.geometry = geometry_,
         .num_query_heads = static_cast<int32_t>(config_.num_query_heads),
         .max_tokens = head_,
         .overlap = {},
         .reuse = settings_.reuse == "needle" ? RecordedModel::kNeedle : RecordedModel::kCode,
         .retrieval_ratio = settings_.retrieval})));
    drifting_ =
        Must(DriftingQueries::Create(*backend_.device, backend_.ops->model(), *backend_.stream,
                                     *policy_, *context_, geometry_.num_layers, settings_.batch));
  }

  std::unique_ptr<DecodingSequence> MakeSequence() {
    auto live = std::make_unique<DecodingSequence>();
    live->prompt.assign(static_cast<size_t>(head_ + settings_.tail), 1);
    live->sequence.policy = drifting_.get();
    SequenceKv& kv = live->sequence.kv;
    kv.sequence_id = next_id_++;
    kv.settings.retrieval_ratio = settings_.retrieval;
    kv.settings.tail_run = tail_run_;
    kv.prompt = std::span<const int32_t>(live->prompt).first(static_cast<size_t>(head_));
    kv.prompt_tokens = head_;
    kv.total_tokens = total_tokens_;
    const std::vector<int32_t> prompt = {1};
    live->sequence.sampling = Must(SamplingState::Create(
        *backend_.device, *backend_.stream, {.temperature = 0}, prompt, {}, config_.vocab_size));
    return live;
  }

  // Leaves the text's segments in the arena. The window's blocks behind them are never written:
  // what the memory had, zeros.
  std::unique_ptr<DecodingSequence> FillContext() {
    auto live = MakeSequence();
    SequenceKv& kv = live->sequence.kv;
    kv.part.end = head_;
    next_page_ = memory_->Reserve(drifting_->Need({}, head_, total_tokens_), 0, kv);
    extents_ = kv.extents;
    for (uint32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      const LayerKv layer_kv = Must(context_->MakeLayer(*backend_.stream, layer, head_));
      Must(drifting_->TakeLayer(kv, layer, layer_kv));
      Must(backend_.stream->Synchronize());
      while (!Must(drifting_->LayerTaken(kv, layer))) std::this_thread::yield();
    }
    while (!Must(drifting_->FinishPrefill(kv))) std::this_thread::yield();
    return live;
  }

  // What the store would have found: the text's segments, and its window in blocks.
  void Claim(SequenceKv& kv) {
    kv.given_tokens = settings_.tail;
    kv.extents = extents_;
    kv.num_cached_segments = extents_.size();
    for (const Extent& extent : extents_) {
      kv.cached.push_back({.extent = extent, .name = {}, .token_begin = kv.read_end()});
    }
    kv.shared_end = kv.read_end();
    const BlockLayout layout(geometry_);
    PageId page = next_page_;
    while (kv.read_end() < head_) {
      const Extent block{.id = 1'000'000 + page,
                         .first_page = page,
                         .num_pages = layout.num_pages,
                         .num_tokens = kDenseBlockTokens};
      kv.cached.push_back({.extent = block, .name = {}, .token_begin = kv.read_end()});
      page += layout.num_pages;
    }
    kv.cached_end = kv.read_end();
    memory_->memory().ShareIndexes(kv);
  }

  // Questions whose tails can be fed.
  std::vector<std::unique_ptr<DecodingSequence>> ReadHeads(int64_t clients) {
    std::vector<std::unique_ptr<DecodingSequence>> asking;
    std::vector<PrefillLane::Member> members;
    KvNeed need = drifting_->Need({}, head_, total_tokens_);
    need.segment_tokens.clear();
    for (int64_t i = 0; i < clients; ++i) {
      SequenceKv& kv = asking.emplace_back(MakeSequence())->sequence.kv;
      memory_->Reserve(need, 0, kv);
      Claim(kv);
      members.push_back({.prompt = kv.prompt, .sequence = &kv, .policy = drifting_.get()});
    }
    Must(lane_->Begin(members));
    auto outcome = PrefillLane::Outcome::kWorked;
    while (outcome != PrefillLane::Outcome::kDone) {
      outcome = Must(lane_->RunSlice(kSinkTokens * most_clients_, sampler_->logits(1)));
    }
    for (const auto& live : asking) {
      RI_CHECK(Must(drifting_->FinishPrefill(live->sequence.kv)));
      lane_->Leave(live->sequence.kv);
    }
    return asking;
  }

  Round Ask(int64_t clients) {
    const BlockCacheStats before = memory_->CacheStats();
    Must(backend_.stream->Synchronize());
    Round round;
    const absl::Time begin = absl::Now();
    const auto asking = ReadHeads(clients);
    Must(backend_.stream->Synchronize());
    round.head_ms = Ms(begin, absl::Now());
    Feed(asking, begin, round);
    for (const auto& live : asking) LetGo(*live);
    round.whole_ms = Ms(begin, absl::Now());
    const BlockCacheStats after = memory_->CacheStats();
    round.hits = after.counters.hits - before.counters.hits;
    round.misses = after.counters.misses - before.counters.misses;
    return round;
  }

  // How many tokens the next step may feed.
  int64_t MostOf(const SequenceKv& kv) const {
    const bool is_first = kv.given_left() == settings_.tail;
    const int64_t most = is_first && first_rows_ > 0 ? first_rows_ : kv.given_left();
    return std::clamp<int64_t>(most, 1, std::max<int64_t>(1, kv.given_left()));
  }

  // Rows of the next step by question: one each, the others to the first ones, as the scheduler
  // gives them.
  std::vector<int64_t> RowsOf(const std::vector<std::unique_ptr<DecodingSequence>>& asking) const {
    std::vector<int64_t> rows_of(asking.size(), 0);
    int64_t free = settings_.batch;
    if (tail_run_ > 1) {
      for (size_t i = 0; i < asking.size(); ++i) {
        const int64_t left = asking[i]->sequence.kv.given_left();
        const int64_t most = left <= free ? left : free / tail_run_ * tail_run_;
        free -= rows_of[i] = most;
      }
      return rows_of;
    }
    for (size_t i = 0; i < asking.size() && free > 0; ++i) {
      if (asking[i]->sequence.kv.given_left() == 0) continue;
      rows_of[i] = 1;
      --free;
    }
    for (size_t i = 0; i < asking.size(); ++i) {
      if (rows_of[i] == 0) continue;
      const int64_t more = std::min(free, MostOf(asking[i]->sequence.kv) - 1);
      rows_of[i] += more;
      free -= more;
    }
    return rows_of;
  }

  void Feed(const std::vector<std::unique_ptr<DecodingSequence>>& asking, absl::Time begin,
            Round& round) {
    std::vector<bool> is_done(asking.size(), false);
    while (std::ranges::count(is_done, false) > 0) {
      const absl::Time step_begin = absl::Now();
      StepWith(asking, RowsOf(asking));
      round.step_ms.push_back(Ms(step_begin, absl::Now()));
      round.all_ms = Ms(begin, absl::Now());
      for (size_t i = 0; i < asking.size(); ++i) {
        if (is_done[i] || asking[i]->sequence.kv.given_left() > 0) continue;
        is_done[i] = true;
        round.mean_ms += round.all_ms / static_cast<double>(asking.size());
      }
    }
  }

  void StepWith(const std::vector<std::unique_ptr<DecodingSequence>>& asking,
                const std::vector<int64_t>& rows_of) {
    Must(test_support::Tend(memory_->cache()));
    Must(memory_->cache().BeginStep());
    std::vector<StepRow> rows;
    for (size_t i = 0; i < asking.size(); ++i) {
      Sequence& sequence = asking[i]->sequence;
      for (int64_t row = 0; row < rows_of[i]; ++row) {
        const bool is_last = row + 1 == sequence.kv.given_left();
        rows.push_back({.sequence = &sequence.kv,
                        .policy = sequence.policy,
                        .sampling = &*sequence.sampling,
                        .token = 1,
                        .position = sequence.kv.num_tokens + row,
                        .task = is_last ? StepRow::Task::kDraw : StepRow::Task::kMeasure,
                        .target = is_last ? -1 : 1});
      }
    }
    (void)Must(step_->Run(rows));
  }

  void LetGo(DecodingSequence& live) {
    while (!Must(drifting_->Release(live.sequence.kv))) {
      Must(test_support::Tend(memory_->cache()));
      std::this_thread::yield();
    }
    memory_->memory().Free(live.sequence.kv);
  }

  static nlohmann::json ToJson(int64_t clients, const std::vector<Round>& rounds) {
    const auto median = [&rounds](auto of) {
      std::vector<double> values;
      for (const Round& round : rounds) values.push_back(of(round));
      std::sort(values.begin(), values.end());
      return values[values.size() / 2];
    };
    const double whole = median([](const Round& round) { return round.whole_ms; });
    const Round& last = rounds.back();
    return {{"clients", clients},
            {"head_ms", median([](const Round& round) { return round.head_ms; })},
            {"first_token_ms_mean", median([](const Round& round) { return round.mean_ms; })},
            {"first_token_ms_of_all", median([](const Round& round) { return round.all_ms; })},
            {"whole_ms", whole},
            {"questions_per_s", 1e3 * static_cast<double>(clients) / whole},
            {"step_ms_of_last_round", last.step_ms},
            {"hits", last.hits},
            {"misses", last.misses}};
  }

  const Settings settings_;
  test_support::Backend backend_;
  ModelConfig config_;
  KvGeometry geometry_;
  int64_t most_clients_ = 0;
  int64_t head_ = 0;
  int64_t total_tokens_ = 0;
  std::vector<PlannedSegment> plan_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<bench::WaveMemory> memory_;
  std::unique_ptr<WavePolicy> policy_;
  std::unique_ptr<SyntheticContext> context_;
  std::unique_ptr<DriftingQueries> drifting_;
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<DecodeStep> step_;
  std::unique_ptr<PrefillLane> lane_;
  std::vector<Extent> extents_;
  PageId next_page_ = 0;
  uint64_t next_id_ = 1;
  int64_t first_rows_ = 0;
  int32_t tail_run_ = 1;
};

}  // namespace
}  // namespace retroinfer

int main(int argc, char** argv) {
  const retroinfer::Settings settings = retroinfer::Parse(argc, argv);
  retroinfer::IndexedTailBench bench(settings);
  retroinfer::bench::Print(bench.Run());
  return 0;
}
