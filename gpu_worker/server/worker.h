// Puts a worker together: model, tokenizer, store link, memory, policies, engine. The one place
// that knows all of them; the backend comes from main.cc.
//
// Threads: Start() may take minutes (loading); the result is used from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gpu_worker/attention/attention_settings.h"
#include "gpu_worker/engine/engine.h"
#include "gpu_worker/engine/memory_plan.h"
#include "gpu_worker/model/generation_config.h"
#include "gpu_worker/model/model_config.h"
#include "gpu_worker/ops/ops.h"
#include "gpu_worker/tokenizer/chat_template.h"
#include "gpu_worker/tokenizer/tokenizer.h"
#include "gpu_worker/wave_index/wave_index_settings.h"

namespace retroinfer {

// A device and the operations on it, as main.cc chose them.
struct ComputeBackend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  DType kv_dtype = DType::kBf16;
};

struct WorkerOptions {
  std::string model_folder;
  std::string store_target;  // gRPC target of the kv_store_service
  absl::Duration attach_timeout = absl::Seconds(60);
  int64_t max_model_len = 0;        // tokens; 0: the model's context length
  int32_t max_batch = 8;            // requests that decode together
  size_t max_live_requests = 1024;  // running and queued
  size_t device_memory_bytes = 0;   // 0: 60 % of the device's
  size_t dense_kv_bytes = 0;     // 0: what max_model_len and max_batch ask for, as far as it fits
  size_t block_cache_bytes = 0;  // 0: see DefaultBlockCacheBytes
  int64_t prefill_rows = 1024;   // tokens of a prefill slice
  WaveIndexSettings wave_index;
};

class Worker {
 public:
  // Called while weights load: bytes so far and in all.
  using Progress = std::function<void(size_t, size_t)>;

  // Returns: INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED for the model folder; RESOURCE_EXHAUSTED if
  // the
  //          model does not fit (with what is needed, what there is and what to change);
  //          UNAVAILABLE without a store; FAILED_PRECONDITION if another worker is attached.
  static absl::StatusOr<std::unique_ptr<Worker>> Start(ComputeBackend backend,
                                                       const WorkerOptions& options,
                                                       const Progress& progress);
  ~Worker();

  Engine& engine();
  const ModelConfig& model_config() const;
  const GenerationConfig& generation_config() const;
  const Tokenizer& tokenizer() const;
  const ChatTemplate& chat_template() const;
  const MemoryPlan& memory_plan() const;
  const ComputeBackend& backend() const;

 private:
  struct Parts;
  explicit Worker(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace retroinfer
