#include "gpu_worker/assembly/engine_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu_worker/model/model_shapes.h"

namespace retroinfer {
namespace {

class EnginePlanTest : public testing::Test {
 protected:
  EnginePlanTest() {
    options_.num_threads = 1;
    config_ = NamedModelShape("tiny").value();
  }
  absl::StatusOr<MemoryPlan> Plan(size_t available_bytes) {
    const ComputeBackend backend = CreateCpuBackend(options_).value();
    return PlanEngine(options_, config_, backend, IndexSettings(options_, backend.kv_format),
                      {.available_bytes = available_bytes,
                       .weight_bytes = size_t{1} << 20,
                       .arena_pages = 1 << 14});
  }

  ServedEngineOptions options_;
  ModelConfig config_;
};

// What ranks rely on: nothing but the arguments decides the plan.
TEST_F(EnginePlanTest, TheSameArgumentsGiveTheSamePlan) {
  const auto first = Plan(size_t{1} << 30), second = Plan(size_t{1} << 30);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->ToString(), second.value().ToString());
  EXPECT_EQ(first->num_slots, second->num_slots);
  const auto less = Plan(size_t{512} << 20);
  ASSERT_TRUE(less.ok()) << less.status();
  EXPECT_NE(first->ToString(), less->ToString());
}

TEST_F(EnginePlanTest, ALengthThatNobodyNamesIsWhatFits) {
  const auto most = Plan(size_t{4} << 30);
  ASSERT_TRUE(most.ok()) << most.status();
  EXPECT_EQ(most->max_model_len, config_.context_length);
  options_.max_model_len = 2048;
  const auto named = Plan(size_t{4} << 30);
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(named->max_model_len, 2048);
  EXPECT_TRUE(absl::IsResourceExhausted(Plan(size_t{2} << 20).status()));
}

TEST_F(EnginePlanTest, RanksOnTheCpuShareItsMemory) {
  const ComputeBackend one = CreateCpuBackend(options_).value();
  options_.num_ranks = 4;
  const ComputeBackend quarter = CreateCpuBackend(options_).value();
  EXPECT_NEAR(static_cast<double>(AvailableBytes(quarter, options_)),
              static_cast<double>(one.memory_bytes) / 4, 1);
  options_.memory_bytes = size_t{3} << 20;
  EXPECT_EQ(AvailableBytes(quarter, options_), size_t{3} << 20);
}

TEST_F(EnginePlanTest, SegmentsOfOtherSettingsHaveOtherNames) {
  const ComputeBackend backend = CreateCpuBackend(options_).value();
  const WaveIndexSettings settings = IndexSettings(options_, backend.kv_format);
  const std::string name = SegmentFingerprint({}, config_, backend, settings, options_);
  EXPECT_EQ(name, SegmentFingerprint({}, config_, backend, settings, options_));
  options_.wave_index = "paper";
  EXPECT_NE(name, SegmentFingerprint({}, config_, backend,
                                     IndexSettings(options_, backend.kv_format), options_));
  // Segments do not know how many ranks have written them.
  options_.wave_index = "tuned";
  options_.num_ranks = 2;
  EXPECT_EQ(name, SegmentFingerprint({}, config_, backend, settings, options_));
}

// All ranks have room for the largest part, so that their plans are one.
TEST_F(EnginePlanTest, RanksHaveOnePlan) {
  config_.intermediate_size = 24;  // three units of eight: one rank has two
  options_.num_ranks = 2;
  const auto first = Plan(size_t{1} << 30);
  options_.rank = 1;
  const auto second = Plan(size_t{1} << 30);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(first->ToString(), second->ToString());
  EXPECT_EQ(first->num_slots, second->num_slots);
  EXPECT_EQ(first->heads.first, 0u);
  EXPECT_EQ(second->heads.first, first->heads.count);
  EXPECT_EQ(first->heads.total, config_.num_kv_heads);
  options_.num_ranks = 7;
  EXPECT_EQ(Plan(size_t{1} << 30).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(EnginePlanTest, RanksAgreeOnModelAndSettings) {
  const ComputeBackend backend = CreateCpuBackend(options_).value();
  const WaveIndexSettings settings = IndexSettings(options_, backend.kv_format);
  const std::string agreed = AgreedSettings(config_, 5, backend, settings, options_);
  EXPECT_EQ(agreed, AgreedSettings(config_, 5, backend, settings, options_));
  EXPECT_NE(agreed, AgreedSettings(config_, 6, backend, settings, options_));
  ModelConfig other = config_;
  ++other.num_layers;
  EXPECT_NE(agreed, AgreedSettings(other, 5, backend, settings, options_));
}

}  // namespace
}  // namespace retroinfer
