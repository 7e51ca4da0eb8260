#include "gpu_worker/measuring/retrieval_trace/retrieval_recorder.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

// Room for the record that says why the trace ends.
constexpr uint64_t kEndBytes = 8;

template <typename T>
absl::Status CopyOut(Device& device, Stream& stream, DeviceSpan<const T> from, size_t first,
                     size_t count, const HostBuffer& to, size_t to_first) {
  const DeviceSpan<const T> part = from.subspan(first, count);
  return device.Download(
      stream, {reinterpret_cast<const std::byte*>(part.device_data()), count * sizeof(T)},
      std::as_writable_bytes(to.as<T>().subspan(to_first, count)));
}

}  // namespace

RetrievalRecorder::RetrievalRecorder(Device& device, const Sizes& sizes,
                                     std::unique_ptr<TraceFile> file)
    : device_(device),
      sizes_(sizes),
      encoder_({.num_layers = sizes.geometry.num_layers,
                .num_kv_heads = sizes.geometry.num_kv_heads,
                .tokens_per_page = sizes.geometry.tokens_per_page()}),
      file_(std::move(file)) {}

absl::StatusOr<std::unique_ptr<RetrievalRecorder>> RetrievalRecorder::Create(
    Device& device, const Sizes& sizes, std::unique_ptr<TraceFile> file) {
  auto recorder = absl::WrapUnique(new RetrievalRecorder(device, sizes, std::move(file)));
  const size_t places = recorder->PlaceOf(sizes.geometry.num_layers, 0, 0);
  const auto clusters = static_cast<size_t>(sizes.max_clusters);
  const auto refs = static_cast<size_t>(recorder->RefsOf(sizes.max_clusters));
  ASSIGN_OR_RETURN(recorder->num_retrieved_, device.AllocateHost(places * sizeof(int32_t)));
  ASSIGN_OR_RETURN(recorder->num_pages_, device.AllocateHost(places * sizeof(int32_t)));
  ASSIGN_OR_RETURN(recorder->retrieved_, device.AllocateHost(places * clusters * sizeof(int32_t)));
  ASSIGN_OR_RETURN(recorder->pages_, device.AllocateHost(places * refs * sizeof(PageRef)));
  recorder->rows_.reserve(static_cast<size_t>(sizes.max_batch));
  recorder->file_->Append(recorder->encoder_.Header());
  return recorder;
}

RetrievalRecorder::~RetrievalRecorder() {
  Finish();
  if (num_lost_ != 0) file_->Append(TraceEncoder::Lost(num_lost_));
  file_->End(TraceEncoder::EndOf(TraceEncoder::End::kStopped),
             absl::StrCat(num_steps_, " steps of sequences"));
}

int64_t RetrievalRecorder::RefsOf(int64_t max_retrieved) const {
  return kPagesOfCluster * std::min(max_retrieved, sizes_.max_clusters);
}

void RetrievalRecorder::BeginStep(std::span<SequenceKv* const> batch, int64_t max_retrieved) {
  Finish();
  max_retrieved_ = max_retrieved;
  if (max_retrieved == 0 || !file_->is_open()) return;
  uint64_t ahead = 0;  // of rows of one sequence that are neighbours
  for (size_t i = 0; i < batch.size(); ++i) {
    const SequenceKv& sequence = *batch[i];
    ahead = i > 0 && batch[i - 1] == batch[i] ? ahead + 1 : 0;
    rows_.push_back({sequence.sequence_id, static_cast<uint64_t>(sequence.num_tokens) + ahead,
                     static_cast<uint32_t>(sequence.num_indexed_blocks) * kClustersPerMetaBlock});
  }
}

absl::Status RetrievalRecorder::Copy(Stream& stream, const LayerRetrieval& layer) {
  const uint32_t heads = sizes_.geometry.num_kv_heads;
  const auto num_lists = static_cast<size_t>(layer.batch) * heads;
  const size_t first = PlaceOf(layer.layer, 0, 0);
  const auto clusters = static_cast<size_t>(std::min(layer.max_retrieved, sizes_.max_clusters));
  const auto refs = static_cast<size_t>(std::min(layer.max_pages, RefsOf(layer.max_retrieved)));
  RETURN_IF_ERROR(
      CopyOut(device_, stream, layer.num_retrieved, 0, num_lists, num_retrieved_, first));
  RETURN_IF_ERROR(CopyOut(device_, stream, layer.num_pages, 0, num_lists, num_pages_, first));
  for (size_t list = 0; list < num_lists; ++list) {
    const size_t place = first + list;
    RETURN_IF_ERROR(CopyOut(device_, stream, layer.retrieved,
                            list * static_cast<size_t>(layer.max_retrieved), clusters, retrieved_,
                            place * static_cast<size_t>(sizes_.max_clusters)));
    RETURN_IF_ERROR(CopyOut(device_, stream, layer.pages,
                            list * static_cast<size_t>(layer.max_pages), refs, pages_,
                            place * static_cast<size_t>(RefsOf(sizes_.max_clusters))));
  }
  return absl::OkStatus();
}

// Pages lie in the order of the clusters; each cluster's first one has place 0.
HeadRetrieval RetrievalRecorder::HeadOf(size_t place, uint32_t num_clusters) const {
  const auto num_retrieved = int64_t{num_retrieved_.as<const int32_t>()[place]};
  const int64_t num_known = std::min({num_retrieved, max_retrieved_, sizes_.max_clusters});
  const auto clusters = retrieved_.as<const int32_t>().subspan(
      place * static_cast<size_t>(sizes_.max_clusters), static_cast<size_t>(num_known));
  const int64_t all_pages = num_pages_.as<const int32_t>()[place];
  const int64_t num_refs = std::min(all_pages, RefsOf(max_retrieved_));
  const auto refs = pages_.as<const PageRef>().subspan(
      place * static_cast<size_t>(RefsOf(sizes_.max_clusters)), static_cast<size_t>(num_refs));
  HeadRetrieval head{.clusters = {},
                     .num_left_out = static_cast<uint32_t>(num_retrieved - num_known)};
  size_t next = 0;
  for (const int32_t cluster : clusters) {
    RetrievedCluster& retrieved =
        head.clusters.emplace_back(RetrievedCluster{.cluster = static_cast<uint32_t>(cluster)});
    RI_CHECK(retrieved.cluster < num_clusters);
    const size_t begin = next;
    while (next < refs.size() && (next == begin || PlaceInCluster(refs[next].origin) != 0)) {
      retrieved.num_missed += IsMissed(refs[next++].origin) ? 1 : 0;
    }
    retrieved.num_pages = static_cast<uint32_t>(next - begin);
  }
  // The pages behind those that were copied are not known, nor how many the last cluster has.
  if (num_refs < all_pages && !head.clusters.empty()) {
    for (RetrievedCluster& cluster : head.clusters) {
      if (&cluster == &head.clusters.back() || (&cluster + 1)->num_pages == 0)
        cluster.num_pages = 0;
    }
  }
  std::sort(head.clusters.begin(), head.clusters.end(),
            [](const auto& a, const auto& b) { return a.cluster < b.cluster; });
  return head;
}

void RetrievalRecorder::Write(const std::string& record) {
  if (!file_->is_open()) return;
  if (file_->size_bytes() + record.size() + kEndBytes > file_->limit_bytes()) {
    file_->End(TraceEncoder::EndOf(TraceEncoder::End::kLimit),
               absl::StrCat(num_steps_,
                            " steps of sequences; nothing more is recorded, since the "
                            "limit of ",
                            file_->limit_bytes(), " bytes is reached"));
    return;
  }
  file_->Append(record);
}

void RetrievalRecorder::Finish() {
  for (size_t row = 0; row < rows_.size(); ++row) {
    if (!file_->is_open()) break;
    if (rows_[row].num_clusters == 0) continue;
    if (!file_->has_room()) {
      ++num_lost_;
      continue;
    }
    if (num_lost_ != 0) Write(TraceEncoder::Lost(num_lost_));
    num_lost_ = 0;
    StepRetrieval step{.sequence_id = rows_[row].sequence_id,
                       .num_tokens = rows_[row].num_tokens,
                       .num_clusters = rows_[row].num_clusters,
                       .heads = {}};
    for (uint32_t layer = 0; layer < sizes_.geometry.num_layers; ++layer) {
      for (uint32_t head = 0; head < sizes_.geometry.num_kv_heads; ++head) {
        step.heads.push_back(HeadOf(PlaceOf(layer, row, head), step.num_clusters));
      }
    }
    Write(encoder_.Step(step));
    if (file_->is_open()) ++num_steps_;
  }
  rows_.clear();
}

void RetrievalRecorder::Release(const SequenceKv& sequence) {
  Finish();
  Write(encoder_.Release(sequence.sequence_id));
}

}  // namespace retroinfer
