#include "gpu_worker/executor/prefill_lane.h"

#include <gtest/gtest.h>

#include <vector>

#include "gpu_worker/attention/full_policy.h"
#include "gpu_worker/kv/kv_memory.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/loaded_model.h"

namespace retroinfer {
namespace {

constexpr int64_t kMaxTokens = 200, kMaxRows = 64;

// Takes layers over like a policy whose background is as slow as the test wants.
class SlowPolicy final : public AttentionPolicy {
 public:
  KvNeed Need(const AttentionSettings&, int64_t, int64_t) const override { return {}; }
  absl::Status TakeLayer(SequenceKv&, uint32_t layer, const LayerKv&) override {
    taken_layers.push_back(layer);
    return fails ? absl::ResourceExhaustedError("no place for the layer") : absl::OkStatus();
  }
  absl::StatusOr<bool> LayerTaken(const SequenceKv&, uint32_t layer) override {
    asked_layers.push_back(layer);
    return background_done;
  }
  absl::StatusOr<bool> FinishPrefill(SequenceKv&) override { return true; }
  absl::Status BeginStep(std::span<SequenceKv* const>) override { return absl::OkStatus(); }
  uint64_t StepShape() const override { return 0; }
  absl::Status UploadStep() override { return absl::OkStatus(); }
  absl::Status DownloadStep() override { return absl::OkStatus(); }
  absl::Status DecodeLayer(uint32_t, const AttentionForm&, const MatrixView&, const MatrixView&,
                           const MatrixView&, const MatrixView&) override {
    return absl::OkStatus();
  }
  absl::Status EndStep() override { return absl::OkStatus(); }
  absl::StatusOr<bool> Release(SequenceKv&) override { return true; }
  BytesRead LastStepBytes(size_t) const override { return {}; }

  std::vector<uint32_t> taken_layers, asked_layers;
  bool background_done = true;
  bool fails = false;
};

class PrefillLaneTest : public testing::TestWithParam<test_support::BackendParam> {
 protected:
  void SetUp() override {
    backend_ = GetParam().create();
    model_ = test_support::LoadGoldenModel(*backend_, "qwen3-d64-untied-f32", kMaxRows, 1);
    const KvGeometry geometry = model_->config().geometry(kF32Kv);
    auto lane = PrefillLane::Create({.device = backend_->device.get(),
                                     .ops = backend_->ops.get(),
                                     .stream = backend_->stream.get(),
                                     .model = model_.get(),
                                     .arena = {}},
                                    geometry, kMaxTokens, kMaxRows, 2);
    ASSERT_TRUE(lane.ok()) << lane.status();
    lane_ = *std::move(lane);
    logits_ = backend_->device
                  ->Allocate(static_cast<size_t>(model_->config().vocab_size) * sizeof(float),
                             MemoryPurpose::kActivations)
                  .value();
  }

  MatrixView Logits() {
    return MatrixView::Dense(logits_.bytes(), DType::kF32, 1, model_->config().vocab_size);
  }
  std::vector<int32_t> Prompt(int64_t length) {
    std::vector<int32_t> prompt;
    for (int64_t i = 0; i < length; ++i) {
      prompt.push_back(static_cast<int32_t>((i * 37 + 11) % model_->config().vocab_size));
    }
    return prompt;
  }
  std::vector<float> Run(const std::vector<int32_t>& prompt, int64_t rows) {
    SlowPolicy policy;
    SequenceKv sequence;
    sequence.prompt_tokens = static_cast<int64_t>(prompt.size());
    EXPECT_TRUE(lane_->Begin(prompt, sequence, policy).ok());
    int64_t processed = 0;
    while (true) {
      const auto outcome = lane_->RunSlice(rows, Logits());
      EXPECT_TRUE(outcome.ok()) << outcome.status();
      if (!outcome.ok() || *outcome == PrefillLane::Outcome::kDone) break;
      EXPECT_GE(lane_->processed_tokens(sequence), processed);
      processed = lane_->processed_tokens(sequence);
    }
    EXPECT_EQ(lane_->processed_tokens(sequence), sequence.prompt_tokens);
    EXPECT_EQ(policy.taken_layers.size(), model_->config().num_layers);
    lane_->Leave(sequence);
    return test_support::DeviceData(*backend_).Download<float>(logits_);
  }

  std::unique_ptr<test_support::Backend> backend_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<PrefillLane> lane_;
  DeviceBuffer logits_;
};

TEST_P(PrefillLaneTest, TheSizeOfSlicesDoesNotChangeTheResult) {
  const std::vector<int32_t> prompt = Prompt(150);
  const std::vector<float> whole = Run(prompt, kMaxRows);
  EXPECT_EQ(Run(prompt, 7), whole);
  EXPECT_EQ(Run(prompt, 1000), whole);  // cut to the lane's largest slice
  EXPECT_NE(Run(Prompt(149), kMaxRows), whole);
  EXPECT_EQ(Run(Prompt(1), 1).size(), whole.size());
}

TEST_P(PrefillLaneTest, WaitsForTheBackgroundBeforeItUsesABufferAgain) {
  if (model_->config().num_layers < 2) GTEST_SKIP();
  SlowPolicy policy;
  policy.background_done = false;
  const std::vector<int32_t> prompt = Prompt(20);
  SequenceKv sequence;
  sequence.prompt_tokens = 20;
  ASSERT_TRUE(lane_->Begin(prompt, sequence, policy).ok());
  PrefillLane::Outcome outcome = PrefillLane::Outcome::kWorked;
  for (uint32_t i = 0; i < model_->config().num_layers; ++i) {
    outcome = lane_->RunSlice(kMaxRows, Logits()).value();
    if (outcome == PrefillLane::Outcome::kBlocked) break;
  }
  // Two buffers: two layers never block, a third would.
  if (model_->config().num_layers == 2) {
    EXPECT_EQ(outcome, PrefillLane::Outcome::kDone);
    EXPECT_TRUE(policy.asked_layers.empty());
  } else {
    EXPECT_EQ(outcome, PrefillLane::Outcome::kBlocked);
    EXPECT_EQ(policy.asked_layers, std::vector<uint32_t>{0});
    policy.background_done = true;
    EXPECT_EQ(lane_->RunSlice(kMaxRows, Logits()).value(), PrefillLane::Outcome::kWorked);
  }
}

TEST_P(PrefillLaneTest, OneWhosePolicyFailsLeavesTheOthersTheirResult) {
  const std::vector<int32_t> prompt = Prompt(90), other = Prompt(50);
  const std::vector<float> alone = Run(other, kMaxRows);
  for (const bool fails_first : {true, false}) {
    SlowPolicy failing, policy;
    failing.fails = true;
    SequenceKv a, b;
    a.prompt_tokens = 90;
    b.prompt_tokens = 50;
    std::vector<PrefillLane::Member> members = {
        {.prompt = prompt, .sequence = &a, .policy = &failing},
        {.prompt = other, .sequence = &b, .policy = &policy}};
    if (!fails_first) std::swap(members[0], members[1]);
    ASSERT_TRUE(lane_->Begin(members).ok());
    while (lane_->RunSlice(kMaxRows, Logits()).value() != PrefillLane::Outcome::kDone) {
    }
    const std::vector<PrefillLane::Failure> failures = lane_->TakeFailures();
    ASSERT_EQ(failures.size(), 1u);
    EXPECT_EQ(failures[0].first, &a);
    EXPECT_TRUE(absl::IsResourceExhausted(failures[0].second));
    EXPECT_TRUE(lane_->TakeFailures().empty());
    EXPECT_EQ(failing.taken_layers.size(), 1u) << "it is handed no further layer";
    EXPECT_EQ(lane_->Live(), std::vector<SequenceKv*>{&b});
    EXPECT_EQ(test_support::DeviceData(*backend_).Download<float>(logits_), alone);
    lane_->Leave(a);
    lane_->Leave(b);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, PrefillLaneTest,
                         testing::ValuesIn(test_support::AvailableBackends()),
                         test_support::BackendName);

}  // namespace
}  // namespace retroinfer
