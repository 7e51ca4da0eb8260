// The trace of what a worker's steps retrieve (--record-trace): the file, opened and checked before
// anything is loaded, and the recorder that writes to it. Of several ranks each has a file of its
// own, with the KV heads that it has: FILE, FILE.rank1 and so on.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/kv_format.h"
#include "gpu_worker/assembly/served_engine_options.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/engine/memory_plan.h"
#include "gpu_worker/measuring/retrieval_trace/retrieval_recorder.h"
#include "gpu_worker/measuring/retrieval_trace/trace_file.h"

namespace retroinfer {

// Threads: one at a time.
// Owns:    the file, until the recorder has it.
class RetrievalRecording {
 public:
  // Opens what options.record_trace_file names, for the rank of `options`. Nothing if it names
  // nothing.
  //
  // Returns: as TraceFile::Open; FAILED_PRECONDITION for an index whose steps read no whole
  //          clusters.
  absl::Status Open(const ServedEngineOptions& options, const KvFormat& format);

  // Null if nothing is recorded. Called once, behind Open.
  absl::StatusOr<std::unique_ptr<RetrievalRecorder>> TakeRecorder(Device& device,
                                                                  const MemoryPlan& plan);

 private:
  std::unique_ptr<TraceFile> file_;
};

}  // namespace retroinfer
