#include "gpu_worker/engine/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/kv/segment_layout.h"

namespace retroinfer {
namespace {

using ::testing::HasSubstr;

MemoryPlanInput DemoModel() {
  return {.geometry = {.num_layers = 4, .num_kv_heads = 2, .head_dim = 128},
          .hidden_size = 384,
          .vocab_size = 2048,
          .weight_bytes = 16 << 20,
          .max_model_len = 131072,
          .max_batch = 8,
          .dense_below = 8192,
          .arena_pages = 1 << 20,
          .available_bytes = size_t{8} << 30,
          .block_cache_bytes = size_t{256} << 20};
}

TEST(MemoryPlanTest, PartsAddUpAndTheLargestContextFitsWithEitherPolicy) {
  const auto plan = PlanMemory(DemoModel());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LE(plan->total_bytes(), size_t{8} << 30);
  EXPECT_EQ(plan->total_bytes(), plan->weight_bytes + plan->activation_bytes + plan->dense_bytes() +
                                     plan->meta_bytes() + plan->block_cache_bytes());
  EXPECT_EQ(plan->full_capacity_tokens, 131072);
  EXPECT_EQ(plan->wave_capacity_tokens, 131072);
  EXPECT_THAT(plan->ToString(), HasSubstr("KV capacity: 131072 tokens"));
}

TEST(MemoryPlanTest, LittleDeviceMemoryLimitsFullAttentionNotWave) {
  MemoryPlanInput input = DemoModel();
  input.dense_kv_bytes = 128 << 20;
  const auto plan = PlanMemory(input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LT(plan->full_capacity_tokens, 131072 / 3);
  EXPECT_EQ(plan->wave_capacity_tokens, 131072);
}

TEST(MemoryPlanTest, NoLaneComputesASyntheticContext) {
  MemoryPlanInput input = DemoModel();
  const auto real = PlanMemory(input);
  input.synthetic_tokens = 120'000;
  input.synthetic_bytes = 5 << 20;
  const auto synthetic = PlanMemory(input);
  ASSERT_TRUE(real.ok() && synthetic.ok()) << synthetic.status();
  EXPECT_EQ(real->OfRequests(real->max_model_len), 131072);
  EXPECT_EQ(synthetic->OfRequests(synthetic->max_model_len), 11072);
  EXPECT_EQ(synthetic->OfRequests(100'000), 0);
  const size_t per_token = 384 * 4 + 2 * 2 * 2 * 128 * 2;  // hidden states, and two layers' KV
  EXPECT_EQ(real->activation_bytes - synthetic->activation_bytes,
            120'000 * per_token - (size_t{5} << 20));
  EXPECT_EQ(synthetic->wave_capacity_tokens, real->wave_capacity_tokens);
}

TEST(MemoryPlanTest, ASmallArenaLimitsWave) {
  MemoryPlanInput input = DemoModel();
  input.arena_pages = 3 * SegmentLayout(input.geometry, kPrefillSegmentTokens).max_pages;
  const auto plan = PlanMemory(input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->wave_capacity_tokens, 4 + 3 * 8192 + 64);
  EXPECT_EQ(plan->meta_blocks, 24);
}

TEST(MemoryPlanTest, SaysWhatIsNeededAndWhatThereIs) {
  MemoryPlanInput input = DemoModel();
  input.available_bytes = 64 << 20;
  const absl::Status status = PlanMemory(input).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("there are 0.06 GiB"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--max-model-len"));
}

}  // namespace
}  // namespace retroinfer
