#include "gpu_worker/executor/decode_step.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "gpu_worker/attention/full_policy.h"
#include "gpu_worker/executor/prefill_lane.h"
#include "gpu_worker/kv/kv_memory.h"
#include "tests/support/backends.h"
#include "tests/support/decoding_sequence.h"
#include "tests/support/loaded_model.h"

namespace retroinfer {
namespace {

using test_support::DecodingSequence;

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

  std::unique_ptr<DecodingSequence> Prefilled(uint64_t id, int64_t length,
                                              AttentionPolicy& policy) {
    auto one = std::make_unique<DecodingSequence>();
    for (int64_t i = 0; i < length; ++i) {
      one->prompt.push_back(static_cast<int32_t>((i * 31 + static_cast<int64_t>(id) * 7) %
                                                 model_->config().vocab_size));
    }
    Sequence& sequence = one->sequence;
    sequence.policy = &policy;
    sequence.kv.sequence_id = id;
    sequence.kv.prompt_tokens = length;
    EXPECT_TRUE(memory_->Reserve(policy.Need({}, length, length + 50), sequence.kv));
    sequence.sampling =
        SamplingState::Create(*backend_->device, *backend_->stream, {.temperature = 0}, one->prompt,
                              {}, model_->config().vocab_size)
            .value();
    EXPECT_TRUE(lane_->Begin(one->prompt, sequence.kv, policy).ok());
    while (lane_->RunSlice(64, sampler_->logits(1)).value() != PrefillLane::Outcome::kDone) {
    }
    EXPECT_TRUE(policy.FinishPrefill(sequence.kv).value());
    lane_->Leave(sequence.kv);
    SamplingState* state = &*sequence.sampling;
    one->next_token = sampler_->Sample(std::span(&state, 1)).value().front().token;
    return one;
  }

  // Steps of rows in this order: those of one policy are neighbours.
  std::vector<int32_t> Decode(const std::vector<DecodingSequence*>& batch,
                              const DecodingSequence* watched, int steps) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < steps; ++i) {
      std::vector<StepRow> rows;
      for (DecodingSequence* one : batch) rows.push_back(one->Row());
      const auto results = step_->Run(rows);
      EXPECT_TRUE(results.ok()) << results.status();
      if (!results.ok()) break;
      for (size_t row = 0; row < batch.size(); ++row) {
        batch[row]->Take((*results)[row]);
        if (batch[row] == watched) tokens.push_back(watched->next_token);
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
  EXPECT_EQ(Decode({a.get(), c.get(), b.get(), d.get()}, a.get(), 30), expected);
  EXPECT_EQ(a->sequence.kv.num_tokens, 120);
  EXPECT_DOUBLE_EQ(a->kv_bytes_read, a->kv_bytes_full);
  EXPECT_GT(a->kv_bytes_full, b->kv_bytes_full);
}

TEST_P(DecodeStepTest, ARowThatMeasuresTellsWhatDrawingWouldHaveSeen) {
  const auto drawn = Prefilled(1, 70, *policies_[0]);
  std::vector<StepRow> rows = {drawn->Row()};
  const int32_t best = step_->Run(rows).value().front().token->token;
  const auto measured = Prefilled(1, 70, *policies_[0]);
  rows = {measured->Row()};
  rows.front().task = StepRow::Task::kMeasure;
  rows.front().target = best;
  const OutputToken token = *step_->Run(rows).value().front().token;
  EXPECT_EQ(token.token, best);
  EXPECT_LE(token.logprob, 0);
  const auto other = Prefilled(1, 70, *policies_[0]);
  rows = {other->Row()};
  rows.front().task = StepRow::Task::kMeasure;
  rows.front().target = best == 0 ? 1 : best - 1;
  EXPECT_LE(step_->Run(rows).value().front().token->logprob, token.logprob);
}

TEST_P(DecodeStepTest, PassesOnWhatAPolicyRefuses) {
  const auto one = Prefilled(1, 10, *policies_[0]);
  one->sequence.kv.num_tokens = 5000;  // more than its blocks hold
  const StepRow rows[] = {one->Row()};
  EXPECT_EQ(step_->Run(rows).status().code(), absl::StatusCode::kInternal);
}

INSTANTIATE_TEST_SUITE_P(Backends, DecodeStepTest,
                         testing::ValuesIn(test_support::AvailableBackends()),
                         test_support::BackendName);

}  // namespace
}  // namespace retroinfer
