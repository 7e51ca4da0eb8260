// The stages of wave attention on a GPU, one layer at a time: by default 122,880 tokens (7,680
// clusters a KV head), 8 KV heads of 128 with 4 query heads each, bf16; 1.8 % retrieved, 23.2 %
// estimated.
//
//   wave_stages_bench [--tokens 122880] [--max-batch 8] [--kv-dtype bf16|int8]
//                     [--index-dtype bf16|int8|coded] [--retrieval 0.018] [--only-index]
//                     [--rows-per-sequence 1]
//
// Rows of one sequence, as drafts are, have the same index and window, and each looks up nine
// tenths of what the row before it does. With several of them a batch of one and of all rows is
// measured. With codes of tokens 12 % of the clusters are candidates, and --retrieval says which
// share of the tokens is chosen, in pages; those that are looked up are others, but as many.
//
// Every sample is a CUDA graph that runs a stage on kSets layers in turn, so that no layer's data
// is left in the L2 cache; reported is the time of one layer. "whole layer" is what a decode step
// enqueues, side streams included; its queries are not those of the pages, but as many are read. A
// read of as many bytes as a layer's weights stands for what follows attention in a step, beside
// which pages are admitted; its own time is subtracted. A whole layer weighs the unseen mass, as
// one step in 16 does; without weights between them layers follow one another at once, as in no
// step. The cache is then put back by three small copies, whose time is subtracted from that of a
// look-up with admission of many pages. Prints a table, and a limit measured in the same run: a
// plain read of device memory. Exits with 1 if a page was read from a wrong place.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/graph_clock.h"
#include "bench/support/measure.h"
#include "bench/support/read_bandwidth.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/backend/cuda/cuda_ops.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using namespace test_support;
using bench::GraphClock;
using bench::Ok;

constexpr uint32_t kHeads = 8, kGroup = 4, kDim = 128;
constexpr int32_t kQueryHeads = kHeads * kGroup;
constexpr int32_t kSets = 8;
constexpr int32_t kMaxBatch = 8;
constexpr int32_t kWindowTokens = 1100, kSinkTokensHere = 4;
constexpr int32_t kDenseBlocks =
    1 + (kWindowTokens + kMaxBatch + kDenseBlockTokens - 1) / kDenseBlockTokens;
constexpr size_t kWeightBytes = size_t{436} << 20;  // of a layer of Llama 8B, bf16
constexpr uint32_t kFreeSlots = 1 << 16;
constexpr uint32_t kLogCapacity = 1 << 20;

struct Shape {
  KvGeometry geometry;
  int32_t max_batch = kMaxBatch;
  int32_t rows_of_sequence = 1;
  int32_t pages_of_cluster = 0;  // 16 tokens
  int32_t meta_blocks = 0;       // of a sequence
  int32_t clusters = 0;
  // The share of the clusters, and then some: clusters leave pages part-filled, here none does.
  int32_t retrieved = 0, looked_up = 0, estimated = 0;
  // With codes: the candidates, and the pages that are chosen of them; else the retrieved, and 0.
  int32_t selected = 0, chosen = 0;
  int32_t moved = 0;   // clusters between what two rows of one sequence look up
  int32_t places = 0;  // clusters that rows of one sequence look up
  uint32_t rows = 0;
  uint32_t lists = 0;         // of pages: heads of all sequences
  uint32_t pages_of_set = 0;  // of all sequences' clusters that are looked up
  uint32_t pages = 0;
  uint32_t slots = 0;

  Shape(const KvFormat& format, int32_t tokens, int32_t batch, double retrieval,
        int32_t rows_per_sequence)
      : geometry{kSets, kHeads, kDim, format},
        max_batch(batch),
        rows_of_sequence(rows_per_sequence),
        pages_of_cluster(static_cast<int32_t>(kTokensPerCluster / geometry.tokens_per_page())),
        meta_blocks(tokens / kDecodeSegmentTokens),
        clusters(meta_blocks * kClustersPerMetaBlock),
        retrieved(static_cast<int32_t>(clusters * retrieval)),
        looked_up(retrieved * 5 / 4),
        estimated(clusters * 232 / 1000),
        selected(has_codes() ? clusters * 12 / 100 : retrieved),
        chosen(has_codes() ? retrieved * pages_of_cluster : 0),
        moved(looked_up / 10),
        places(looked_up + (rows_of_sequence - 1) * moved),
        rows(static_cast<uint32_t>(batch) * kHeads),
        lists(static_cast<uint32_t>(sequences()) * kHeads),
        pages_of_set(lists * static_cast<uint32_t>(places * pages_of_cluster)),
        pages(kSets * pages_of_set),
        slots(pages + kFreeSlots) {}

  bool has_codes() const { return geometry.format.token_code_bits != 0; }
  int32_t sequences() const { return (max_batch + rows_of_sequence - 1) / rows_of_sequence; }
  // Of the clusters that are looked up of its sequence, the first one of a row of the batch.
  int32_t FirstPlace(int32_t row) const { return row % rows_of_sequence * moved; }
};

// Inputs and outputs of all stages.
class Stages {
 public:
  Stages(Backend& backend, const Shape& shape) : backend_(backend), data_(backend), shape_(shape) {
    FillPool();
    FillArena();
    MakeQueries();
    const auto floats = [&](size_t count) { return data_.Allocate(count * sizeof(float)); };
    scores_ = floats(static_cast<size_t>(shape_.max_batch) * kQueryHeads * shape_.clusters);
    ranks_ = floats(static_cast<size_t>(shape_.max_batch) * kQueryHeads * shape_.clusters);
    for (DeviceBuffer* ids : {&retrieved_, &estimated_})
      *ids = floats(size_t{shape_.rows} * static_cast<size_t>(shape_.estimated));
    for (DeviceBuffer* counts : {&num_retrieved_, &num_estimated_, &num_pages_}) {
      *counts = floats(shape_.rows);
    }
    select_scratch_ =
        data_.Allocate(size_t{shape_.rows} * static_cast<size_t>(shape_.clusters) * 8);
    estimate_scratch_ = data_.Allocate(ops().index().EstimateScratchBytes(
        shape_.max_batch, kQueryHeads, kDim, shape_.estimated + shape_.selected));
    partial_ = floats(static_cast<size_t>(shape_.max_batch) * kQueryHeads * (kDim + 2));
    unseen_ = floats(static_cast<size_t>(shape_.max_batch) * kQueryHeads * 3);
    budgets_ = data_.Upload(std::vector<SelectionBudget>(
        shape_.max_batch, {shape_.clusters, shape_.selected, shape_.estimated,
                           GroupRanking::kMaxOfSoftmax, shape_.chosen}));
    MakeChoice();
    attend_scratch_ = data_.Allocate(ops().attention().DecodeAttentionScratchBytes(
        shape_.max_batch, kQueryHeads, static_cast<int32_t>(kDim)));
    out_.push_back(data_.Poisoned(shape_.max_batch, kQueryHeads * kDim));
    FillDense();
    refs_ = data_.Allocate(size_t{shape_.rows} * static_cast<size_t>(RowPages()) * sizeof(PageRef));
    std::vector<int32_t> looked_up;
    for (uint32_t list = 0; list < shape_.rows; ++list) {
      const int32_t first = shape_.FirstPlace(static_cast<int32_t>(list / kHeads));
      for (int32_t i = 0; i < shape_.looked_up; ++i) looked_up.push_back(ClusterOf(first + i));
    }
    looked_up_ = data_.Upload(looked_up);
    num_looked_up_ = data_.Allocate(shape_.rows * sizeof(int32_t));
  }
  ~Stages() {
    backend_.device->UnmapHost(arena_);
    backend_.device->UnmapHost(shared_);
    std::free(arena_.data());
    std::free(shared_.data());
  }

  // Makes `hit_ratio` of the pages hits, the others misses; each row looks up `clusters`.
  void SetCache(double hit_ratio, int32_t clusters) {
    std::mt19937 random(7);
    std::vector<SlotId> page_slot(shape_.pages);
    for (PageId page = 0; page < shape_.pages; ++page) {
      page_slot[page] = random() < hit_ratio * 4294967296.0 ? page : kNoSlot;
    }
    page_slot_ = data_.Upload(page_slot);
    page_slot_before_ = data_.Upload(page_slot);
    num_looked_up_ = data_.Upload(std::vector<int32_t>(shape_.rows, clusters));
  }

  void Score(CudaStream& stream, int32_t batch, uint32_t set) {
    Ok(ops().index().CentroidScore(stream, {.queries = queries_[set].view.Rows(0, batch),
                                            .pool = pool(),
                                            .layer = set,
                                            .indexes = indexes(batch),
                                            .share_an_index = batch > 1 && shape_.sequences() == 1,
                                            .scale = 1.0f / std::sqrt(static_cast<float>(kDim)),
                                            .max_clusters = shape_.clusters,
                                            .scores = scores_.as<float>(),
                                            .radius_weight = 0.5f,
                                            .ranks = ranks_.as<float>()}));
  }
  void Select(CudaStream& stream, int32_t batch) {
    Ok(ops().index().ClusterSelect(
        stream, {.scores = ranks_.as<const float>(),
                 .max_clusters = shape_.clusters,
                 .batch = batch,
                 .num_query_heads = kQueryHeads,
                 .num_kv_heads = kHeads,
                 .budgets = budgets_.as<const SelectionBudget>().first(static_cast<size_t>(batch)),
                 .max_retrieved = shape_.selected,
                 .max_estimated = shape_.estimated,
                 .retrieved = retrieved_.as<int32_t>(),
                 .num_retrieved = num_retrieved_.as<int32_t>(),
                 .estimated = estimated_.as<int32_t>(),
                 .num_estimated = num_estimated_.as<int32_t>(),
                 .scratch = select_scratch_.bytes()}));
  }
  void ChoosePages(CudaStream& stream, int32_t batch, uint32_t set) {
    if (shape_.has_codes()) Ok(ops().index().PageSelect(stream, Choice(batch, set)));
  }
  void FindRests(CudaStream& stream, int32_t batch, uint32_t set) {
    if (shape_.has_codes()) Ok(ops().index().CandidateRest(stream, Choice(batch, set)));
  }
  void Estimate(CudaStream& stream, int32_t batch, uint32_t set) {
    const size_t heads = static_cast<size_t>(shape_.max_batch) * kQueryHeads;
    const DeviceSpan<float> out = partial_.as<float>();
    EstimateArgs args{
        .pool = pool(),
        .layer = set,
        .indexes = indexes(batch),
        .batch = batch,
        .num_query_heads = kQueryHeads,
        .scores = scores_.as<const float>(),
        .max_clusters = shape_.clusters,
        .estimated = estimated_.as<const int32_t>(),
        .num_estimated = num_estimated_.as<const int32_t>(),
        .max_estimated = shape_.estimated,
        .out = {out.first(heads), out.subspan(heads, heads), out.subspan(2 * heads, heads * kDim)},
        .scratch = estimate_scratch_.bytes()};
    if (shape_.has_codes()) {
      args.candidates = retrieved_.as<const int32_t>();
      args.num_candidates = num_retrieved_.as<const int32_t>();
      args.max_candidates = shape_.selected;
    }
    Ok(ops().index().Estimate(stream, args));
  }
  void WeighUnseen(CudaStream& stream, int32_t batch, uint32_t set) {
    UnseenMassArgs args{.pool = pool(),
                        .layer = set,
                        .indexes = indexes(batch),
                        .batch = batch,
                        .num_query_heads = kQueryHeads,
                        .scores = scores_.as<const float>(),
                        .max_clusters = shape_.clusters,
                        .out = {UnseenPart(0), UnseenPart(1)}};
    if (!shape_.has_codes()) {
      args.retrieved = retrieved_.as<const int32_t>();
      args.num_retrieved = num_retrieved_.as<const int32_t>();
      args.max_retrieved = shape_.selected;
    }
    Ok(ops().index().UnseenMass(stream, args));
  }
  void LookUp(CudaStream& stream, int32_t batch, uint32_t set) {
    Ok(ops().block_cache().PageLookup(stream,
                                      {.cache = cache(),
                                       .counters = counters_.as<BlockCacheCounters>().device_data(),
                                       .pool = pool(),
                                       .layer = set,
                                       .indexes = indexes(batch),
                                       .batch = batch,
                                       .num_kv_heads = kHeads,
                                       .retrieved = looked_up_.as<const int32_t>(),
                                       .num_retrieved = num_looked_up_.as<const int32_t>(),
                                       .max_retrieved = shape_.looked_up,
                                       .max_pages = shape_.looked_up * shape_.pages_of_cluster,
                                       .pages = refs_.as<PageRef>(),
                                       .num_pages = num_pages_.as<int32_t>()}));
  }

  void Admit(CudaStream& stream) {
    Ok(ops().block_cache().AdmitPages(
        stream, {.cache = cache(), .counters = counters_.as<BlockCacheCounters>().device_data()}));
  }
  // As it was before the last layer's admissions.
  void PutBack(CudaStream& stream, uint32_t set) {
    const auto copy = [&](void* to, const void* from, size_t bytes) {
      Ok(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.get()));
    };
    copy(page_slot_.as<SlotId>().device_data() + set * shape_.pages_of_set,
         page_slot_before_.as<SlotId>().device_data() + set * shape_.pages_of_set,
         shape_.pages_of_set * sizeof(SlotId));
    copy(num_free_.bytes().device_data(), num_free_before_.bytes().device_data(), sizeof(uint32_t));
    copy(shared_.data(), zero_.bytes().device_data(), sizeof(RingCursor));
  }
  void Attend(CudaStream& stream, int32_t batch, uint32_t set, const Event* estimate_ready) {
    const size_t heads = static_cast<size_t>(shape_.max_batch) * kQueryHeads;
    const DeviceSpan<float> estimate = partial_.as<float>();
    Ok(ops().attention().DecodeAttention(
        stream, {.queries = queries_[set].view.Rows(0, batch),
                 .pool = {dense_.bytes(), shape_.geometry},
                 .layer = set,
                 .zones = zones_.as<const DenseZone>().first(static_cast<size_t>(batch)),
                 .pages = refs_.as<const PageRef>(),
                 .num_pages = num_pages_.as<const int32_t>(),
                 .max_pages = shape_.looked_up * shape_.pages_of_cluster,
                 .estimate = {estimate.first(heads), estimate.subspan(heads, heads),
                              estimate.subspan(2 * heads, heads * kDim)},
                 .unseen = {UnseenPart(0), UnseenPart(1)},
                 .unseen_share = UnseenPart(2),
                 .estimate_ready = estimate_ready,
                 .scale = 1.0f / std::sqrt(static_cast<float>(kDim)),
                 .out = out_[0].view.Rows(0, batch),
                 .scratch = attend_scratch_.bytes()}));
  }

  // Whether the references of one look-up lead to the right bytes.
  bool ChecksOut() {
    SetCache(0.9, shape_.looked_up);
    auto& stream = static_cast<CudaStream&>(*backend_.stream);
    LookUp(stream, shape_.max_batch, 1);
    Admit(stream);
    PutBack(stream, 1);
    const auto refs = data_.Download<PageRef>(refs_);
    const auto slots = slots_.as<const std::byte>();
    size_t num_misses = 0;
    for (uint32_t i = 0; i < refs.size(); ++i) {
      const PageId page = PageOf(i);
      if (refs[i].page == slots.device_data() + size_t{page} * kPageBytes) continue;
      ++num_misses;
      const auto words = data_.Download(
          DeviceSpan<const uint32_t>(reinterpret_cast<const uint32_t*>(refs[i].page), 512));
      for (uint32_t j = 0; j < 512; ++j) {
        if (words[j] != page * 512 + j) return false;
      }
    }
    std::printf("%zu of %zu pages read from the arena, all as they should be\n", num_misses,
                refs.size());
    return num_misses > refs.size() / 20 && num_misses < refs.size() / 5;
  }

  DeviceSpan<std::byte> pool_bytes() const { return pool_bytes_.bytes(); }
  Backend& backend() { return backend_; }
  const Shape& shape() const { return shape_; }

 private:
  // Maxima, sums and shares of the unseen mass.
  DeviceSpan<float> UnseenPart(size_t index) const {
    const size_t heads = static_cast<size_t>(shape_.max_batch) * kQueryHeads;
    return unseen_.as<float>().subspan(index * heads, heads);
  }

  // Of a row's look-up.
  uint32_t RowPages() const {
    return static_cast<uint32_t>(shape_.looked_up * shape_.pages_of_cluster);
  }
  // The page of layer 1 that reference `index` of its look-up leads to.
  PageId PageOf(uint32_t index) const {
    const uint32_t list = index / RowPages(), row = list / kHeads;
    const uint32_t of_sequence = row / static_cast<uint32_t>(shape_.rows_of_sequence);
    const auto first = static_cast<uint32_t>(shape_.FirstPlace(static_cast<int32_t>(row)));
    const uint32_t place = (of_sequence * kHeads + list % kHeads) * shape_.places + first;
    return shape_.pages_of_set + place * shape_.pages_of_cluster + index % RowPages();
  }
  int64_t MaxPages() const {
    return (int64_t{shape_.clusters} * shape_.pages_of_cluster + 63) / 64 * 64;
  }

  void MakeChoice() {
    if (!shape_.has_codes()) return;
    const auto pages = static_cast<size_t>(MaxPages());
    const size_t heads = static_cast<size_t>(shape_.max_batch) * kQueryHeads;
    for (DeviceBuffer* masses : {&masses_, &rests_}) {
      *masses = data_.Allocate(heads * pages * sizeof(float));
    }
    pages_ = data_.Allocate(size_t{shape_.rows} * pages * sizeof(ChosenPage));
    first_pages_ = data_.Allocate(size_t{shape_.rows} * static_cast<size_t>(shape_.selected) * 4);
    chosen_ = data_.Allocate(size_t{shape_.rows} * static_cast<size_t>(shape_.chosen) *
                             sizeof(ChosenPage));
    for (DeviceBuffer* counts : {&num_row_pages_, &num_chosen_, &num_coded_}) {
      *counts = data_.Allocate(shape_.rows * sizeof(int32_t));
    }
  }
  PageSelectArgs Choice(int32_t batch, uint32_t set) {
    return {.queries = queries_[set].view.Rows(0, batch),
            .pool = pool(),
            .layer = set,
            .indexes = indexes(batch),
            .scale = 1.0f / std::sqrt(static_cast<float>(kDim)),
            .scores = scores_.as<float>(),
            .max_clusters = shape_.clusters,
            .candidates = retrieved_.as<const int32_t>(),
            .num_candidates = num_retrieved_.as<const int32_t>(),
            .max_candidates = shape_.selected,
            .budgets = budgets_.as<const SelectionBudget>().first(static_cast<size_t>(batch)),
            .max_pages = MaxPages(),
            .max_chosen = shape_.chosen,
            .chosen = chosen_.as<ChosenPage>(),
            .num_chosen = num_chosen_.as<int32_t>(),
            .num_tokens = num_coded_.as<int32_t>(),
            .scratch = {.masses = masses_.as<float>(),
                        .rests = rests_.as<float>(),
                        .pages = pages_.as<ChosenPage>(),
                        .first_pages = first_pages_.as<int32_t>(),
                        .num_pages = num_row_pages_.as<int32_t>()}};
  }

  // Looked-up clusters lie apart.
  int32_t ClusterOf(int32_t index) const { return index * Spacing() % shape_.clusters; }
  int32_t Spacing() const { return shape_.clusters / shape_.places; }

  Ops& ops() { return *backend_.ops; }
  MetaPoolView pool() const { return {pool_bytes_.bytes(), shape_.geometry}; }
  DeviceSpan<const MetaIndexView> indexes(int32_t batch) const {
    return indexes_.as<const MetaIndexView>().first(static_cast<size_t>(batch));
  }
  BlockCacheView cache() const {
    return {.slots = slots_.bytes(),
            .transient = {},
            .arena = device_arena_,
            .page_slot = page_slot_.as<SlotId>().first(shape_.pages),
            .slot_page = slot_page_.as<PageId>().first(shape_.slots),
            .slot_stamp = stamps_.as<StepStamp>().first(shape_.slots),
            .free_slots = free_.as<SlotId>().first(shape_.slots),
            .num_free = num_free_.as<uint32_t>().device_data(),
            .control = control_.as<LookupControl>().device_data(),
            .misses = misses_.as<PageMiss>(),
            .lookup = lookup_.as<LookupState>().device_data(),
            .log = {reinterpret_cast<LogEntry*>(device_shared_.device_data() + 4096), kLogCapacity},
            .log_head = reinterpret_cast<RingCursor*>(device_shared_.device_data()),
            .log_tail = reinterpret_cast<RingCursor*>(device_shared_.device_data() + 64)};
  }

  // Random centroids and value sums, the same 16 MiB over and over at odd distances.
  void FillPool() {
    const size_t num_blocks = static_cast<size_t>(shape_.sequences()) * shape_.meta_blocks;
    const size_t run_bytes = MetaPoolView::RunBytes(shape_.geometry);
    const size_t num_runs = num_blocks * kSets * kHeads;
    pool_bytes_ = data_.Allocate(num_runs * run_bytes);
    constexpr size_t kNoise = size_t{8} << 20;
    const DeviceBuffer noise = data_.Upload(ToBytes(RandomNormal(kNoise, 1), DType::kBf16));
    std::byte* pool = pool_bytes_.bytes().device_data();
    for (size_t at = 0, shift = 0; at < pool_bytes_.size_bytes(); shift += 4096 * 37) {
      const size_t begin = shift % (kNoise / 2) * 2;
      const size_t count = std::min(2 * kNoise - begin, pool_bytes_.size_bytes() - at);
      Ok(cudaMemcpy(pool + at, noise.bytes().device_data() + begin, count,
                    cudaMemcpyDeviceToDevice));
      at += count;
    }
    std::vector<MetaEntry> entries(num_runs * kClustersPerMetaBlock);
    for (size_t run = 0; run < num_runs; ++run) {
      const size_t block = run / kSets / kHeads, set = run / kHeads % kSets;
      const size_t row = block / shape_.meta_blocks * kHeads + run % kHeads;
      for (size_t i = 0; i < kClustersPerMetaBlock; ++i) {
        const size_t cluster = block % shape_.meta_blocks * kClustersPerMetaBlock + i;
        const size_t place = std::min<size_t>(cluster / Spacing(), shape_.places - 1);
        const size_t first =
            ((set * shape_.lists + row) * shape_.places + place) * shape_.pages_of_cluster;
        entries[run * kClustersPerMetaBlock + i] = {static_cast<PageId>(first), 16, 1.0f};
      }
    }
    const size_t width = kClustersPerMetaBlock * sizeof(MetaEntry);
    Ok(cudaMemcpy2D(pool + MetaPoolView(pool_bytes_.bytes(), shape_.geometry).entries_offset,
                    run_bytes, entries.data(), width, width, num_runs, cudaMemcpyHostToDevice));
    FillScales(num_runs);
    FillCodes(num_runs);
    std::vector<MetaBlockId> ids(num_blocks);
    std::iota(ids.begin(), ids.end(), 0);
    block_ids_ = data_.Upload(ids);
    std::vector<MetaIndexView> views;
    for (int32_t i = 0; i < shape_.max_batch; ++i) {
      const int32_t first = i / shape_.rows_of_sequence * shape_.meta_blocks;
      views.push_back(
          {block_ids_.as<const MetaBlockId>().device_data() + first, shape_.meta_blocks});
    }
    indexes_ = data_.Upload(views);
  }

  // Scales of centroids and value sums, if they have any, instead of the noise.
  void FillScales(size_t num_runs) {
    const VectorFormat& format = shape_.geometry.format.centroid;
    if (!format.has_scales()) return;
    constexpr uint16_t kScale = 0x2400;  // 1 / 64 in f16
    const std::vector<uint16_t> scales(num_runs * kClustersPerMetaBlock, kScale);
    const size_t width = kClustersPerMetaBlock * sizeof(uint16_t);
    const size_t offset = format.ScalesOffset(kClustersPerMetaBlock, kDim);
    const MetaPoolView view = pool();
    for (const size_t at : {offset, view.value_sums_offset + offset}) {
      Ok(cudaMemcpy2D(pool_bytes_.bytes().device_data() + at, view.run_bytes, scales.data(), width,
                      width, num_runs, cudaMemcpyHostToDevice));
    }
  }

  // Places and factors of codes, if there are any; the codes themselves are noise.
  void FillCodes(size_t num_runs) {
    if (!shape_.has_codes()) return;
    const MetaPoolView view = pool();
    const auto fill = [&](const auto& words, size_t of_run, size_t offset) {
      Ok(cudaMemcpy2D(pool_bytes_.bytes().device_data() + offset, view.run_bytes, words.data(),
                      of_run * 4, of_run * 4, num_runs, cudaMemcpyHostToDevice));
    };
    std::vector<int32_t> first_codes(num_runs * kClustersPerMetaBlock);
    for (size_t i = 0; i < first_codes.size(); ++i) {
      first_codes[i] = static_cast<int32_t>(i % kClustersPerMetaBlock * kTokensPerCluster);
    }
    fill(first_codes, kClustersPerMetaBlock, view.first_codes_offset);
    constexpr TokenCodeFactors kFactors{0x2400, 0x2400};  // 1 / 64 in f16
    const std::vector<TokenCodeFactors> factors(num_runs * kDecodeSegmentTokens, kFactors);
    fill(factors, kDecodeSegmentTokens,
         view.codes_offset + TokenCodeLayout(shape_.geometry.format, kDim).factors_offset);
  }

  // Dense zones of zeros: what they hold does not matter.
  void FillDense() {
    const size_t blocks = static_cast<size_t>(shape_.sequences()) * kDenseBlocks;
    dense_ =
        data_.Upload(std::vector<std::byte>(blocks * DensePoolView::BlockBytes(shape_.geometry)));
    std::vector<DenseBlockId> ids(blocks);
    std::iota(ids.begin(), ids.end(), 0);
    dense_ids_ = data_.Upload(ids);
    std::vector<DenseZone> zones;
    for (int32_t i = 0; i < shape_.max_batch; ++i) {
      const int32_t sequence = i / shape_.rows_of_sequence, row = i % shape_.rows_of_sequence;
      zones.push_back(
          {.block_ids = dense_ids_.as<const DenseBlockId>().device_data() + sequence * kDenseBlocks,
           .num_sink_tokens = kSinkTokensHere,
           .num_window_tokens = kWindowTokens + row});
    }
    zones_ = data_.Upload(zones);
  }

  // A cache with a slot for each page and some free ones, and an arena in host memory whose words
  // count up.
  void FillArena() {
    arena_ = HostMemory(size_t{shape_.pages} * kPageBytes);
    auto* words = reinterpret_cast<uint32_t*>(arena_.data());
    for (size_t i = 0; i < arena_.size() / 4; ++i) words[i] = static_cast<uint32_t>(i);
    device_arena_ = *backend_.device->MapHost(arena_);
    shared_ = HostMemory(4096 + kLogCapacity * sizeof(LogEntry));
    std::memset(shared_.data(), 0, shared_.size());
    device_shared_ = *backend_.device->MapHost(shared_);
    slots_ = data_.Allocate(size_t{shape_.slots} * kPageBytes);
    slot_page_ = data_.Allocate(shape_.slots * sizeof(PageId));
    stamps_ = data_.Allocate(shape_.slots * sizeof(StepStamp));
    std::vector<SlotId> free(shape_.slots);
    std::iota(free.begin(), free.begin() + kFreeSlots, shape_.pages);
    free_ = data_.Upload(free);
    num_free_ = data_.Upload(std::vector<uint32_t>(1, kFreeSlots));
    num_free_before_ = data_.Upload(std::vector<uint32_t>(1, kFreeSlots));
    zero_ = data_.Upload(std::vector<std::byte>(sizeof(RingCursor)));
    control_ = data_.Upload(std::vector<LookupControl>(1));
    misses_ = data_.Allocate((1 << 16) * sizeof(PageMiss));
    lookup_ = data_.Upload(std::vector<LookupState>(1));
    counters_ = data_.Upload(std::vector<BlockCacheCounters>(1));
  }
  static std::span<std::byte> HostMemory(size_t bytes) {
    return {static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)),
            (bytes + 4095) / 4096 * 4096};
  }

  void MakeQueries() {
    for (int32_t set = 0; set < kSets; ++set) {
      queries_.push_back(
          data_.Activations(RandomNormal(static_cast<size_t>(shape_.max_batch) * kQueryHeads * kDim,
                                         50 + static_cast<uint64_t>(set), 3),
                            shape_.max_batch, kQueryHeads * kDim));
    }
  }

  Backend& backend_;
  DeviceData data_;
  const Shape shape_;
  std::span<std::byte> arena_, shared_;
  DeviceSpan<std::byte> device_arena_, device_shared_;
  DeviceBuffer pool_bytes_, block_ids_, indexes_, scores_, ranks_, retrieved_, estimated_,
      num_retrieved_, num_estimated_, num_pages_, select_scratch_, estimate_scratch_, partial_,
      unseen_, budgets_, refs_, looked_up_, num_looked_up_, slots_, page_slot_, page_slot_before_,
      slot_page_, stamps_, free_, num_free_, num_free_before_, zero_, control_, misses_, lookup_,
      counters_, attend_scratch_, dense_, dense_ids_, zones_, masses_, rests_, pages_, first_pages_,
      chosen_, num_row_pages_, num_chosen_, num_coded_;
  std::vector<DeviceData::Matrix> queries_, out_;
};

// Median time in microseconds of one of kSets layers.
double TimeLayer(GraphClock& clock, const std::function<void(uint32_t)>& enqueue) {
  return clock.Time([&] {
    for (uint32_t set = 0; set < kSets; ++set) enqueue(set);
  }) / kSets;
}

// One line of the table; `bytes` 0: none are counted.
void PrintLine(const char* stage, int32_t batch, double us, double bytes, double limit) {
  std::printf("%-34s %5d %9.2f", stage, batch, us);
  if (bytes != 0) std::printf(" %9.0f %8.2f", bytes / us / 1e3, bytes / us / 1e3 / limit);
  std::printf("\n");
}

// As WaveDecode::Layer does it. The last layer's admissions are awaited by the next look-up.
// `weighs`: as one step in 16 does.
void EnqueueLayer(Stages& stages, GraphClock& clock, const std::function<void()>& what_follows,
                  int32_t batch, uint32_t set, bool weighs) {
  stages.Score(clock.stream(), batch, set);
  stages.Select(clock.stream(), batch);
  stages.ChoosePages(clock.stream(), batch, set);
  clock.Fork();
  stages.FindRests(clock.side(), batch, set);
  stages.Estimate(clock.side(), batch, set);
  if (weighs) stages.WeighUnseen(clock.side(), batch, set);
  Ok(clock.side().Record(clock.estimated()));
  if (set > 0) Ok(clock.stream().Wait(clock.admitted()));
  stages.LookUp(clock.stream(), batch, set);
  stages.Attend(clock.stream(), batch, set, &clock.estimated());
  clock.Fork();
  stages.Admit(clock.side());
  stages.PutBack(clock.side(), set);
  Ok(clock.side().Record(clock.admitted()));
  what_follows();
  if (set + 1 == kSets) clock.Join();
}

void MeasureStages(Stages& stages, GraphClock& clock, const std::function<void()>& read_weights,
                   double limit, bool only_index) {
  const double weights_us = TimeLayer(clock, [&](uint32_t) { read_weights(); });
  const Shape& shape = stages.shape();
  std::vector<int32_t> batches{1, 6, 8};
  if (shape.rows_of_sequence > 1) batches = {1, shape.max_batch};
  for (const int32_t batch : batches) {
    if (batch > shape.max_batch) break;
    const double rows = static_cast<double>(batch) * kHeads;
    const double vector_bytes =
        static_cast<double>(MetaPoolView::CentroidsBytes(shape.geometry)) / kClustersPerMetaBlock;
    const double score_bytes =
        rows * shape.clusters * (vector_bytes + sizeof(MetaEntry) + 2 * kGroup * 4);
    PrintLine("score", batch,
              TimeLayer(clock, [&](uint32_t set) { stages.Score(clock.stream(), batch, set); }),
              score_bytes, limit);
    PrintLine("select", batch,
              TimeLayer(clock, [&](uint32_t) { stages.Select(clock.stream(), batch); }), 0, limit);
    if (shape.has_codes()) {
      const auto code_bytes = static_cast<double>(TokenCodeBytes(shape.geometry.format, kDim));
      PrintLine(
          "choose pages", batch,
          TimeLayer(clock, [&](uint32_t set) { stages.ChoosePages(clock.stream(), batch, set); }),
          rows * shape.selected * kTokensPerCluster * code_bytes, limit);
      PrintLine(
          "candidates' rest", batch,
          TimeLayer(clock, [&](uint32_t set) { stages.FindRests(clock.stream(), batch, set); }), 0,
          limit);
    }
    const int32_t num_sums = shape.estimated + (shape.has_codes() ? shape.selected : 0);
    PrintLine("estimate", batch,
              TimeLayer(clock, [&](uint32_t set) { stages.Estimate(clock.stream(), batch, set); }),
              rows * num_sums * (vector_bytes + sizeof(MetaEntry)), limit);
    PrintLine(
        "unseen mass", batch,
        TimeLayer(clock, [&](uint32_t set) { stages.WeighUnseen(clock.stream(), batch, set); }),
        rows * shape.clusters * (sizeof(MetaEntry) + kGroup * 4), limit);
    if (only_index) continue;
    for (const int percent : {100, 98, 95, 85}) {
      stages.SetCache(percent / 100.0, shape.looked_up);
      const auto line = [&](const char* what, const std::function<void(uint32_t)>& enqueue) {
        const std::string name = std::string(what) + " " + std::to_string(percent) + " % hits";
        PrintLine(name.c_str(), batch, TimeLayer(clock, enqueue), 0, limit);
      };
      line("look up, admit,", [&](uint32_t set) {
        stages.LookUp(clock.stream(), batch, set);
        stages.Admit(clock.stream());
        stages.PutBack(clock.stream(), set);
      });
      line("look up, attend,", [&](uint32_t set) {
        stages.LookUp(clock.stream(), batch, set);
        stages.Attend(clock.stream(), batch, set, nullptr);
        clock.Fork();
        stages.Admit(clock.side());
        stages.PutBack(clock.side(), set);
        clock.Join();
      });
      const auto layer = [&](const char* what, bool weighs,
                             const std::function<void()>& what_follows, double subtracted) {
        const double us = TimeLayer(clock, [&](uint32_t set) {
          EnqueueLayer(stages, clock, what_follows, batch, set, weighs);
        });
        const std::string name = std::string(what) + ", " + std::to_string(percent) + " % hits";
        PrintLine(name.c_str(), batch, us - subtracted, 0, limit);
      };
      layer("whole layer", true, read_weights, weights_us);
      layer("layer, mass not weighed", false, read_weights, weights_us);
      if (percent == 100)
        layer(
            "and no weights between", false, [] {}, 0);
    }
  }
}

void MeasureAdmission(Stages& stages, GraphClock& clock) {
  std::printf("\n%-8s %10s %8s %22s %8s\n", "pages", "alone us", "GB/s", "beside estimation us",
              "GB/s");
  const double estimate =
      TimeLayer(clock, [&](uint32_t set) { stages.Estimate(clock.stream(), 1, set); });
  for (const int32_t pages : {32, 256, 1024, 4096}) {
    stages.SetCache(0, pages / int32_t{kHeads} / stages.shape().pages_of_cluster);
    const auto fetch = [&](uint32_t set) {
      stages.LookUp(clock.stream(), 1, set);
      stages.Admit(clock.stream());
      stages.PutBack(clock.stream(), set);
    };
    const double put_back =
        TimeLayer(clock, [&](uint32_t set) { stages.PutBack(clock.stream(), set); });
    const double alone = TimeLayer(clock, fetch) - put_back;
    const int repeats = std::max(1, static_cast<int>(0.9 * alone / estimate));
    const double beside = TimeLayer(clock,
                                    [&](uint32_t set) {
                                      clock.Fork();
                                      for (int i = 0; i < repeats; ++i)
                                        stages.Estimate(clock.side(), 1, set);
                                      fetch(set);
                                      clock.Join();
                                    }) -
                          put_back;
    const double bytes = static_cast<double>(pages) * kPageBytes;
    std::printf("%-8d %10.2f %8.1f %22.2f %8.1f\n", pages, alone, bytes / alone / 1e3, beside,
                bytes / beside / 1e3);
  }
}

int Run(const Shape& shape, bool only_index) {
  int num_devices = 0;
  if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
    std::printf("no GPU: nothing measured\n");
    return 0;
  }
  Backend backend;
  auto device = *CudaDevice::Create({.ordinal = 0, .memory_utilization = 0.5});
  backend.ops = *CudaOps::Create(*device);
  backend.device = std::move(device);
  backend.stream = *backend.device->CreateStream(StreamKind::kCompute);
  backend.background = *backend.device->CreateStream(StreamKind::kBackground);
  {
    Stages stages(backend, shape);
    GraphClock clock(backend);
    if (!stages.ChecksOut()) {
      std::fprintf(stderr, "wave_stages_bench: a page was read from a wrong place\n");
      return 1;
    }
    DeviceData data(backend);
    const DeviceBuffer sink = data.Allocate(sizeof(float));
    const double read_us = clock.Time([&] {
      bench::LaunchRead(stages.pool_bytes().device_data(), stages.pool_bytes().size() / 16 * 16,
                        sink.as<float>().device_data(), clock.stream());
    });
    const double limit = static_cast<double>(stages.pool_bytes().size()) / read_us / 1e3;
    std::printf("%s, commit %s\nread of %.1f GB of device memory: %.0f GB/s\n\n",
                backend.device->info().name.c_str(), common::kBuildRevision,
                static_cast<double>(stages.pool_bytes().size()) / 1e9, limit);
    std::printf("%-34s %5s %9s %9s %8s\n", "stage", "batch", "us", "GB/s", "of limit");
    const DeviceBuffer weights = data.Allocate(kWeightBytes);
    const auto read_weights = [&] {
      bench::LaunchRead(weights.bytes().device_data(), kWeightBytes, sink.as<float>().device_data(),
                        clock.stream());
    };
    MeasureStages(stages, clock, read_weights, limit, only_index);
    if (!only_index) MeasureAdmission(stages, clock);
  }
  return 0;
}

}  // namespace
}  // namespace retroinfer

int main(int argc, char** argv) {
  int32_t tokens = 122'880, max_batch = retroinfer::kMaxBatch, rows_per_sequence = 1;
  std::string kv_dtype = "bf16", index_dtype = "bf16";
  double retrieval = 0.018;
  bool only_index = false;
  CLI::App app;
  app.add_option("--tokens", tokens)->check(CLI::Range(96 * 1024, 4 * 1024 * 1024));
  app.add_option("--max-batch", max_batch)->check(CLI::Range(1, retroinfer::kMaxBatch));
  app.add_option("--kv-dtype", kv_dtype)->check(CLI::IsMember({"bf16", "int8"}));
  app.add_option("--rows-per-sequence", rows_per_sequence)
      ->check(CLI::Range(1, retroinfer::kMaxBatch));
  app.add_option("--index-dtype", index_dtype)
      ->check(CLI::IsMember({"bf16", "int8", "coded", "packed"}));
  app.add_option("--retrieval", retrieval, "Share of the clusters")->check(CLI::Range(0.005, 0.2));
  app.add_flag("--only-index", only_index, "Measure scores, selection and estimation alone");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  if (kv_dtype == "int8" && index_dtype == "bf16") index_dtype = "int8";
  return retroinfer::Run({*retroinfer::KvFormatNamed(kv_dtype, index_dtype), tokens, max_batch,
                          retrieval, rows_per_sequence},
                         only_index);
}
