// Attention of a decode step at a long context: policy wave over policy full, and the stages of
// wave, measured in the same rounds with a warm block cache. Shape of the demo model: 4 layers, 8
// query and 2 KV heads of 128, bf16 KV, 131,072 tokens. Keys are clustered (topics that last for a
// while), queries drift from step to step.
//
//   wave_attention_bench [--kv-dtype bf16|int8] [--index-dtype bf16|int8|coded|auto]
//
// As a worker does with such an index by default: how much is retrieved, and how much of the radius
// counts.
//
// Checks first that wave with everything retrieved equals full attention. Prints JSON; exits with 1
// if the check fails.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/support/measure.h"
#include "common/kv/segment_layout.h"
#include "gpu_worker/attention/wave_decode.h"
#include "gpu_worker/wave_index/retrieval_quality.h"
#include "gpu_worker/wave_index/segment_builder.h"
#include "gpu_worker/wave_index/segment_plan.h"
#include "tests/support/backends.h"
#include "tests/support/data_plane_memory.h"
#include "tests/support/device_data.h"
#include "tests/support/tend_cache.h"

namespace retroinfer {
namespace {

using namespace test_support;

constexpr uint32_t kLayers = 4;
constexpr uint32_t kKvHeads = 2;
constexpr int32_t kQueryHeads = 8;
constexpr size_t kDim = 128;
const AttentionForm kForm{.scale = 1.0f / std::sqrt(static_cast<float>(kDim))};
constexpr int64_t kCols = int64_t{kQueryHeads} * kDim;
constexpr size_t kTopics = 512;
constexpr uint32_t kSlots = 60'000;
constexpr size_t kSteps = 32;  // different queries, used in turn

// Clustered keys and values of one layer: a topic's direction plus noise, new topics now and then.
class LayerSource {
 public:
  LayerSource(int64_t tokens, uint32_t layer)
      : tokens_(tokens),
        random_(layer + 1),
        topics_(RandomNormal(kTopics * kDim, 10 + layer)),
        noise_(RandomNormal(1 << 20, 20 + layer, 0.6f)) {}

  void Fill(const LayerKv& kv) {
    for (uint32_t head = 0; head < kv.num_kv_heads; ++head) {
      size_t topic = 0;
      for (int64_t t = 0; t < tokens_; ++t) {
        if (random_() % 24 == 0) topic = random_() % kTopics;
        FillVector(topic, kv.Key(head, t));
        FillVector((topic * 7 + 3) % kTopics, kv.Value(head, t));
      }
    }
  }

  // Queries of `kSteps` steps, [step][query_heads * d]: each head walks from topic to topic.
  std::vector<float> Queries() {
    std::vector<float> queries;
    for (size_t step = 0; step < kSteps; ++step) {
      for (size_t head = 0; head < static_cast<size_t>(kQueryHeads); ++head) {
        // Half way between two topics at most; a new pair every 16 steps.
        const size_t from = head * 37 + step / 16, to = from + 1;
        const float share = static_cast<float>(step % 16) / 16;
        for (size_t i = 0; i < kDim; ++i) {
          queries.push_back(1.3f * ((1 - share) * topics_[from % kTopics * kDim + i] +
                                    share * topics_[to % kTopics * kDim + i]) +
                            noise_[random_() % noise_.size()]);
        }
      }
    }
    return queries;
  }

 private:
  void FillVector(size_t topic, std::byte* out) {
    const float* noise = noise_.data() + random_() % (noise_.size() - kDim);
    auto* to = reinterpret_cast<uint16_t*>(out);
    for (size_t i = 0; i < kDim; ++i) to[i] = ToBf16(topics_[topic * kDim + i] + noise[i]);
  }

  const int64_t tokens_;
  std::mt19937_64 random_;
  const std::vector<float> topics_;
  const std::vector<float> noise_;
};

// One sequence, once in dense blocks for policy full and once as wave attention wants it.
class Context {
 public:
  Context(Backend& backend, int64_t tokens, const KvFormat& format)
      : backend_(backend),
        data_(backend),
        tokens_(tokens),
        geometry_{kLayers, kKvHeads, kDim, format},
        share_(RetrievalFor(RetrievalQuality::kStandard, format)),
        plan_(PlanSegments(tokens, tokens, 0)) {
    Allocate();
    FillLayers();
    MakeDecode();
  }

  int64_t tokens() const { return tokens_; }
  SelectionRatios ratios() const {
    return {.retrieval = share_.ratio,
            .min_retrieved = share_.min_retrieved,
            .candidates = share_.candidate_ratio,
            .min_candidates = share_.min_candidates};
  }
  WaveDecode& decode() { return *decode_; }
  BlockCache& cache() { return *cache_; }

  void BeginWave(const SelectionRatios& ratios) {
    RI_CHECK(test_support::BeginTendedStep(*cache_).ok());
    const WaveDecode::Sequence sequence{
        {meta_blocks_.as<const MetaBlockId>().device_data(), num_meta_blocks_}, ratios};
    RI_CHECK(
        decode_->BeginStep(std::span(&sequence, 1), wave_zone_.as<const DenseZone>().first(1), {})
            .ok());
    RI_CHECK(decode_->UploadStep().ok());
  }
  MatrixView Queries(uint32_t layer, size_t step) const {
    return queries_[layer].view.Rows(static_cast<int64_t>(step % kSteps), 1);
  }
  void RunWave(size_t step, const SelectionRatios& ratios) {
    BeginWave(ratios);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      RI_CHECK(decode_->Layer(layer, kForm, Queries(layer, step), wave_out_[layer].view).ok());
    }
    RI_CHECK(decode_->DownloadStep().ok());
  }
  void RunFull(size_t step) {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      DecodeAttentionArgs args{.queries = Queries(layer, step),
                               .pool = dense_pool(),
                               .layer = layer,
                               .zones = full_zone_.as<const DenseZone>().first(1),
                               .scale = kForm.scale,
                               .out = full_out_[layer].view,
                               .scratch = scratch_.bytes()};
      RI_CHECK(backend_.ops->attention().DecodeAttention(*backend_.stream, args).ok());
    }
  }
  // Empties the block cache, which stands alone here: takes the log's entries itself.
  void EmptyCache() {
    const auto ticket = cache_->Release(0, static_cast<uint32_t>(arena_.size() / kPageBytes));
    DataPlane store = plane_->view();
    std::vector<LogEntry> entries(1024);
    while (!cache_->ReleaseDone(ticket)) {
      RI_CHECK(test_support::Tend(*cache_).ok());
      while (*store.log().Pop(std::span(entries)) > 0) continue;
    }
  }
  // Largest relative error of the last wave step against the last full one.
  double Error() {
    double error = 0;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const auto want = data_.Values(full_out_[layer]);
      error = std::max(error, RelativeError(data_.Values(wave_out_[layer]),
                                            std::vector<double>(want.begin(), want.end())));
    }
    return error;
  }
  MatrixView wave_out(uint32_t layer) const { return wave_out_[layer].view; }
  double build_seconds() const { return build_seconds_; }

 private:
  DensePoolView dense_pool() const { return {dense_bytes_.bytes(), geometry_}; }
  MetaPoolView meta_pool() const { return {meta_bytes_.bytes(), geometry_}; }

  void Allocate();
  void FillLayers();
  void BuildLayer(uint32_t layer, const LayerKv& kv,
                  const std::vector<SegmentBuilder::Ticket>& tickets);
  std::vector<SegmentBuilder::Ticket> OpenSegments();
  void MakeDecode();

  Backend& backend_;
  DeviceData data_;
  const int64_t tokens_;
  const KvGeometry geometry_;
  const RetrievalShare share_;
  const std::vector<PlannedSegment> plan_;
  int64_t window_begin_ = kSinkTokens;
  int32_t num_meta_blocks_ = 0;
  double build_seconds_ = 0;
  std::vector<std::byte> arena_;
  std::unique_ptr<DataPlaneMemory> plane_;  // log of 131,072 entries
  std::unique_ptr<BlockCache> cache_;
  std::unique_ptr<SegmentBuilder> builder_;
  std::unique_ptr<WaveDecode> decode_;
  DeviceBuffer dense_bytes_, meta_bytes_, full_blocks_, wave_blocks_, meta_blocks_, full_zone_,
      wave_zone_, scratch_;
  std::vector<DeviceData::Matrix> queries_, wave_out_, full_out_;
};

// The whole context in dense blocks 0, 1, ...; the wave sequence shares the sink and the last ones.
void Context::Allocate() {
  uint32_t arena_pages = 0;
  for (const PlannedSegment& segment : plan_) {
    window_begin_ = segment.token_begin + segment.num_tokens;
    num_meta_blocks_ += static_cast<int32_t>(segment.num_tokens / kDecodeSegmentTokens);
    arena_pages += SegmentLayout(geometry_, segment.num_tokens).max_pages;
  }
  arena_.resize(size_t{arena_pages} * kPageBytes);
  plane_ = std::make_unique<DataPlaneMemory>(kSlots, 1 << 17, 64, arena_pages);
  cache_ =
      *BlockCache::Create(*backend_.device, backend_.ops->block_cache(), *backend_.stream,
                          {.num_slots = kSlots, .num_transient = 4096}, arena_, plane_->bytes());
  const int64_t num_blocks =
      1 + (tokens_ - kSinkTokens + kDenseBlockTokens - 1) / kDenseBlockTokens;
  dense_bytes_ =
      data_.Allocate(static_cast<size_t>(num_blocks) * DensePoolView::BlockBytes(geometry_));
  meta_bytes_ =
      data_.Allocate(static_cast<size_t>(num_meta_blocks_) * MetaPoolView::BlockBytes(geometry_));
  std::vector<DenseBlockId> blocks(static_cast<size_t>(num_blocks));
  std::iota(blocks.begin(), blocks.end(), 0);
  full_blocks_ = data_.Upload(blocks);
  blocks.erase(blocks.begin() + 1,
               blocks.begin() + 1 + (window_begin_ - kSinkTokens) / kDenseBlockTokens);
  wave_blocks_ = data_.Upload(blocks);
  const auto zone = [&](const DeviceBuffer& ids, int64_t window) {
    return data_.Upload(std::vector<DenseZone>{
        {ids.as<const DenseBlockId>().device_data(), kSinkTokens, static_cast<int32_t>(window)}});
  };
  full_zone_ = zone(full_blocks_, tokens_ - kSinkTokens);
  wave_zone_ = zone(wave_blocks_, tokens_ - window_begin_);
  std::vector<MetaBlockId> meta(static_cast<size_t>(num_meta_blocks_));
  std::iota(meta.begin(), meta.end(), 0);
  meta_blocks_ = data_.Upload(meta);
  scratch_ =
      data_.Allocate(backend_.ops->attention().DecodeAttentionScratchBytes(1, kQueryHeads, kDim));
  builder_ =
      *SegmentBuilder::Create(*backend_.device, *backend_.ops, *backend_.background, meta_pool(),
                              {.host = arena_, .device = cache_->device_arena()}, {},
                              {.max_open_segments = static_cast<int32_t>(plan_.size())});
}

std::vector<SegmentBuilder::Ticket> Context::OpenSegments() {
  std::vector<SegmentBuilder::Ticket> tickets;
  PageId page = 0;
  size_t block = 0;
  for (const PlannedSegment& segment : plan_) {
    const uint32_t pages = SegmentLayout(geometry_, segment.num_tokens).max_pages;
    const size_t blocks = segment.num_tokens / kDecodeSegmentTokens;
    tickets.push_back(*builder_->Open(
        {.token_begin = segment.token_begin,
         .num_tokens = segment.num_tokens,
         .extent = {.id = 1, .first_page = page, .num_pages = pages},
         .meta_blocks = meta_blocks_.as<const MetaBlockId>().subspan(block, blocks)}));
    page += pages;
    block += blocks;
  }
  return tickets;
}

void Context::BuildLayer(uint32_t layer, const LayerKv& kv,
                         const std::vector<SegmentBuilder::Ticket>& tickets) {
  const DeviceSpan<const DenseBlockId> blocks(full_blocks_.as<const DenseBlockId>());
  FillDenseArgs fill{.in = kv, .pool = dense_pool(), .layer = layer, .block_ids = blocks.first(1)};
  fill.num_tokens = kSinkTokens;
  RI_CHECK(backend_.ops->attention().FillDense(*backend_.stream, fill).ok());
  fill.first_token = kSinkTokens;
  fill.num_tokens = tokens_ - kSinkTokens;
  fill.block_ids = blocks.subspan(1, blocks.size() - 1);
  RI_CHECK(backend_.ops->attention().FillDense(*backend_.stream, fill).ok());
  bench::Samples build;
  build.Time([&] {
    for (const SegmentBuilder::Ticket ticket : tickets) {
      RI_CHECK(builder_->BuildLayer(ticket, layer, kv).ok());
    }
    RI_CHECK(backend_.background->Synchronize().ok());
  });
  build_seconds_ += build.timing().median;
}

void Context::FillLayers() {
  const size_t bytes = kKvHeads * static_cast<size_t>(tokens_) * kDim * 2;
  const DeviceBuffer buffer = data_.Allocate(2 * bytes);
  const LayerKv kv{.keys = buffer.bytes().device_data(),
                   .values = buffer.bytes().device_data() + bytes,
                   .num_kv_heads = kKvHeads,
                   .head_dim = uint32_t{kDim},
                   .capacity = tokens_,
                   .dtype = geometry_.format.prompt};
  const auto tickets = OpenSegments();
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    LayerSource source(tokens_, layer);
    source.Fill(kv);
    BuildLayer(layer, kv, tickets);
    queries_.push_back(data_.Activations(source.Queries(), static_cast<int64_t>(kSteps), kCols));
    wave_out_.push_back(data_.Poisoned(1, kCols));
    full_out_.push_back(data_.Poisoned(1, kCols));
  }
  for (const SegmentBuilder::Ticket ticket : tickets) {
    RI_CHECK(builder_->Seal(ticket).ok());
    RI_CHECK(backend_.background->Synchronize().ok());
    RI_CHECK(builder_->PollDone(ticket)->has_value());
  }
}

void Context::MakeDecode() {
  decode_ = *WaveDecode::Create(*backend_.device, *backend_.ops, *backend_.stream, *cache_,
                                dense_pool(), meta_pool(),
                                {.num_query_heads = kQueryHeads,
                                 .max_batch = 1,
                                 .max_tokens = tokens_,
                                 .radius_weight = share_.radius_weight});
}

// The stages of a wave step; a sample is one layer's.
struct Stages {
  bench::Samples score, select, choose, rest, estimate, look_up, attend;
};

void RunStages(Context& context, size_t step, Stages& stages) {
  const auto ok = [](const absl::Status& status) { RI_CHECK(status.ok()); };
  WaveDecode& decode = context.decode();
  context.BeginWave(context.ratios());
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    const MatrixView queries = context.Queries(layer, step);
    stages.score.Time([&] { ok(decode.Score(layer, kForm, queries)); });
    stages.select.Time([&] { ok(decode.Select()); });
    if (decode.chooses_pages()) {
      stages.choose.Time([&] { ok(decode.ChoosePages(layer, kForm, queries)); });
      stages.rest.Time([&] { ok(decode.FindRests(layer, kForm, queries)); });
    }
    stages.estimate.Time([&] { ok(decode.EstimateZone(layer)); });
    stages.look_up.Time([&] {
      ok(decode.LookUpPages(layer));
      ok(decode.AdmitPages());
    });
    stages.attend.Time([&] { ok(decode.Attend(layer, kForm, queries, context.wave_out(layer))); });
  }
}

int Run(const KvFormat& format) {
  const auto backend = AvailableBackends().back().create();
  const int64_t tokens = bench::IsSmoke() ? 13'000 : 131'072;
  Context context(*backend, tokens, format);

  context.RunFull(0);
  context.RunWave(0, {.retrieval = 1.0, .estimation = 0.0});
  const double error_all = context.Error();
  context.EmptyCache();
  for (size_t step = 0; step < 2 * kSteps; ++step) context.RunWave(step, context.ratios());
  context.RunFull(2 * kSteps - 1);
  const double error_default = context.Error();

  const BlockCacheCounters before = context.cache().Stats()->counters;
  bench::Samples wave, full;
  Stages stages;
  for (size_t round = 0; round < (bench::IsSmoke() ? 2 : 40); ++round) {
    // Each after a step of its own kind, as while decoding: the caches hold what that leaves.
    const size_t step = 3 * round;
    context.RunFull(step);
    full.Time([&] { context.RunFull(step); });
    context.RunWave(step, context.ratios());
    wave.Time([&] { context.RunWave(step + 1, context.ratios()); });
    RunStages(context, step + 2, stages);
  }
  const BlockCacheCounters after = context.cache().Stats()->counters;
  const double hits = static_cast<double>(after.hits - before.hits);
  const double misses = static_cast<double>(after.misses - before.misses);

  auto report = bench::Report("wave_attention", backend->device->info());
  report["settings"] = {{"tokens", tokens},
                        {"layers", kLayers},
                        {"query_heads", kQueryHeads},
                        {"kv_heads", kKvHeads},
                        {"head_dim", kDim},
                        {"kv_dtype", PagesName(format)},
                        {"index_dtype", IndexName(format)},
                        {"retrieval", context.ratios().retrieval}};
  report["full_step"] = bench::ToJson(full.timing());
  report["wave_step"] = bench::ToJson(wave.timing());
  report["full_over_wave"] = full.timing().median / wave.timing().median;
  report["wave_stages_of_a_layer"] = {{"score", bench::ToJson(stages.score.timing())},
                                      {"select", bench::ToJson(stages.select.timing())},
                                      {"estimate", bench::ToJson(stages.estimate.timing())},
                                      {"look_up", bench::ToJson(stages.look_up.timing())},
                                      {"attend", bench::ToJson(stages.attend.timing())}};
  if (context.decode().chooses_pages()) {
    report["wave_stages_of_a_layer"]["choose"] = bench::ToJson(stages.choose.timing());
    report["wave_stages_of_a_layer"]["rest"] = bench::ToJson(stages.rest.timing());
  }
  report["page_hit_ratio"] = hits / (hits + misses);
  report["build_index_seconds"] = context.build_seconds();
  report["error_retrieving_all"] = error_all;
  report["error_default_ratios"] = error_default;
  bench::Print(report);
  constexpr double kAllowed = 1e-4;  // f32 sums over the same KV in another order
  if (error_all <= kAllowed) return 0;
  std::fprintf(stderr, "wave_attention_bench: error %g, at most %g allowed\n", error_all, kAllowed);
  return 1;
}

}  // namespace
}  // namespace retroinfer

int main(int argc, char** argv) {
  std::string kv_dtype = "bf16", index_dtype = "bf16";
  CLI::App app;
  app.add_option("--kv-dtype", kv_dtype)->check(CLI::IsMember({"bf16", "int8"}));
  app.add_option("--index-dtype", index_dtype)
      ->check(CLI::IsMember({"auto", "bf16", "int8", "coded", "packed"}));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  const auto format = retroinfer::KvFormatNamed(kv_dtype, index_dtype);
  if (!format.ok()) {
    std::fprintf(stderr, "wave_attention_bench: %s\n", format.status().ToString().c_str());
    return 2;
  }
  return retroinfer::Run(*format);
}
