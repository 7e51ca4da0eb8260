// Requests under policy wave where tokens have codes (--index-dtype coded).
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "gpu_worker/wave_index/retrieval_quality.h"
#include "tests/support/in_process_worker.h"
#include "tests/support/small_worker.h"

namespace retroinfer {
namespace {

using test_support::CollectingSink;
using test_support::InProcessWorker;
using test_support::InProcessWorkerOptions;
using test_support::RandomPrompt;
using test_support::SmallWorker;

InProcessWorkerOptions CodedModel(const KvFormat& format) {
  const RetrievalShare share = RetrievalFor(RetrievalQuality::kStandard, format);
  InProcessWorkerOptions options = SmallWorker();
  options.precision = ComputePrecision::kF32;
  options.kv_format = format;
  options.wave_index = {.dense_below = 2048,  // so that short prompts have an index
                        .radius_weight = share.radius_weight,
                        .min_retrieved = share.min_retrieved,
                        .candidate_ratio = share.candidate_ratio,
                        .min_candidates = share.min_candidates};
  return options;
}

class LocalEngineCodedTest : public testing::TestWithParam<KvFormat> {
 protected:
  GenerationRequest Request(int64_t prompt_tokens, uint64_t seed, int32_t max_tokens,
                            PolicyKind policy = PolicyKind::kWave) {
    GenerationRequest request = worker_.Greedy(
        RandomPrompt(prompt_tokens, worker_.config().vocab_size, seed), max_tokens, policy);
    request.attention.retrieval_ratio = RetrievalFor(RetrievalQuality::kStandard, GetParam()).ratio;
    request.sampling.num_logprobs = 0;
    return request;
  }

  InProcessWorker worker_{CodedModel(GetParam())};
};

TEST_P(LocalEngineCodedTest, AllPagesAreFullAttention) {
  if (worker_.device().info().backend != "cpu") GTEST_SKIP() << "a GPU computes in bf16";
  // Later segments go live while it generates.
  for (const int64_t length : {3000, 9000}) {
    GenerationRequest wave = Request(length, 3, 1200);
    wave.attention.retrieval_ratio = 1.0;
    const auto wave_sink = worker_.Submit(std::move(wave));
    const auto full_sink = worker_.Submit(Request(length, 3, 1200, PolicyKind::kFull));
    ASSERT_TRUE(wave_sink->Wait().status.ok()) << wave_sink->Wait().status;
    ASSERT_TRUE(full_sink->Wait().status.ok()) << full_sink->Wait().status;
    EXPECT_EQ(wave_sink->tokens(), full_sink->tokens()) << length;
    const auto wave_logprobs = wave_sink->logprobs(), full_logprobs = full_sink->logprobs();
    ASSERT_EQ(wave_logprobs.size(), full_logprobs.size());
    for (size_t i = 0; i < wave_logprobs.size(); ++i) {
      // The same KV in f32, summed up in another order.
      EXPECT_NEAR(wave_logprobs[i], full_logprobs[i], 1e-3) << i;
    }
  }
  EXPECT_GT(worker_.engine().stats().segments_built, 4u);
}

TEST_P(LocalEngineCodedTest, ReadsLessThanAllAndTellsWhatItLeaves) {
  const auto sink = worker_.Submit(Request(10'000, 4, 40));
  const GenerationResult& result = sink->Wait();
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_LT(result.kv_read_ratio, 0.5);
  EXPECT_GT(result.kv_read_ratio, 0.1);
  ASSERT_TRUE(result.unseen.has_value());
  EXPECT_GT(result.unseen->largest, 0);
  EXPECT_TRUE(worker_.WaitUntilIdle());
}

TEST_P(LocalEngineCodedTest, ARequestDoesNotDependOnItsCompany) {
  const auto alone = worker_.Submit(Request(5000, 5, 200));
  ASSERT_TRUE(alone->Wait().status.ok());
  std::vector<std::shared_ptr<CollectingSink>> others;
  for (const int64_t length : {300, 2500, 9500}) {
    others.push_back(worker_.Submit(Request(length, static_cast<uint64_t>(length), 400)));
  }
  const auto together = worker_.Submit(Request(5000, 5, 200));
  ASSERT_TRUE(together->Wait().status.ok());
  for (const auto& other : others) EXPECT_TRUE(other->Wait().status.ok());
  EXPECT_EQ(together->tokens(), alone->tokens());
  EXPECT_EQ(together->logprobs(), alone->logprobs()) << "the same bits";
}

INSTANTIATE_TEST_SUITE_P(Formats, LocalEngineCodedTest, testing::Values(kBf16CodedKv, kInt8CodedKv),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace retroinfer
