#include "gpu_worker/engine/decode_step.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "gpu_worker/attention/full_policy.h"
#include "gpu_worker/engine/prefill_lane.h"
#include "gpu_worker/kv/kv_memory.h"
#include "tests/support/backends.h"
#include "tests/support/loaded_model.h"

namespace retroinfer {
namespace {

constexpr int32_t kMaxBatch = 4;
constexpr int64_t kMaxTokens = 200;

class DecodeStepTest : public testing::TestWithParam<test_support::BackendParam> {
 protected:
  void SetUp() override {
    backend_ = GetParam().create();
    Device& device = *backend_->device;
    Stream& stream = *backend_->stream;
    model_ = test_support::LoadGoldenModel(*backend_, "llama-d64-untied-bf16", 64, kMaxBatch);
    const ModelConfig& config = model_->config();
    const KvGeometry geometry = config.geometry(kBf16Kv);
    memory_ = KvMemory::Create(device, {.geometry = geometry,
                                        .dense_blocks = 64,
                                        .meta_blocks = 0,
                                        .max_sequences = 8,
                                        .max_model_len = 256})
                  .value();
    const int32_t heads = static_cast<int32_t>(config.num_query_heads);
    // Two policies of one kind: a step must serve both.
    for (auto& policy : policies_) {
      policy = FullPolicy::Create(device, backend_->ops->attention(), stream, memory_->dense_pool(),
                                  memory_->tables(), {}, heads, kMaxBatch)
                   .value();
    }
    sampler_ = Sampler::Create(device, backend_->ops->model(), stream, kMaxBatch, config.vocab_size)
                   .value();
    step_ = DecodeStep::Create(device, stream, *model_, *sampler_, kMaxBatch).value();
    lane_ = PrefillLane::Create({.device = &device,
                                 .ops = backend_->ops.get(),
                                 .stream = &stream,
                                 .model = model_.get(),
                                 .arena = {}},
                                geometry, kMaxTokens, 64)
                .value();
  }

  std::unique_ptr<LiveRequest> Prefilled(uint64_t id, int64_t length, AttentionPolicy& policy) {
    auto live = std::make_unique<LiveRequest>();
    for (int64_t i = 0; i < length; ++i) {
      live->request.prompt.push_back(static_cast<int32_t>((i * 31 + static_cast<int64_t>(id) * 7) %
                                                          model_->config().vocab_size));
    }
    live->request.sampling.temperature = 0;
    live->policy = &policy;
    live->kv.sequence_id = id;
    live->kv.prompt_tokens = length;
    EXPECT_TRUE(memory_->Reserve(policy.Need({}, length, length + 50), live->kv));
    live->sampling = SamplingState::Create(*backend_->device, *backend_->stream, live->request, {},
                                           model_->config().vocab_size)
                         .value();
    EXPECT_TRUE(lane_->Begin(live->request.prompt, live->kv, policy).ok());
    while (lane_->RunSlice(64, sampler_->logits(1)).value() != PrefillLane::Outcome::kDone) {
    }
    EXPECT_TRUE(policy.FinishPrefill(live->kv).value());
    lane_->Leave(live->kv);
    SamplingState* state = &*live->sampling;
    live->next_token = sampler_->Sample(std::span(&state, 1)).value().front().token;
    live->state = RequestState::kDecoding;
    return live;
  }

  std::vector<int32_t> Decode(std::vector<LiveRequest*> batch, LiveRequest* watched, int steps) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < steps; ++i) {
      const auto result = step_->Run(std::span(batch));
      EXPECT_TRUE(result.ok()) << result.status();
      if (!result.ok()) break;
      for (size_t row = 0; row < batch.size(); ++row) {
        batch[row]->next_token = (*result)[row].token;
        if (batch[row] == watched) tokens.push_back((*result)[row].token);
      }
    }
    return tokens;
  }

  std::unique_ptr<test_support::Backend> backend_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<KvMemory> memory_;
  std::unique_ptr<FullPolicy> policies_[2];
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<DecodeStep> step_;
  std::unique_ptr<PrefillLane> lane_;
};

TEST_P(DecodeStepTest, ARowDoesNotDependOnItsBatchNorOnTheOrderOfPolicies) {
  const auto alone = Prefilled(1, 90, *policies_[0]);
  const std::vector<int32_t> expected = Decode({alone.get()}, alone.get(), 30);
  ASSERT_EQ(expected.size(), 30u);

  const auto a = Prefilled(1, 90, *policies_[1]);
  const auto b = Prefilled(2, 5, *policies_[0]);
  const auto c = Prefilled(3, 130, *policies_[1]);
  const auto d = Prefilled(4, 64, *policies_[0]);
  EXPECT_EQ(Decode({a.get(), b.get(), c.get(), d.get()}, a.get(), 30), expected);
  EXPECT_EQ(a->kv.num_tokens, 120);
  EXPECT_DOUBLE_EQ(a->kv_bytes_read, a->kv_bytes_full);
  EXPECT_GT(a->kv_bytes_full, b->kv_bytes_full);
}

TEST_P(DecodeStepTest, PassesOnWhatAPolicyRefuses) {
  const auto live = Prefilled(1, 10, *policies_[0]);
  live->kv.num_tokens = 5000;  // more than its blocks hold
  LiveRequest* batch[] = {live.get()};
  EXPECT_EQ(step_->Run(batch).status().code(), absl::StatusCode::kInternal);
}

INSTANTIATE_TEST_SUITE_P(Backends, DecodeStepTest,
                         testing::ValuesIn(test_support::AvailableBackends()),
                         test_support::BackendName);

}  // namespace
}  // namespace retroinfer
