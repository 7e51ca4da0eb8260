// A worker and a store, in this process, in each KV format that a CPU has code for: what is found
// in the arena or on the disk gives what a cold run gives, and no format finds what another one
// wrote.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "gpu_worker/assembly/served_engine.h"
#include "tests/gpu_worker/store_link/in_process_store.h"
#include "tests/support/in_process_worker.h"

namespace retroinfer::test_support {
namespace {

const common::ServiceNotifier silent;

class KvFormatIdentityTest : public testing::TestWithParam<KvFormat> {
 protected:
  struct Result {
    std::vector<int32_t> tokens;
    std::vector<float> logprobs;
  };

  void StartWorker(const KvFormat& format) {
    ServedEngineOptions options;
    options.load_format = "dummy";
    options.model_shape = "tiny";
    options.device = "cpu";
    options.store_socket_dir = store_.folder();
    options.num_threads = 1;
    options.max_model_len = 4096;
    options.memory_bytes = size_t{1} << 30;
    options.dense_below = 1024;
    ComputeBackend backend = CreateCpuBackend(options).value();
    backend.kv_format = format;
    auto engine = LoadServedEngine(options, std::move(backend), silent);
    ASSERT_TRUE(engine.ok()) << engine.status();
    EXPECT_EQ((*engine)->model().kv_dtype, PagesName(format));
    EXPECT_EQ((*engine)->model().index_dtype, IndexName(format));
    // What an index in 8 bits leaves of the bytes buys clusters; codes choose pages instead.
    EXPECT_EQ((*engine)->model().default_attention.retrieval_ratio,
              IndexName(format) == "coded"              ? 0.024
              : format.centroid.element == DType::kInt8 ? 0.035
                                                        : 0.018);
    engine_ = *std::move(engine);
  }
  void RestartBoth(const KvFormat& format) {
    engine_.reset();
    store_.Stop();
    store_.Start();
    StartWorker(format);
  }
  Result Run(const std::string& salt, int64_t cached_tokens) {
    GenerationRequest request;
    request.request_id = "request " + std::to_string(++num_requests_);
    request.prompt = RandomPrompt(kPromptTokens, engine_->model().vocab_size, 7);
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 24;
    request.sampling.ignore_eos = true;
    request.sampling.num_logprobs = 0;
    request.attention.policy = PolicyKind::kWave;
    request.cache_salt = salt;
    const auto sink = std::make_shared<CollectingSink>();
    EXPECT_TRUE(engine_->engine().Submit(std::move(request), sink).ok());
    EXPECT_TRUE(sink->Wait().status.ok()) << sink->Wait().status;
    EXPECT_EQ(sink->Wait().cached_tokens, cached_tokens);
    EXPECT_EQ(sink->tokens().size(), 24u);
    return {sink->tokens(), sink->logprobs()};
  }
  // Those of both salts.
  void WaitUntilWritten() {
    const absl::Time deadline = absl::Now() + absl::Minutes(1);
    while (store_.Stats().durable_persisted_total() < 2 * kRecords) {
      ASSERT_LT(absl::Now(), deadline);
      absl::SleepFor(absl::Milliseconds(5));
    }
  }
  static void ExpectSame(const Result& got, const Result& want) {
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_EQ(got.logprobs, want.logprobs);
  }

  static constexpr uint64_t kSegments = 2;
  static constexpr uint64_t kRecords = kSegments + 2;  // a block, and a piece of one
  static constexpr int64_t kPromptTokens = 4 + kSegments * 1024 + 100;
  static constexpr int64_t kCached = kSegments * 1024 + 64;  // and a whole block

  kvstore::TemporaryFolder disk_;
  // Segments of both salts fit in every format: none has to make room before it is written.
  InProcessStore store_{disk_.path(), 4 * InProcessStore::kArenaBytes};
  std::unique_ptr<ServedEngine> engine_;
  int num_requests_ = 0;
};

TEST_P(KvFormatIdentityTest, WhateverIsFoundGivesWhatAColdRunGives) {
  const KvFormat& format = GetParam();
  StartWorker(format);
  EXPECT_EQ(store_.Stats().geometry().kv_format(), static_cast<uint32_t>(format.id));
  const Result cold = Run("cold", 0);
  ExpectSame(Run("tenant", 0), cold);
  ExpectSame(Run("tenant", kCached), cold);
  WaitUntilWritten();
  RestartBoth(format);
  ExpectSame(Run("tenant", kCached), cold);
  EXPECT_GE(store_.Stats().durable_restored_total(), kSegments + 1);
  EXPECT_EQ(store_.Stats().durable_corrupt_total(), 0u);
  for (const KvFormat& other : kKvFormats) {
    if (other.id == format.id) continue;
    RestartBoth(other);
    Run("tenant", 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, KvFormatIdentityTest, testing::ValuesIn(kKvFormats),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace retroinfer::test_support
