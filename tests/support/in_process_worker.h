// A whole engine in this process: a model folder, and an arena without a service. On the CPU, or
// on the backend that RETROINFER_TEST_BACKEND names (tests/support/backends.h).
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gpu_worker/engine/local_engine.h"
#include "gpu_worker/model/checkpoint.h"
#include "gpu_worker/model/generation_config.h"
#include "gpu_worker/ops/cpu/compute_precision.h"
#include "gpu_worker/ranks/joint_segment_store.h"
#include "gpu_worker/ranks/written_segments.h"
#include "gpu_worker/wave_index/wave_index_settings.h"
#include "tests/support/backends.h"
#include "tests/support/fake_segment_store.h"
#include "tests/support/faulty_block_cache_ops.h"

namespace retroinfer::test_support {

struct InProcessWorkerOptions {
  std::filesystem::path model_folder;
  int64_t context_length = 0;  // not 0: written into a copy of config.json
  int64_t max_model_len = 16384;
  int64_t max_whole_prompt = 0;  // 0: max_model_len
  int32_t max_batch = 8;
  int32_t tail_run = 1;  // MemoryPlanInput
  size_t max_live_requests = 2048;
  size_t arena_bytes = size_t{256} << 20;
  size_t block_cache_bytes = size_t{16} << 20;
  size_t dense_kv_bytes = 0;  // 0: as the plan likes
  // The store wants a page evicted again, once in so many times that it was admitted; 0: never.
  uint64_t evict_one_in = 0;
  std::vector<int32_t> layer_windows;  // ModelConfig; empty: as the folder has it
  bool preemption = false;
  bool reserves_all = false;            // LocalEngineOptions
  bool drafts = false;                  // LocalEngineOptions
  std::filesystem::path draft_folder;   // a draft model; empty: none
  BlockChoice sparse = kSparsePrefill;  // LocalEngineOptions
  size_t suspended_kv_bytes = 0;        // 0: as the plan likes
  ComputePrecision precision = ComputePrecision::kBf16;
  KvFormat kv_format;
  KeptWeights weights = KeptWeights::kAsStored;
  WaveIndexSettings wave_index;
  Stretches stretches;
  absl::Duration inter_token_target = absl::Milliseconds(50);
  std::function<void()> on_progress;  // of the engine's loop
  std::function<void(const SchedulerInput&, StepPlan&)> on_plan;
  CommandHooks hooks;
  bool serves_parts = false;  // of FakeSegmentStore
  // There is no engine, but an executor that is commanded from elsewhere: commands().
  bool is_commanded = false;
  Drawing drawing = Drawing::kHere;  // of that executor
  // Not 1: the engine is that of rank 0, and joint_store() waits for what others have written.
  int num_ranks = 1;
};

// What a request gave.
class CollectingSink final : public GenerationSink {
 public:
  void OnProgress(const PrefillProgress& progress) override;
  void OnOutput(const OutputDelta& delta) override;
  void OnFinish(const GenerationResult& result) override;

  // Blocks until OnFinish. Aborts the test program after two minutes.
  const GenerationResult& Wait();
  bool finished() const;
  std::vector<int32_t> tokens() const;
  // Of the tokens, if the request asked for them: the same bits mean the same computation.
  std::vector<float> logprobs() const;
  // The tokens by continuation.
  std::map<int32_t, std::vector<OutputToken>> measured() const;
  std::string text() const;
  std::vector<PrefillProgress> progress() const;

 private:
  mutable absl::Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<int32_t> tokens_ ABSL_GUARDED_BY(mutex_);
  std::vector<float> logprobs_ ABSL_GUARDED_BY(mutex_);
  std::map<int32_t, std::vector<OutputToken>> measured_ ABSL_GUARDED_BY(mutex_);
  std::string text_ ABSL_GUARDED_BY(mutex_);
  std::vector<PrefillProgress> progress_ ABSL_GUARDED_BY(mutex_);
  GenerationResult result_;
};

class InProcessWorker {
 public:
  // Aborts the test program if anything fails.
  explicit InProcessWorker(const InProcessWorkerOptions& options);
  ~InProcessWorker();

  LocalEngine& engine() { return *engine_; }
  CommandRunner& commands() { return *commands_; }
  // Ends the engine; nothing but store() may be used afterwards.
  void EndEngine() { engine_.reset(); }
  FakeSegmentStore& store() { return *store_; }
  JointSegmentStore& joint_store() { return *joint_store_; }
  WrittenSegments& written() { return written_; }
  bool HasCodeFor(const KvFormat& format) const {
    return backend_->ops->CheckKvFormat(format).ok();
  }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ModelConfig& config() const { return model_->config(); }
  const GenerationConfig& generation() const { return generation_; }
  Device& device() { return *backend_->device; }
  Stream& background() { return *backend_->background; }
  FaultyBlockCacheOps& faulty_block_cache() { return *faulty_block_cache_; }

  // Greedy generation of `max_tokens` tokens, end tokens ignored.
  GenerationRequest Greedy(std::vector<int32_t> prompt, int32_t max_tokens,
                           PolicyKind policy = PolicyKind::kWave);
  std::shared_ptr<CollectingSink> Submit(GenerationRequest request);
  // Submit and wait.
  std::vector<int32_t> Generate(GenerationRequest request);
  // Waits until nothing is held any more: blocks, slots of sequences, extents.
  bool WaitUntilIdle(absl::Duration timeout = absl::Seconds(30));

 private:
  void LoadDraftModel(const InProcessWorkerOptions& options, const ModelConfig& config,
                      const MemoryPlan& plan);
  void StartEngine(const InProcessWorkerOptions& options, const MemoryPlan& plan,
                   EngineParts parts);
  void StartCommanded(const MemoryPlan& plan, EngineParts parts, Drawing drawing);
  SegmentStore* StoreFor(const InProcessWorkerOptions& options);
  void ReadLog(std::span<std::byte> data_plane, uint64_t evict_one_in);

  std::filesystem::path temporary_folder_;  // the copy of the model, if any
  std::unique_ptr<Backend> backend_;
  FaultyBlockCacheOps* faulty_block_cache_ = nullptr;
  std::unique_ptr<Tokenizer> tokenizer_;
  GenerationConfig generation_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<Transformer> draft_model_;
  std::unique_ptr<FakeSegmentStore> store_;
  std::unique_ptr<JointSegmentStore> joint_store_;
  WrittenSegments written_;  // the store of an executor that is commanded
  std::vector<std::byte> data_plane_storage_;
  // Reads the access log, as the store does, so that it never fills up.
  std::atomic<bool> stop_reading_ = false;
  std::thread log_reader_;
  std::unique_ptr<LocalEngine> engine_;
  // Without an engine.
  CostModel costs_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<CommandRunner> commands_;
  int next_id_ = 0;
};

// `length` token ids of a vocabulary, the same for the same seed.
std::vector<int32_t> RandomPrompt(int64_t length, int64_t vocab_size, uint64_t seed);

}  // namespace retroinfer::test_support
