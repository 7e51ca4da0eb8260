#include "gpu_worker/attention/wave_decode.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <optional>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

int64_t MaxClusters(int64_t max_tokens) {
  return max_tokens / kDecodeSegmentTokens * kClustersPerMetaBlock;
}

std::array<size_t, 2> InputSizes(const WaveDecode::Limits& limits) {
  const size_t batch = static_cast<size_t>(limits.max_batch);
  return {batch * sizeof(MetaIndexView), batch * sizeof(SelectionBudget)};
}

bool HasCodes(const KvGeometry& geometry) { return geometry.format.token_code_bits != 0; }

// A row of pages of any of so many clusters.
int64_t PageRow(const KvGeometry& geometry, int64_t max_clusters) {
  constexpr int64_t kMultiple = 64;
  const int64_t pages = ExecutionBuffer::MaxPages(geometry, max_clusters);
  return (pages + kMultiple - 1) / kMultiple * kMultiple;
}

// Clusters that one estimation may have: candidates are another list.
int64_t MaxEstimated(const KvGeometry& geometry, int64_t max_clusters) {
  return HasCodes(geometry) ? 2 * max_clusters : max_clusters;
}

// Of all layers.
std::array<size_t, 3> OutputSizes(const KvGeometry& geometry, const WaveDecode::Limits& limits) {
  const size_t rows = size_t{geometry.num_layers} * static_cast<size_t>(limits.max_batch);
  const size_t counts = rows * geometry.num_kv_heads * sizeof(int32_t);
  return {counts, rows * static_cast<size_t>(limits.num_query_heads) * sizeof(float),
          HasCodes(geometry) ? counts : 0};
}

// A row length that holds `length` clusters: one of a few, at most `max`.
int64_t RowLength(int64_t length, int64_t max) {
  if (length == 0) return 0;
  const int64_t blocks = (length + kClustersPerMetaBlock - 1) / kClustersPerMetaBlock;
  const auto rounded = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(blocks)));
  return std::min(rounded * kClustersPerMetaBlock, max);
}

}  // namespace

WaveDecode::WaveDecode(Device& device, Ops& ops, Stream& stream, BlockCache& cache,
                       const DensePoolView& dense_pool, const MetaPoolView& meta_pool,
                       const Limits& limits)
    : device_(device),
      ops_(ops),
      stream_(stream),
      cache_(cache),
      dense_pool_(dense_pool),
      meta_pool_(meta_pool),
      limits_(limits),
      num_kv_heads_(meta_pool.geometry.num_kv_heads),
      has_codes_(HasCodes(meta_pool.geometry)) {}

absl::StatusOr<std::unique_ptr<WaveDecode>> WaveDecode::Create(Device& device, Ops& ops,
                                                               Stream& stream, BlockCache& cache,
                                                               const DensePoolView& dense_pool,
                                                               const MetaPoolView& meta_pool,
                                                               const Limits& limits) {
  auto decode =
      absl::WrapUnique(new WaveDecode(device, ops, stream, cache, dense_pool, meta_pool, limits));
  RETURN_IF_ERROR(decode->Allocate());
  return decode;
}

std::vector<WaveDecode::Allocation> WaveDecode::Allocations(const KvGeometry& geometry,
                                                            const Limits& limits,
                                                            const ScratchSizes& scratch) {
  const size_t batch = static_cast<size_t>(limits.max_batch);
  const size_t rows = batch * geometry.num_kv_heads;
  const size_t query_rows = batch * static_cast<size_t>(limits.num_query_heads);
  const size_t clusters = static_cast<size_t>(MaxClusters(limits.max_tokens));
  const bool has_codes = HasCodes(geometry);
  const size_t pages =
      has_codes ? static_cast<size_t>(PageRow(geometry, MaxClusters(limits.max_tokens))) : 0;
  return {
      {&WaveDecode::scores_, query_rows * clusters * sizeof(float)},
      {&WaveDecode::ranks_, limits.radius_weight == 0 ? 0 : query_rows * clusters * sizeof(float)},
      {&WaveDecode::retrieved_, rows * clusters * sizeof(int32_t)},
      {&WaveDecode::estimated_, rows * clusters * sizeof(int32_t)},
      {&WaveDecode::num_retrieved_, rows * sizeof(int32_t)},
      {&WaveDecode::num_estimated_, rows * sizeof(int32_t)},
      {&WaveDecode::select_scratch_, rows * clusters * 8},
      {&WaveDecode::page_masses_, query_rows * pages * sizeof(float)},
      {&WaveDecode::page_rests_, query_rows * pages * sizeof(float)},
      {&WaveDecode::pages_, rows * pages * sizeof(ChosenPage)},
      {&WaveDecode::first_pages_, has_codes ? rows * clusters * sizeof(int32_t) : 0},
      {&WaveDecode::num_pages_, has_codes ? rows * sizeof(int32_t) : 0},
      {&WaveDecode::chosen_, rows * pages * sizeof(ChosenPage)},
      {&WaveDecode::num_chosen_, has_codes ? rows * sizeof(int32_t) : 0},
      {&WaveDecode::estimate_max_, query_rows * sizeof(float)},
      {&WaveDecode::estimate_sum_, query_rows * sizeof(float)},
      {&WaveDecode::estimate_acc_, query_rows * geometry.head_dim * sizeof(float)},
      {&WaveDecode::estimate_scratch_, scratch.estimate},
      {&WaveDecode::unseen_max_, query_rows * sizeof(float)},
      {&WaveDecode::unseen_sum_, query_rows * sizeof(float)},
      {&WaveDecode::attend_scratch_, scratch.attend}};
}

MemoryNeed WaveDecode::MemoryOf(const KvGeometry& geometry, const Limits& limits,
                                const BackendNeeds& backend) {
  const auto head_dim = static_cast<int32_t>(geometry.head_dim);
  const int64_t clusters = MaxClusters(limits.max_tokens);
  const ScratchSizes scratch = {
      .estimate = backend.estimate_scratch(limits.max_batch, limits.num_query_heads, head_dim,
                                           MaxEstimated(geometry, clusters)),
      .attend =
          backend.decode_attention_scratch(limits.max_batch, limits.num_query_heads, head_dim)};
  size_t bytes =
      StagedArrays::Bytes(InputSizes(limits)) + StagedArrays::Bytes(OutputSizes(geometry, limits));
  for (const Allocation& allocation : Allocations(geometry, limits, scratch)) {
    bytes += allocation.bytes;
  }
  return MemoryNeed(MemoryPurpose::kActivations, bytes) +
         ExecutionBuffer::MemoryOf(geometry, limits.max_batch, clusters);
}

absl::Status WaveDecode::Allocate() {
  const KvGeometry& geometry = meta_pool_.geometry;
  const auto head_dim = static_cast<int32_t>(geometry.head_dim);
  const int64_t clusters = MaxClusters(limits_.max_tokens);
  ASSIGN_OR_RETURN(inputs_,
                   StagedArrays::Create(device_, InputSizes(limits_), MemoryPurpose::kActivations));
  ASSIGN_OR_RETURN(outputs_, StagedArrays::Create(device_, OutputSizes(geometry, limits_),
                                                  MemoryPurpose::kActivations));
  if (device_.can_capture()) {
    ASSIGN_OR_RETURN(beside_, device_.CreateStream(StreamKind::kCompute));
    ASSIGN_OR_RETURN(selected_, device_.CreateEvent());
    ASSIGN_OR_RETURN(estimated_done_, device_.CreateEvent());
    ASSIGN_OR_RETURN(attended_, device_.CreateEvent());
    ASSIGN_OR_RETURN(admitted_, device_.CreateEvent());
  }
  const ScratchSizes scratch = {
      .estimate = ops_.index().EstimateScratchBytes(limits_.max_batch, limits_.num_query_heads,
                                                    head_dim, MaxEstimated(geometry, clusters)),
      .attend = ops_.attention().DecodeAttentionScratchBytes(limits_.max_batch,
                                                             limits_.num_query_heads, head_dim)};
  for (const Allocation& allocation : Allocations(geometry, limits_, scratch)) {
    ASSIGN_OR_RETURN(this->*allocation.buffer,
                     device_.Allocate(allocation.bytes, MemoryPurpose::kActivations));
  }
  ASSIGN_OR_RETURN(execution_,
                   ExecutionBuffer::Create(device_, geometry, limits_.max_batch, clusters));
  return absl::OkStatus();
}

SelectionBudget WaveDecode::BudgetFor(const Sequence& sequence, int64_t num_clusters) const {
  const auto clusters = static_cast<int32_t>(num_clusters);
  if (!has_codes_) return BudgetOf(sequence.ratios, clusters);
  return CodedBudgetOf(sequence.ratios, clusters, meta_pool_.geometry.tokens_per_page());
}

absl::Status WaveDecode::BeginStep(std::span<const Sequence> batch,
                                   DeviceSpan<const DenseZone> zones, const StepTask& task) {
  const std::span<MetaIndexView> indexes = inputs_.Host<MetaIndexView>(kIndexes);
  const std::span<SelectionBudget> budgets = inputs_.Host<SelectionBudget>(kBudgets);
  if (batch.size() > indexes.size() || zones.size() != batch.size()) {
    return absl::InternalError(absl::StrCat("wave decode: ", batch.size(), " sequences and ",
                                            zones.size(), " dense zones, room for ",
                                            indexes.size()));
  }
  const int64_t most_clusters = MaxClusters(limits_.max_tokens);
  batch_ = static_cast<int64_t>(batch.size());
  zones_ = zones;
  task_ = task;
  max_clusters_ = max_retrieved_ = max_estimated_ = max_pages_ = max_chosen_ = 0;
  shares_index_ = batch.size() > 1;
  for (size_t i = 0; i < batch.size(); ++i) {
    const int64_t clusters = int64_t{batch[i].index.num_blocks} * kClustersPerMetaBlock;
    if (clusters > most_clusters) {
      return absl::InternalError(absl::StrCat("wave decode: an index of ", clusters,
                                              " clusters, room for ", most_clusters));
    }
    indexes[i] = batch[i].index;
    shares_index_ &= indexes[i].block_ids == indexes[0].block_ids;
    budgets[i] = BudgetFor(batch[i], clusters);
    max_clusters_ = std::max(max_clusters_, clusters);
    max_retrieved_ = std::max<int64_t>(max_retrieved_, budgets[i].num_retrieved);
    max_estimated_ = std::max<int64_t>(max_estimated_, budgets[i].num_estimated);
    max_chosen_ = std::max<int64_t>(max_chosen_, budgets[i].num_pages);
  }
  max_clusters_ = RowLength(max_clusters_, most_clusters);
  max_retrieved_ = RowLength(max_retrieved_, most_clusters);
  max_estimated_ = RowLength(max_estimated_, most_clusters);
  if (has_codes_) {
    max_pages_ = PageRow(meta_pool_.geometry, max_clusters_);
    max_chosen_ = RowLength(max_chosen_, execution_.max_pages());
  }
  return absl::OkStatus();
}

uint64_t WaveDecode::StepShape() const {
  // Numbers of clusters are multiples of 64 below 2^21 (32M tokens); of chosen pages, a power of
  // two or the most that there can be.
  const auto blocks = [](int64_t clusters) {
    return static_cast<uint64_t>(clusters) / kClustersPerMetaBlock;
  };
  const bool weighs = task_.weighs_unseen && max_clusters_ > 0;
  const auto width = static_cast<uint64_t>(std::bit_width(static_cast<uint64_t>(max_chosen_)));
  const uint64_t chosen = max_chosen_ == execution_.max_pages() ? 63 : width;
  return (uint64_t{weighs} << 63) | (uint64_t{shares_index_} << 62) |
         (uint64_t{task_.fetches_first} << 61) | (chosen << 45) | (blocks(max_clusters_) << 30) |
         (blocks(max_retrieved_) << 15) | blocks(max_estimated_);
}

absl::Status WaveDecode::Layer(uint32_t layer, const AttentionForm& form, const MatrixView& queries,
                               const MatrixView& out) {
  if (max_clusters_ == 0) return Attend(layer, form, queries, out);
  if (beside_ != nullptr) return LayerSideBySide(layer, form, queries, out);
  RETURN_IF_ERROR(Score(layer, form, queries));
  RETURN_IF_ERROR(Select());
  if (has_codes_) {
    RETURN_IF_ERROR(ChoosePages(layer, form, queries));
    RETURN_IF_ERROR(FindRests(layer, form, queries));
  }
  RETURN_IF_ERROR(EstimateZone(layer));
  if (task_.weighs_unseen) RETURN_IF_ERROR(WeighUnseen(layer));
  RETURN_IF_ERROR(LookUpPages(layer));
  RETURN_IF_ERROR(AdmitPages());
  return Attend(layer, form, queries, out);
}

absl::Status WaveDecode::LayerSideBySide(uint32_t layer, const AttentionForm& form,
                                         const MatrixView& queries, const MatrixView& out) {
  RETURN_IF_ERROR(Score(layer, form, queries));
  RETURN_IF_ERROR(Select());
  if (has_codes_) RETURN_IF_ERROR(ChoosePages(layer, form, queries));
  RETURN_IF_ERROR(stream_.Record(*selected_));
  RETURN_IF_ERROR(beside_->Wait(*selected_));
  if (has_codes_) RETURN_IF_ERROR(FindRestsOn(*beside_, layer, form, queries));
  RETURN_IF_ERROR(EstimateOn(*beside_, layer));
  if (task_.weighs_unseen) RETURN_IF_ERROR(WeighUnseenOn(*beside_, layer));
  RETURN_IF_ERROR(beside_->Record(*estimated_done_));
  if (task_.fetches_first) {
    RETURN_IF_ERROR(LookUpPages(layer));
    RETURN_IF_ERROR(AdmitPagesOn(stream_, execution_.pages(static_cast<int32_t>(batch_))));
    return AttendAfter(estimated_done_.get(), layer, form, queries, out);
  }
  // The last layer's admissions: they had all of the time since its attention.
  if (layer > 0) RETURN_IF_ERROR(stream_.Wait(*admitted_));
  RETURN_IF_ERROR(LookUpPages(layer));
  RETURN_IF_ERROR(AttendAfter(estimated_done_.get(), layer, form, queries, out));
  // Not beside attention, which reads missing pages over the same bus.
  RETURN_IF_ERROR(stream_.Record(*attended_));
  RETURN_IF_ERROR(beside_->Wait(*attended_));
  RETURN_IF_ERROR(AdmitPagesOn(*beside_));
  return beside_->Record(*admitted_);
}

absl::Status WaveDecode::Score(uint32_t layer, const AttentionForm& form,
                               const MatrixView& queries) {
  return ops_.index().CentroidScore(
      stream_, {.queries = queries,
                .pool = meta_pool_,
                .layer = layer,
                .indexes = Indexes(),
                .share_an_index = shares_index_,
                .scale = form.scale,
                .max_clusters = max_clusters_,
                .scores = Rows<float>(scores_, limits_.num_query_heads, max_clusters_),
                .radius_weight = limits_.radius_weight,
                .ranks = limits_.radius_weight != 0
                             ? Rows<float>(ranks_, limits_.num_query_heads, max_clusters_)
                             : DeviceSpan<float>()});
}

absl::Status WaveDecode::Select() {
  const DeviceBuffer& ranks = limits_.radius_weight != 0 ? ranks_ : scores_;
  return ops_.index().ClusterSelect(
      stream_,
      {.scores = Rows<const float>(ranks, limits_.num_query_heads, max_clusters_),
       .max_clusters = max_clusters_,
       .batch = static_cast<int32_t>(batch_),
       .num_query_heads = limits_.num_query_heads,
       .num_kv_heads = static_cast<int32_t>(num_kv_heads_),
       .budgets = inputs_.On<const SelectionBudget>(kBudgets).first(static_cast<size_t>(batch_)),
       .max_retrieved = max_retrieved_,
       .max_estimated = max_estimated_,
       .retrieved = Rows<int32_t>(retrieved_, num_kv_heads_, max_retrieved_),
       .num_retrieved = Rows<int32_t>(num_retrieved_, num_kv_heads_, 1),
       .estimated = Rows<int32_t>(estimated_, num_kv_heads_, max_estimated_),
       .num_estimated = Rows<int32_t>(num_estimated_, num_kv_heads_, 1),
       .scratch = select_scratch_.bytes()});
}

PageSelectArgs WaveDecode::PageSelection(uint32_t layer, const AttentionForm& form,
                                         const MatrixView& queries) const {
  return {.queries = queries,
          .pool = meta_pool_,
          .layer = layer,
          .indexes = Indexes(),
          .scale = form.scale,
          .scores = Rows<float>(scores_, limits_.num_query_heads, max_clusters_),
          .max_clusters = max_clusters_,
          .candidates = Rows<const int32_t>(retrieved_, num_kv_heads_, max_retrieved_),
          .num_candidates = Rows<const int32_t>(num_retrieved_, num_kv_heads_, 1),
          .max_candidates = max_retrieved_,
          .budgets = inputs_.On<const SelectionBudget>(kBudgets).first(static_cast<size_t>(batch_)),
          .max_pages = max_pages_,
          .max_chosen = max_chosen_,
          .chosen = Rows<ChosenPage>(chosen_, num_kv_heads_, max_chosen_),
          .num_chosen = Rows<int32_t>(num_chosen_, num_kv_heads_, 1),
          .num_tokens = CodeCounts(layer),
          .scratch = {.masses = Rows<float>(page_masses_, limits_.num_query_heads, max_pages_),
                      .rests = Rows<float>(page_rests_, limits_.num_query_heads, max_pages_),
                      .pages = Rows<ChosenPage>(pages_, num_kv_heads_, max_pages_),
                      .first_pages = Rows<int32_t>(first_pages_, num_kv_heads_, max_retrieved_),
                      .num_pages = Rows<int32_t>(num_pages_, num_kv_heads_, 1)}};
}

absl::Status WaveDecode::ChoosePages(uint32_t layer, const AttentionForm& form,
                                     const MatrixView& queries) {
  return ops_.index().PageSelect(stream_, PageSelection(layer, form, queries));
}

absl::Status WaveDecode::FindRestsOn(Stream& stream, uint32_t layer, const AttentionForm& form,
                                     const MatrixView& queries) {
  return ops_.index().CandidateRest(stream, PageSelection(layer, form, queries));
}

AttentionPartialView WaveDecode::EstimateView() const {
  return {.max = Rows<float>(estimate_max_, limits_.num_query_heads, 1),
          .sum = Rows<float>(estimate_sum_, limits_.num_query_heads, 1),
          .acc = Rows<float>(estimate_acc_, limits_.num_query_heads,
                             static_cast<int64_t>(meta_pool_.geometry.head_dim))};
}

absl::Status WaveDecode::EstimateOn(Stream& stream, uint32_t layer) {
  EstimateArgs args{.pool = meta_pool_,
                    .layer = layer,
                    .indexes = Indexes(),
                    .batch = static_cast<int32_t>(batch_),
                    .num_query_heads = limits_.num_query_heads,
                    .scores = Rows<const float>(scores_, limits_.num_query_heads, max_clusters_),
                    .max_clusters = max_clusters_,
                    .estimated = Rows<const int32_t>(estimated_, num_kv_heads_, max_estimated_),
                    .num_estimated = Rows<const int32_t>(num_estimated_, num_kv_heads_, 1),
                    .max_estimated = max_estimated_,
                    .out = EstimateView(),
                    .scratch = estimate_scratch_.bytes()};
  if (has_codes_) {
    args.candidates = Rows<const int32_t>(retrieved_, num_kv_heads_, max_retrieved_);
    args.num_candidates = Rows<const int32_t>(num_retrieved_, num_kv_heads_, 1);
    args.max_candidates = max_retrieved_;
  }
  return ops_.index().Estimate(stream, args);
}

ExpSumView WaveDecode::UnseenView() const {
  return {.max = Rows<float>(unseen_max_, limits_.num_query_heads, 1),
          .sum = Rows<float>(unseen_sum_, limits_.num_query_heads, 1)};
}

absl::Status WaveDecode::WeighUnseenOn(Stream& stream, uint32_t layer) {
  UnseenMassArgs args{.pool = meta_pool_,
                      .layer = layer,
                      .indexes = Indexes(),
                      .batch = static_cast<int32_t>(batch_),
                      .num_query_heads = limits_.num_query_heads,
                      .scores = Rows<const float>(scores_, limits_.num_query_heads, max_clusters_),
                      .max_clusters = max_clusters_,
                      .out = UnseenView()};
  if (!has_codes_) {  // else the scores of candidates leave out what was attended
    args.retrieved = Rows<const int32_t>(retrieved_, num_kv_heads_, max_retrieved_);
    args.num_retrieved = Rows<const int32_t>(num_retrieved_, num_kv_heads_, 1);
    args.max_retrieved = max_retrieved_;
  }
  return ops_.index().UnseenMass(stream, args);
}

DeviceSpan<float> WaveDecode::UnseenShares(uint32_t layer) const {
  return outputs_.On<float>(kUnseenShares)
      .subspan(SharesAt(layer), static_cast<size_t>(batch_ * limits_.num_query_heads));
}

absl::Status WaveDecode::DownloadStep() {
  if (max_clusters_ == 0) return absl::OkStatus();
  if (beside_ != nullptr && !task_.fetches_first) RETURN_IF_ERROR(stream_.Wait(*admitted_));
  return outputs_.Download(stream_, kNumOutputs);
}

absl::Status WaveDecode::LookUpPages(uint32_t layer) {
  const auto batch = static_cast<int32_t>(batch_);
  PageLookupArgs args{.cache = cache_.view(),
                      .counters = cache_.counters(),
                      .pool = meta_pool_,
                      .layer = layer,
                      .indexes = Indexes(),
                      .batch = batch,
                      .num_kv_heads = static_cast<int32_t>(num_kv_heads_),
                      .retrieved = Rows<const int32_t>(retrieved_, num_kv_heads_, max_retrieved_),
                      .num_retrieved = Rows<const int32_t>(num_retrieved_, num_kv_heads_, 1),
                      .max_retrieved = max_retrieved_,
                      .max_pages = execution_.max_pages(),
                      .pages = execution_.pages(batch),
                      .num_pages = PageCounts(layer)};
  if (has_codes_) {
    args.chosen = Rows<const ChosenPage>(chosen_, num_kv_heads_, max_chosen_);
    args.num_chosen = Rows<const int32_t>(num_chosen_, num_kv_heads_, 1);
    args.max_chosen = max_chosen_;
  }
  RETURN_IF_ERROR(ops_.block_cache().PageLookup(stream_, args));
  if (observer_ == nullptr) return absl::OkStatus();
  return observer_->Copy(
      stream_, {.layer = layer,
                .batch = batch,
                .max_retrieved = max_retrieved_,
                .retrieved = Rows<const int32_t>(retrieved_, num_kv_heads_, max_retrieved_),
                .num_retrieved = Rows<const int32_t>(num_retrieved_, num_kv_heads_, 1),
                .max_pages = execution_.max_pages(),
                .pages = execution_.pages(batch),
                .num_pages = PageCounts(layer)});
}

absl::Status WaveDecode::AttendAfter(const Event* estimate_ready, uint32_t layer,
                                     const AttentionForm& form, const MatrixView& queries,
                                     const MatrixView& out) {
  DecodeAttentionArgs args{.queries = queries,
                           .pool = dense_pool_,
                           .layer = layer,
                           .zones = zones_,
                           .scale = form.scale,
                           .window = form.window,
                           .sinks = form.sinks,
                           .out = out,
                           .scratch = attend_scratch_.bytes()};
  if (max_clusters_ > 0) {
    args.pages = execution_.pages(static_cast<int32_t>(batch_));
    args.num_pages = PageCounts(layer);
    args.max_pages = execution_.max_pages();
    args.estimate = EstimateView();
    if (task_.weighs_unseen) {
      args.unseen = UnseenView();
      args.unseen_share = UnseenShares(layer);
    }
    args.estimate_ready = estimate_ready;
  }
  return ops_.attention().DecodeAttention(stream_, args);
}

double WaveDecode::LastStepIndexBytes(size_t row) const {
  const SelectionBudget& budget = inputs_.Host<SelectionBudget>(kBudgets)[row];
  if (max_clusters_ == 0 || budget.num_clusters == 0) return 0;
  const KvGeometry& geometry = meta_pool_.geometry;
  const auto sum_of = [&](Output output) {
    const std::span<const int32_t> counts = outputs_.Host<const int32_t>(output);
    double sum = 0;
    for (size_t layer = 0; layer < geometry.num_layers; ++layer) {
      const size_t first = PageCountsAt(layer) + row * geometry.num_kv_heads;
      for (size_t head = 0; head < geometry.num_kv_heads; ++head) sum += counts[first + head];
    }
    return sum;
  };
  const auto bytes_of = [&geometry](double vectors, const VectorFormat& format) {
    return vectors * static_cast<double>(format.vector_bytes(geometry.head_dim));
  };
  const int32_t num_sums = budget.num_estimated + (has_codes_ ? budget.num_retrieved : 0);
  const double index = bytes_of(budget.num_clusters, geometry.format.centroid) +
                       bytes_of(num_sums, geometry.format.value_sum);
  const auto code_bytes = static_cast<double>(TokenCodeBytes(geometry.format, geometry.head_dim));
  const double codes = has_codes_ ? sum_of(kCodeCounts) * code_bytes : 0;
  const double pages = sum_of(kPageCounts) * static_cast<double>(geometry.page_bytes());
  return pages + codes + index * geometry.num_layers * geometry.num_kv_heads;
}

std::optional<double> WaveDecode::LastStepUnseen(size_t row) const {
  if (!task_.weighs_unseen) return std::nullopt;
  const SelectionBudget& budget = inputs_.Host<SelectionBudget>(kBudgets)[row];
  if (max_clusters_ == 0 || budget.num_clusters == 0) return 0;
  const size_t num_layers = meta_pool_.geometry.num_layers;
  const size_t num_heads = static_cast<size_t>(limits_.num_query_heads);
  const std::span<const float> shares = outputs_.Host<const float>(kUnseenShares);
  double sum = 0;
  for (size_t layer = 0; layer < num_layers; ++layer) {
    const auto of_layer = shares.subspan(SharesAt(layer) + row * num_heads, num_heads);
    sum = std::accumulate(of_layer.begin(), of_layer.end(), sum);
  }
  return sum / static_cast<double>(num_layers * num_heads);
}

}  // namespace retroinfer
