// What a decode step of policy wave has in memory, and how it comes to it.
#include <array>

#include "absl/memory/memory.h"
#include "common/status/status_macros.h"
#include "gpu_worker/attention/wave_decode.h"
#include "gpu_worker/attention/wave_decode_sizes.h"

namespace retroinfer {
namespace {

std::array<size_t, 3> InputSizes(const WaveDecode::Limits& limits) {
  const size_t batch = static_cast<size_t>(limits.max_batch);
  return {batch * sizeof(MetaIndexView), batch * sizeof(SelectionBudget), batch * sizeof(RowRun)};
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
      {&WaveDecode::attend_scratch_, scratch.attend},
      {&WaveDecode::share_scratch_,
       ShareRetrievedScratchBytes(batch, static_cast<int32_t>(geometry.num_kv_heads),
                                  MaxClusters(limits.max_tokens))},
      {&WaveDecode::attend_shared_scratch_, scratch.attend_shared}};
}

MemoryNeed WaveDecode::MemoryOf(const KvGeometry& geometry, const Limits& limits,
                                const BackendNeeds& backend) {
  const auto head_dim = static_cast<int32_t>(geometry.head_dim);
  const int64_t clusters = MaxClusters(limits.max_tokens);
  const ScratchSizes scratch = {
      .estimate = backend.estimate_scratch(limits.max_batch, limits.num_query_heads, head_dim,
                                           MaxEstimated(geometry, clusters)),
      .attend =
          backend.decode_attention_scratch(limits.max_batch, limits.num_query_heads, head_dim),
      .attend_shared = backend.shared_page_attention_scratch(limits.max_batch,
                                                             limits.num_query_heads, head_dim)};
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
                                                             limits_.num_query_heads, head_dim),
      .attend_shared = ops_.attention().SharedPageAttentionScratchBytes(
          limits_.max_batch, limits_.num_query_heads, head_dim)};
  for (const Allocation& allocation : Allocations(geometry, limits_, scratch)) {
    ASSIGN_OR_RETURN(this->*allocation.buffer,
                     device_.Allocate(allocation.bytes, MemoryPurpose::kActivations));
  }
  ASSIGN_OR_RETURN(execution_,
                   ExecutionBuffer::Create(device_, geometry, limits_.max_batch, clusters));
  return absl::OkStatus();
}

}  // namespace retroinfer
