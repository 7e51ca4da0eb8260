// One decode step of tripartite attention for a batch, layer by layer (RetroInfer, section 4):
//   score   q . C of every live cluster
//   select  retrieval and estimation zone of each KV head
//   share   of rows that share what they retrieve, one retrieval zone
//   choose  where tokens have codes, pages of the retrieved clusters, which are then candidates:
//           what they hold beside these pages is estimated, too
//   estimate the estimation zone from centroids and value sums
//   weigh    the mass outside of the retrieval zone, to tell its share
//   look up  the pages of the retrieval zone in the block cache
//   attend   dense zone and pages exactly, merged with the estimate. Shared pages come before, for
//            all rows that share them.
// Sequences without an index take part with zero clusters.
//
// Threads: the engine's.
// Owns:    the step's device memory, allocated once for the largest batch; a step allocates none.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/attention/retrieval_observer.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/memory_need.h"
#include "gpu_worker/device/staged_arrays.h"
#include "gpu_worker/ops/attention/attention_form.h"
#include "gpu_worker/ops/backend/backend_needs.h"
#include "gpu_worker/ops/backend/ops.h"
#include "gpu_worker/wave_buffer/block_cache.h"
#include "gpu_worker/wave_buffer/execution_buffer.h"
#include "gpu_worker/wave_index/selection_budget.h"

namespace retroinfer {

class WaveDecode {
 public:
  struct Limits {
    int32_t num_query_heads = 0;
    int32_t max_batch = 0;
    int64_t max_tokens = 0;   // of a sequence
    float radius_weight = 0;  // of WaveIndexSettings
  };

  static absl::StatusOr<std::unique_ptr<WaveDecode>> Create(Device& device, Ops& ops,
                                                            Stream& stream, BlockCache& cache,
                                                            const DensePoolView& dense_pool,
                                                            const MetaPoolView& meta_pool,
                                                            const Limits& limits);
  static MemoryNeed MemoryOf(const KvGeometry& geometry, const Limits& limits,
                             const BackendNeeds& backend);

  // What a sequence brings into a step.
  struct Sequence {
    MetaIndexView index;  // its live meta blocks
    SelectionRatios ratios;
  };

  // Has what every layer looks up copied out from the next step on. It must outlive this, and be
  // told of the steps by who calls it. REQUIRES: tokens have no codes, or `observer` is null: what
  // is observed are whole clusters.
  void Observe(RetrievalObserver* observer) { observer_ = observer; }

  // What a step does beside attending.
  struct StepTask {
    bool weighs_unseen = false;  // LastStepUnseen() is asked for
    // Pages that are missed are admitted before rows attend, not meanwhile. Where many rows of a
    // sequence miss the same pages, one reads them for all: attended in the arena, each row's
    // misses would be read by itself.
    bool fetches_first = false;
    // Rows that share what they retrieve. REQUIRES: rows of a run have one index; tokens have no
    // codes; if there are any, `fetches_first`.
    std::span<const RowRun> runs = {};
  };
  // `zones` [batch.size()] is device memory that must stay until the step is done; the same holds
  // for the block lists of the indexes.
  //
  // REQUIRES: batch.size() <= max_batch; the block cache has begun the step.
  absl::Status BeginStep(std::span<const Sequence> batch, DeviceSpan<const DenseZone> zones,
                         const StepTask& task);
  // Clusters of a row of the step's lists, at most; 0: no sequence of it has an index.
  int64_t max_retrieved() const { return max_clusters_ == 0 ? 0 : max_retrieved_; }
  // As in attention_policy.h. The shape is that of the step's arrays, its task, and whether all
  // rows are of one sequence: row lengths are rounded up to powers of two, so that a growing
  // context keeps its shape for long.
  uint64_t StepShape() const;
  absl::Status UploadStep() { return inputs_.Upload(stream_); }
  // queries, out: [batch, query_heads * head_dim], activation dtype.
  absl::Status Layer(uint32_t layer, const AttentionForm& form, const MatrixView& queries,
                     const MatrixView& out);
  absl::Status DownloadStep();
  // Behind the step's device part: as AttentionPolicy::LastStepLacked() needs it.
  absl::Status EndStep() { return cache_.absent().EndStep(stream_); }
  bool LastStepLacked(size_t row) const { return cache_.absent().Lacked(row); }

  // Bytes of centroids, value sums, codes and retrieved pages that the last step read for
  // batch[row], all layers. Pages and codes are counted as they were read, those of a run with its
  // first row; REQUIRES: the stream has passed the step.
  double LastStepIndexBytes(size_t row) const;
  // Of the softmax mass of that step, the share that was not attended exactly, as predicted: mean
  // over layers and query heads. None: the step did not weigh it, or the row is one of a run.
  // REQUIRES: as above.
  std::optional<double> LastStepUnseen(size_t row) const;

  // The stages of Layer(), for measuring them one by one. Order: as above.
  absl::Status Score(uint32_t layer, const AttentionForm& form, const MatrixView& queries);
  absl::Status Select();
  absl::Status ShareRuns();
  bool chooses_pages() const { return has_codes_; }  // whether there are the next two
  absl::Status ChoosePages(uint32_t layer, const AttentionForm& form, const MatrixView& queries);
  absl::Status FindRests(uint32_t layer, const AttentionForm& form, const MatrixView& queries) {
    return FindRestsOn(stream_, layer, form, queries);
  }
  absl::Status EstimateZone(uint32_t layer) { return EstimateOn(stream_, layer); }
  absl::Status WeighUnseen(uint32_t layer) { return WeighUnseenOn(stream_, layer); }
  absl::Status LookUpPages(uint32_t layer);
  absl::Status AdmitPages() { return AdmitPagesOn(stream_); }
  absl::Status AttendShared(const AttentionForm& form, uint32_t layer, const MatrixView& queries);
  absl::Status Attend(uint32_t layer, const AttentionForm& form, const MatrixView& queries,
                      const MatrixView& out) {
    return AttendAfter(nullptr, layer, form, queries, out);
  }

 private:
  WaveDecode(Device& device, Ops& ops, Stream& stream, BlockCache& cache,
             const DensePoolView& dense_pool, const MetaPoolView& meta_pool, const Limits& limits);

  enum Output : size_t { kPageCounts, kUnseenShares, kCodeCounts, kNumOutputs };
  // Of the operations' working memory, bytes.
  struct ScratchSizes {
    size_t estimate = 0;
    size_t attend = 0;
    size_t attend_shared = 0;
  };
  struct Allocation {
    DeviceBuffer WaveDecode::*buffer;
    size_t bytes;
  };
  static std::vector<Allocation> Allocations(const KvGeometry& geometry, const Limits& limits,
                                             const ScratchSizes& scratch);
  absl::Status Allocate();
  absl::Status TakeRuns(std::span<const RowRun> runs);
  SelectionBudget BudgetFor(const Sequence& sequence, int64_t num_clusters) const;
  PageSelectArgs PageSelection(uint32_t layer, const AttentionForm& form,
                               const MatrixView& queries) const;
  absl::Status FindRestsOn(Stream& stream, uint32_t layer, const AttentionForm& form,
                           const MatrixView& queries);
  absl::Status EstimateOn(Stream& stream, uint32_t layer);
  absl::Status WeighUnseenOn(Stream& stream, uint32_t layer);
  absl::Status AdmitPagesOn(Stream& stream, DeviceSpan<PageRef> pages = {}) {
    return ops_.block_cache().AdmitPages(
        stream, {.cache = cache_.view(), .counters = cache_.counters(), .pages = pages});
  }
  absl::Status AttendAfter(const Event* estimate_ready, uint32_t layer, const AttentionForm& form,
                           const MatrixView& queries, const MatrixView& out);
  absl::Status LayerSideBySide(uint32_t layer, const AttentionForm& form, const MatrixView& queries,
                               const MatrixView& out);
  // Where a layer's results begin in outputs_.
  size_t PageCountsAt(size_t layer) const {
    return layer * static_cast<size_t>(limits_.max_batch) * static_cast<size_t>(num_kv_heads_);
  }
  size_t SharesAt(size_t layer) const {
    return layer * static_cast<size_t>(limits_.max_batch) *
           static_cast<size_t>(limits_.num_query_heads);
  }
  AttentionPartialView EstimateView() const;
  ExpSumView UnseenView() const;
  DeviceSpan<const MetaIndexView> Indexes() const {
    return inputs_.On<const MetaIndexView>(kIndexes).first(static_cast<size_t>(batch_));
  }
  // [batch, kv_heads] pages of a layer's retrieval zone, and tokens whose codes were read.
  DeviceSpan<int32_t> PageCounts(uint32_t layer) const { return Counts(kPageCounts, layer); }
  DeviceSpan<int32_t> CodeCounts(uint32_t layer) const { return Counts(kCodeCounts, layer); }
  DeviceSpan<int32_t> Counts(Output output, uint32_t layer) const {
    return outputs_.On<int32_t>(output).subspan(PageCountsAt(layer),
                                                static_cast<size_t>(batch_ * num_kv_heads_));
  }
  // [batch, query_heads] of a layer.
  DeviceSpan<float> UnseenShares(uint32_t layer) const;
  DeviceSpan<const RowRun> Runs() const {
    return inputs_.On<const RowRun>(kRuns).first(runs_.size());
  }
  bool IsOfRun(size_t row) const;
  // The leading part of a buffer that this step's batch uses.
  template <typename T>
  DeviceSpan<T> Rows(const DeviceBuffer& buffer, int64_t heads, int64_t row_length) const {
    return buffer.as<T>().first(static_cast<size_t>(batch_ * heads * row_length));
  }

  Device& device_;
  Ops& ops_;
  Stream& stream_;
  BlockCache& cache_;
  const DensePoolView dense_pool_;
  const MetaPoolView meta_pool_;
  const Limits limits_;
  const int64_t num_kv_heads_;
  const bool has_codes_;
  RetrievalObserver* observer_ = nullptr;

  enum Input : size_t { kIndexes, kBudgets, kRuns };
  StagedArrays inputs_;  // MetaIndexView, SelectionBudget, RowRun [max_batch]
  // int32 [layers, max_batch, kv_heads]; float [layers, max_batch, query_heads]; where tokens have
  // codes int32 [layers, max_batch, kv_heads]
  StagedArrays outputs_;
  DeviceBuffer scores_;         // float [max_batch, query_heads, max_clusters]
  DeviceBuffer ranks_;          // the same; empty without a radius weight
  DeviceBuffer retrieved_;      // int32 [max_batch, kv_heads, max_clusters]
  DeviceBuffer num_retrieved_;  // int32 [max_batch, kv_heads]
  DeviceBuffer estimated_;
  DeviceBuffer num_estimated_;
  DeviceBuffer select_scratch_;
  // Of the choice of pages; empty without codes.
  DeviceBuffer page_masses_;  // float [max_batch, query_heads, max_pages]
  DeviceBuffer page_rests_;
  DeviceBuffer pages_;        // ChosenPage [max_batch, kv_heads, max_pages]
  DeviceBuffer first_pages_;  // int32 [max_batch, kv_heads, max_clusters]
  DeviceBuffer num_pages_;    // int32 [max_batch, kv_heads]
  DeviceBuffer chosen_;       // ChosenPage [max_batch, kv_heads, max_pages]
  DeviceBuffer num_chosen_;
  DeviceBuffer estimate_max_;  // float [max_batch, query_heads]
  DeviceBuffer estimate_sum_;
  DeviceBuffer estimate_acc_;  // float [max_batch, query_heads, head_dim]
  DeviceBuffer estimate_scratch_;
  DeviceBuffer unseen_max_;  // float [max_batch, query_heads]
  DeviceBuffer unseen_sum_;
  DeviceBuffer attend_scratch_;
  DeviceBuffer share_scratch_;
  DeviceBuffer attend_shared_scratch_;
  ExecutionBuffer execution_;

  // Where the device runs streams side by side: the estimation zone and the mass beside look-up and
  // attention, and admissions beside what follows attention.
  std::unique_ptr<Stream> beside_;
  std::unique_ptr<Event> selected_;
  std::unique_ptr<Event> estimated_done_;
  std::unique_ptr<Event> attended_;
  std::unique_ptr<Event> admitted_;

  // This step's batch. The row lengths fit its largest index, rounded up.
  int64_t batch_ = 0;
  int64_t max_clusters_ = 0;
  int64_t max_retrieved_ = 0;
  int64_t max_estimated_ = 0;
  int64_t max_pages_ = 0;      // of the clusters of its largest index
  int64_t max_chosen_ = 0;     // of these
  bool shares_index_ = false;  // all rows, and there are several
  DeviceSpan<const DenseZone> zones_;
  StepTask task_;
  std::vector<RowRun> runs_;  // of the task
};

}  // namespace retroinfer
