#include "gpu_worker/assembly/retrieval_recording.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/measuring/retrieval_trace/trace_encoder.h"
#include "spdlog/spdlog.h"

namespace retroinfer {

absl::Status RetrievalRecording::Open(const ServedEngineOptions& options, const KvFormat& format) {
  if (options.record_trace_file.empty()) return absl::OkStatus();
  if (format.token_code_bits != 0) {
    return absl::FailedPreconditionError(
        "--record-trace: a trace tells which clusters are read, and with --index-dtype coded pages "
        "of clusters are; record with another index");
  }
  const std::string path = options.rank == 0
                               ? options.record_trace_file
                               : absl::StrCat(options.record_trace_file, ".rank", options.rank);
  absl::StatusOr<std::unique_ptr<TraceFile>> file =
      TraceFile::Open(path, TraceEncoder::kMagic, options.record_trace_bytes);
  if (!file.ok()) {
    return absl::Status(file.status().code(),
                        absl::StrCat("--record-trace: ", std::string(file.status().message())));
  }
  file_ = *std::move(file);
  spdlog::info("recording what decode steps retrieve{} in {}, up to {} MiB",
               options.num_ranks == 1 ? "" : " of the KV heads of this rank", path,
               options.record_trace_bytes >> 20);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RetrievalRecorder>> RetrievalRecording::TakeRecorder(
    Device& device, const MemoryPlan& plan) {
  if (file_ == nullptr) return std::unique_ptr<RetrievalRecorder>();
  const int64_t max_clusters = plan.max_model_len / int64_t{kTokensPerCluster} + 1;
  return RetrievalRecorder::Create(
      device,
      {.geometry = plan.geometry,
       .max_batch = plan.max_step_rows,
       .max_clusters = std::min(max_clusters, RetrievalRecorder::kMaxClusters)},
      std::move(file_));
}

}  // namespace retroinfer
