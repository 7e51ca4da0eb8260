#include "gpu_worker/attention/wave_decode.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/attention/wave_decode_sizes.h"

namespace retroinfer {
namespace {

// A row length that holds `length` clusters: one of a few, at most `max`.
int64_t RowLength(int64_t length, int64_t max) {
  if (length == 0) return 0;
  const int64_t blocks = (length + kClustersPerMetaBlock - 1) / kClustersPerMetaBlock;
  const auto rounded = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(blocks)));
  return std::min(rounded * kClustersPerMetaBlock, max);
}

}  // namespace

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
  RETURN_IF_ERROR(TakeRuns(task.runs));
  max_clusters_ = RowLength(max_clusters_, most_clusters);
  max_retrieved_ = RowLength(max_retrieved_, most_clusters);
  max_estimated_ = RowLength(max_estimated_, most_clusters);
  if (has_codes_) {
    max_pages_ = PageRow(meta_pool_.geometry, max_clusters_);
    max_chosen_ = RowLength(max_chosen_, execution_.max_pages());
  }
  return absl::OkStatus();
}

absl::Status WaveDecode::TakeRuns(std::span<const RowRun> runs) {
  runs_.assign(runs.begin(), runs.end());
  task_.runs = runs_;
  if (runs.empty()) return absl::OkStatus();
  if (has_codes_ || !task_.fetches_first) {
    return absl::InternalError(
        "wave decode: rows share what they retrieve where pages are chosen, or not fetched first");
  }
  const std::span<const SelectionBudget> budgets = inputs_.Host<const SelectionBudget>(kBudgets);
  std::ranges::copy(runs, inputs_.Host<RowRun>(kRuns).begin());
  for (const RowRun& run : runs) {
    if (run.first_row < 0 || run.num_rows < 1 || run.num_rows > kMaxRowsOfRun ||
        run.first_row + run.num_rows > batch_) {
      return absl::InternalError(absl::StrCat("wave decode: a run of ", run.num_rows,
                                              " rows from row ", run.first_row, " on of ", batch_));
    }
    const SelectionBudget& budget = budgets[static_cast<size_t>(run.first_row)];
    const int64_t of_all = int64_t{budget.num_retrieved} * run.num_rows;
    max_retrieved_ = std::max(max_retrieved_, std::min<int64_t>(budget.num_clusters, of_all));
  }
  return absl::OkStatus();
}

bool WaveDecode::IsOfRun(size_t row) const {
  return std::ranges::any_of(runs_, [number = static_cast<int64_t>(row)](const RowRun& run) {
    return number >= run.first_row && number < int64_t{run.first_row} + run.num_rows;
  });
}

uint64_t WaveDecode::StepShape() const {
  // Numbers of clusters are multiples of 64 below 2^21 (32M tokens); of chosen pages, a power of
  // two or the most that there can be. Where rows share what they retrieve, no page is chosen, and
  // the number of runs has their place.
  const auto blocks = [](int64_t clusters) {
    return static_cast<uint64_t>(clusters) / kClustersPerMetaBlock;
  };
  const bool weighs = task_.weighs_unseen && max_clusters_ > 0;
  const auto width = static_cast<uint64_t>(std::bit_width(static_cast<uint64_t>(max_chosen_)));
  const uint64_t chosen = !runs_.empty()                          ? 64 + runs_.size()
                          : max_chosen_ == execution_.max_pages() ? 63
                                                                  : width;
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
  RETURN_IF_ERROR(ShareRuns());
  if (has_codes_) {
    RETURN_IF_ERROR(ChoosePages(layer, form, queries));
    RETURN_IF_ERROR(FindRests(layer, form, queries));
  }
  RETURN_IF_ERROR(EstimateZone(layer));
  if (task_.weighs_unseen) RETURN_IF_ERROR(WeighUnseen(layer));
  RETURN_IF_ERROR(LookUpPages(layer));
  RETURN_IF_ERROR(AdmitPages());
  RETURN_IF_ERROR(AttendShared(form, layer, queries));
  return Attend(layer, form, queries, out);
}

absl::Status WaveDecode::LayerSideBySide(uint32_t layer, const AttentionForm& form,
                                         const MatrixView& queries, const MatrixView& out) {
  RETURN_IF_ERROR(Score(layer, form, queries));
  RETURN_IF_ERROR(Select());
  RETURN_IF_ERROR(ShareRuns());
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
    if (runs_.empty()) return AttendAfter(estimated_done_.get(), layer, form, queries, out);
    RETURN_IF_ERROR(stream_.Wait(*estimated_done_));
    RETURN_IF_ERROR(AttendShared(form, layer, queries));
    return AttendAfter(nullptr, layer, form, queries, out);
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

absl::Status WaveDecode::ShareRuns() {
  if (runs_.empty()) return absl::OkStatus();
  return ops_.index().ShareRetrieved(
      stream_, {.runs = Runs(),
                .batch = static_cast<int32_t>(batch_),
                .num_kv_heads = static_cast<int32_t>(num_kv_heads_),
                .max_clusters = max_clusters_,
                .max_retrieved = max_retrieved_,
                .retrieved = Rows<int32_t>(retrieved_, num_kv_heads_, max_retrieved_),
                .num_retrieved = Rows<int32_t>(num_retrieved_, num_kv_heads_, 1),
                .max_estimated = max_estimated_,
                .estimated = Rows<int32_t>(estimated_, num_kv_heads_, max_estimated_),
                .num_estimated = Rows<int32_t>(num_estimated_, num_kv_heads_, 1),
                .scratch = share_scratch_.bytes()});
}

absl::Status WaveDecode::AttendShared(const AttentionForm& form, uint32_t layer,
                                      const MatrixView& queries) {
  if (runs_.empty()) return absl::OkStatus();
  return ops_.attention().SharedPageAttention(
      stream_, {.queries = queries,
                .geometry = meta_pool_.geometry,
                .runs = Runs(),
                .pages = execution_.pages(static_cast<int32_t>(batch_)),
                .num_pages = PageCounts(layer),
                .max_pages = execution_.max_pages(),
                .scale = form.scale,
                .sums = EstimateView(),
                .scratch = attend_shared_scratch_.bytes()});
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
    args.runs = Runs();
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
  if (!task_.weighs_unseen || IsOfRun(row)) return std::nullopt;
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
