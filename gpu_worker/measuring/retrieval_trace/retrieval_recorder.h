// Writes what every decode step retrieves to a file (trace_encoder.h has the format), for
// --record-trace.
//
// A step's lists are copied out behind its look-ups and become bytes when the next step begins, or
// a sequence ends. Steps are left out, and counted, while the disk is too slow; nothing waits.
//
// Threads: the engine's thread.
// Owns:    host memory for one step's lists, and the file.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/kv_geometry.h"
#include "gpu_worker/attention/retrieval_observer.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/measuring/retrieval_trace/trace_encoder.h"
#include "gpu_worker/measuring/retrieval_trace/trace_file.h"

namespace retroinfer {

class RetrievalRecorder final : public RetrievalObserver {
 public:
  struct Sizes {
    KvGeometry geometry;
    int32_t max_batch = 0;
    int64_t max_clusters = 0;  // of a KV head that are recorded, at most; 1 or more
  };
  // Clusters of a KV head that are recorded at most, and pages of each on average.
  static constexpr int64_t kMaxClusters = 1024;
  static constexpr int64_t kPagesOfCluster = 16;

  // `device` must outlive it.
  static absl::StatusOr<std::unique_ptr<RetrievalRecorder>> Create(Device& device,
                                                                   const Sizes& sizes,
                                                                   std::unique_ptr<TraceFile> file);
  // REQUIRES: the stream has passed the last step.
  ~RetrievalRecorder() override;

  void BeginStep(std::span<SequenceKv* const> batch, int64_t max_retrieved) override;
  absl::Status Copy(Stream& stream, const LayerRetrieval& layer) override;
  void Release(const SequenceKv& sequence) override;

 private:
  struct Row {
    uint64_t sequence_id;
    uint64_t num_tokens;
    uint32_t num_clusters;
  };

  RetrievalRecorder(Device& device, const Sizes& sizes, std::unique_ptr<TraceFile> file);
  // Encodes the step that is pending, if one is.
  void Finish();
  void Write(const std::string& record);
  HeadRetrieval HeadOf(size_t place, uint32_t num_clusters) const;
  // Of a (layer, row of the batch, KV head).
  size_t PlaceOf(uint32_t layer, size_t row, uint32_t head) const {
    return (layer * static_cast<size_t>(sizes_.max_batch) + row) * sizes_.geometry.num_kv_heads +
           head;
  }
  int64_t RefsOf(int64_t max_retrieved) const;

  Device& device_;
  const Sizes sizes_;
  TraceEncoder encoder_;
  std::unique_ptr<TraceFile> file_;
  // By place; each place's clusters and pages have room for the most.
  HostBuffer num_retrieved_, num_pages_, retrieved_, pages_;

  // The step that is pending.
  std::vector<Row> rows_;
  int64_t max_retrieved_ = 0;
  uint64_t num_lost_ = 0;   // steps, not told of yet
  uint64_t num_steps_ = 0;  // recorded
};

}  // namespace retroinfer
