#include "gpu_worker/engine/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/kv/segment_layout.h"
#include "common/shm/data_plane.h"
#include "gpu_worker/kv/window_layers.h"
#include "gpu_worker/ops/backend/cpu/cpu_needs.h"
#include "gpu_worker/ops/backend/cuda/cuda_needs.h"
#include "gpu_worker/ops/dense_pool.h"

namespace retroinfer {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

MemoryPlanInput DemoModel() {
  MemoryPlanInput input{.backend = kCpuNeeds,
                        .weight_bytes = 16 << 20,
                        .max_model_len = 131072,
                        .max_batch = 8,
                        .arena_pages = 1 << 20,
                        .available_bytes = size_t{8} << 30,
                        .block_cache_bytes = size_t{256} << 20};
  input.model.hidden_size = 384;
  input.model.intermediate_size = 1024;
  input.model.num_layers = 4;
  input.model.num_query_heads = 6;
  input.model.num_kv_heads = 2;
  input.model.head_dim = 128;
  input.model.vocab_size = 2048;
  input.model.context_length = 131072;
  return input;
}

TEST(MemoryPlanTest, PartsAddUpAndTheLargestContextFitsWithEitherPolicy) {
  const auto plan = PlanMemory(DemoModel());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LE(plan->total_bytes(), size_t{8} << 30);
  size_t sum = plan->weight_bytes;
  for (const ComponentMemory& component : plan->components) sum += component.need.total();
  EXPECT_EQ(plan->total_bytes(), sum);
  EXPECT_EQ(plan->capacity_tokens[PolicyKind::kFull], 131072);
  EXPECT_EQ(plan->capacity_tokens[PolicyKind::kWave], 131072);
  EXPECT_THAT(plan->ToString(), HasSubstr("KV capacity: 131072 tokens"));
}

TEST(MemoryPlanTest, RowsOfRunsHaveRoomBesideThoseOfRequests) {
  MemoryPlanInput input = DemoModel();
  const auto rows_of = [&](int64_t max_model_len, int32_t tail_run) {
    input.max_model_len = max_model_len;
    input.tail_run = tail_run;
    const auto plan = PlanMemory(input);
    EXPECT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->max_batch, 8);
    return std::pair(plan->tail_run, plan->max_step_rows);
  };
  EXPECT_EQ(rows_of(131072, 1), std::pair(1, 8));
  EXPECT_EQ(rows_of(131072, 16), std::pair(16, 24));
  EXPECT_EQ(rows_of(131072, 0), std::pair(8, 16)) << "of a CPU";
  input.backend = kCudaNeeds;
  input.kv_format = kInt8Kv;
  EXPECT_EQ(rows_of(131072, 0), std::pair(64, 72));
  EXPECT_EQ(rows_of(131073, 0), std::pair(32, 40));
  input.arena_pages = 1 << 22;
  EXPECT_EQ(rows_of(1 << 20, 0), std::pair(8, 16));
  input.kv_format = kInt8CodedKv;
  EXPECT_EQ(rows_of(131072, 0), std::pair(1, 8)) << "pages that codes choose are each row's own";
}

TEST(MemoryPlanTest, LittleDeviceMemoryLimitsFullAttentionNotWave) {
  MemoryPlanInput input = DemoModel();
  input.dense_kv_bytes = 128 << 20;
  const auto plan = PlanMemory(input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LT(plan->capacity_tokens[PolicyKind::kFull], 131072 / 3);
  EXPECT_EQ(plan->capacity_tokens[PolicyKind::kWave], 131072);
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
  // Hidden states, two layers' KV, id and position; and for each member of a group the places of
  // its cached blocks.
  const size_t per_token = 384 * 4 + 2 * 2 * 2 * 128 * 2 + 2 * 4;
  EXPECT_EQ(real->need[MemoryPurpose::kActivations] - synthetic->need[MemoryPurpose::kActivations],
            120'000 * per_token +
                120'000 / 64 * static_cast<size_t>(input.max_batch) * sizeof(int32_t) -
                (size_t{5} << 20));
  EXPECT_EQ(synthetic->capacity_tokens[PolicyKind::kWave],
            real->capacity_tokens[PolicyKind::kWave]);
}

TEST(MemoryPlanTest, ASmallArenaLimitsWave) {
  MemoryPlanInput input = DemoModel();
  input.arena_pages = 3 * SegmentLayout(input.geometry(), kPrefillSegmentTokens).max_pages;
  const auto plan = PlanMemory(input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->capacity_tokens[PolicyKind::kWave], 4 + 3 * 8192 + 64);
  EXPECT_EQ(plan->meta_blocks, 24);
}

// Rings are counted, and what is indexed gets smaller.
TEST(MemoryPlanTest, CountsTheRingsOfWindowLayers) {
  MemoryPlanInput input = DemoModel();
  const auto without = PlanMemory(input);
  ASSERT_TRUE(without.ok()) << without.status();
  input.model.layer_windows.assign(input.model.num_layers, 0);
  input.model.layer_windows[0] = 128;
  const auto plan = PlanMemory(input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->geometry.num_layers, input.model.num_layers - 1);
  EXPECT_EQ(plan->geometry.num_window_layers, 1u);
  const size_t rings = static_cast<size_t>(plan->max_sequences) *
                       WindowLayers::RingBytes(plan->geometry, plan->max_batch);
  EXPECT_GT(rings, 0u);
  const size_t dense =
      static_cast<size_t>(plan->dense_blocks) * DensePoolView::BlockBytes(plan->geometry);
  EXPECT_GE(plan->need[MemoryPurpose::kDenseKv], dense + rings);
  EXPECT_LE(plan->total_bytes(), input.available_bytes);
  EXPECT_THAT(plan->ToString(), HasSubstr("for 1 window layers of 128 tokens"));
  EXPECT_THAT(without->ToString(), Not(HasSubstr("window layers")));
  EXPECT_EQ(plan->capacity_tokens[PolicyKind::kStreaming], 0);
  EXPECT_GT(plan->capacity_tokens[PolicyKind::kFull], 0);
}

TEST(MemoryPlanTest, SaysWhatIsNeededAndWhatThereIs) {
  MemoryPlanInput input = DemoModel();
  input.available_bytes = 64 << 20;
  const absl::Status status = PlanMemory(input).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("there are 0.06 GiB"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--max-model-len"));
}

// --- How memory of its own is split

constexpr size_t kSlotBytes = kPageBytes + 16;  // with its entries of the tables

MemoryPlanInput OwnMemory() {
  MemoryPlanInput input = DemoModel();
  input.backend = kCudaNeeds;
  input.owns_memory = true;
  input.block_cache_bytes = 0;
  return input;
}

// An H100 with Llama-3.1-8B: 8 MiB a dense block.
MemoryPlanInput H100() {
  MemoryPlanInput input = OwnMemory();
  input.model.hidden_size = 4096;
  input.model.intermediate_size = 14336;
  input.model.num_layers = 32;
  input.model.num_query_heads = 32;
  input.model.num_kv_heads = 8;
  input.model.vocab_size = 128256;
  input.weight_bytes = size_t{15} << 30;
  input.available_bytes = size_t{72} << 30;
  input.arena_pages = static_cast<uint32_t>((size_t{112} << 30) / kPageBytes);
  return input;
}

TEST(MemoryPlanTest, NotAllOfAGpuIsPlanned) {
  EXPECT_EQ(PlannableGpuBytes(size_t{72} << 30), size_t{71} << 30);
  EXPECT_EQ(PlannableGpuBytes(size_t{1} << 30), size_t{768} << 20);
}

size_t BlockBytes(const MemoryPlanInput& input) {
  return DensePoolView::BlockBytes(input.geometry());
}

// What one context of max_model_len with policy full and the windows of all rows take.
int32_t WantedBlocks(const MemoryPlanInput& input) {
  return static_cast<int32_t>(1 + input.max_model_len / 64) + input.max_batch * 20;
}

TEST(MemoryPlanTest, SlotsGetAllThatOneContextLeaves) {
  const MemoryPlanInput input = H100();
  const auto plan = PlanMemory(input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->dense_blocks, WantedBlocks(input));
  EXPECT_EQ(plan->capacity_tokens[PolicyKind::kFull], 131072);
  EXPECT_GT(plan->num_slots, (size_t{28} << 30) / kPageBytes);
  EXPECT_EQ(plan->num_transient_slots, 0u);
  EXPECT_EQ(plan->total_bytes() + plan->unused_bytes, input.available_bytes);
  EXPECT_LT(plan->unused_bytes, kSlotBytes);
  EXPECT_THAT(plan->ToString(), HasSubstr("not used 0.00 GiB"));
}

TEST(MemoryPlanTest, WhatSlotsHaveNoUseForIsForMoreContextsWithFullAttention) {
  MemoryPlanInput input = H100();
  input.arena_pages = static_cast<uint32_t>((size_t{16} << 30) / kPageBytes);
  const auto plan = PlanMemory(input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->num_slots, input.arena_pages);
  EXPECT_GT(plan->dense_blocks, 2 * (131072 / 64 + 1));
  EXPECT_LT(plan->unused_bytes, BlockBytes(input));
}

TEST(MemoryPlanTest, NothingTakesMoreThanItCanUse) {
  MemoryPlanInput input = H100();
  input.arena_pages = static_cast<uint32_t>((size_t{8} << 30) / kPageBytes);
  input.max_model_len = 32768;
  const auto plan = PlanMemory(input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->num_slots, input.arena_pages);
  EXPECT_EQ(plan->dense_blocks, 8 * (1 + 32768 / 64));
  EXPECT_GT(plan->unused_bytes, size_t{1} << 30);
}

TEST(MemoryPlanTest, ALongContextLeavesSlotsHalfOfWhatWeightsLeave) {
  MemoryPlanInput input = H100();
  input.max_model_len = 1 << 20;
  const auto plan = PlanMemory(input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const size_t half = (input.available_bytes - input.weight_bytes) / 2;
  EXPECT_GT(plan->num_slots * kSlotBytes, half - kSlotBytes);
  EXPECT_LT(plan->num_slots * kSlotBytes, half + BlockBytes(input));
  EXPECT_GT(plan->need[MemoryPurpose::kDenseKv], size_t{5} << 30);
  EXPECT_LT(plan->unused_bytes, kSlotBytes);
  EXPECT_LT(plan->capacity_tokens[PolicyKind::kFull], 1 << 20);
  EXPECT_EQ(
      plan->capacity_tokens[PolicyKind::kWave],
      ArenaCapacityTokens(input.geometry(), input.arena_pages) + kSinkTokens + kDenseBlockTokens);
}

TEST(MemoryPlanTest, NoMoreSlotsThanTheLongestLogCanFollow) {
  MemoryPlanInput input = H100();
  input.available_bytes = size_t{200} << 30;
  const auto plan = PlanMemory(input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->num_slots, DataPlane::kLogCapacityMax / 4 * 3);
  EXPECT_LT(plan->unused_bytes, BlockBytes(input));
}

TEST(MemoryPlanTest, AnArenaWithoutPagesGetsTheFewestSlots) {
  for (const bool owns_memory : {true, false}) {
    MemoryPlanInput input = OwnMemory();
    input.owns_memory = owns_memory;
    input.arena_pages = 0;
    const auto plan = PlanMemory(input);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->num_slots, 64u);
    EXPECT_EQ(plan->meta_blocks, 0);
    EXPECT_EQ(plan->capacity_tokens[PolicyKind::kWave], 8192);
  }
}

TEST(MemoryPlanTest, WhatAFlagSaysHoldsAndTheOtherPartGetsTheRest) {
  MemoryPlanInput slots_given = H100();
  slots_given.block_cache_bytes = size_t{4} << 30;
  const auto small_cache = PlanMemory(slots_given);
  ASSERT_TRUE(small_cache.ok()) << small_cache.status();
  EXPECT_EQ(small_cache->num_slots, (size_t{4} << 30) / kPageBytes);
  EXPECT_LT(small_cache->unused_bytes, BlockBytes(slots_given));

  MemoryPlanInput dense_given = H100();
  dense_given.dense_kv_bytes = size_t{4} << 30;
  const auto small_dense = PlanMemory(dense_given);
  ASSERT_TRUE(small_dense.ok()) << small_dense.status();
  EXPECT_EQ(small_dense->dense_blocks, 512);
  EXPECT_LT(small_dense->unused_bytes, kSlotBytes);

  MemoryPlanInput both_given = slots_given;
  both_given.dense_kv_bytes = size_t{4} << 30;
  const auto both = PlanMemory(both_given);
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->num_slots, small_cache->num_slots);
  EXPECT_EQ(both->dense_blocks, 512);

  for (size_t MemoryPlanInput::*const flag :
       {&MemoryPlanInput::dense_kv_bytes, &MemoryPlanInput::block_cache_bytes}) {
    for (const size_t bytes : {size_t{60} << 30, ~size_t{0}}) {
      MemoryPlanInput input = H100();
      input.*flag = bytes;
      EXPECT_EQ(PlanMemory(input).status().code(), absl::StatusCode::kResourceExhausted);
    }
  }
  dense_given.dense_kv_bytes = size_t{1} << 30;  // not even one context below dense_below
  EXPECT_EQ(PlanMemory(dense_given).status().code(), absl::StatusCode::kResourceExhausted);
}

// --- How memory is split that others want, too

TEST(MemoryPlanTest, SharedMemoryIsNotFilled) {
  MemoryPlanInput input = H100();
  input.owns_memory = false;
  input.backend = kCpuNeeds;
  const auto plan = PlanMemory(input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->num_transient_slots, 8 * 2048u);
  EXPECT_EQ(plan->dense_blocks, WantedBlocks(input));
  EXPECT_EQ(plan->num_slots, (input.available_bytes - plan->weight_bytes) / 16 / kSlotBytes);
  EXPECT_GT(plan->unused_bytes, size_t{20} << 30);

  input.arena_pages = 20'000;
  EXPECT_EQ(PlanMemory(input)->num_slots, 20'000u);
  input.dense_kv_bytes = size_t{2} << 30;
  EXPECT_EQ(PlanMemory(input)->num_slots, 20'000u);
  EXPECT_EQ(PlanMemory(input)->dense_blocks, 256);
}

TEST(MemoryPlanTest, WhatItSaysIsNeededIsEnough) {
  for (const bool owns_memory : {true, false}) {
    MemoryPlanInput input = H100();
    input.owns_memory = owns_memory;
    size_t enough = input.available_bytes, little = 0;
    while (enough - little > 1) {
      input.available_bytes = little + (enough - little) / 2;
      (PlanMemory(input).ok() ? enough : little) = input.available_bytes;
    }
    for (const size_t more : {size_t{0}, size_t{1}, size_t{2059}, size_t{2060}, size_t{4120}}) {
      input.available_bytes = enough + more;
      const auto plan = PlanMemory(input);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(plan->dense_blocks, 4 + 8192 / 64);
      EXPECT_GE(plan->num_slots, 64u);
      EXPECT_LE(plan->total_bytes(), input.available_bytes);
    }
  }
}

TEST(MemoryPlanTest, TheHostKeepsBlocksForSuspendedRequests) {
  MemoryPlanInput input = H100();
  input.owns_memory = true;
  const auto without = PlanMemory(input);
  EXPECT_EQ(without->suspended_blocks, 0);
  input.preemption = true;
  const auto plan = PlanMemory(input);
  ASSERT_TRUE(plan.ok()) << plan.status();
  // Windows of 1024 + 64 + 64 tokens and what a prompt leaves.
  EXPECT_EQ(plan->suspended_blocks, std::max(input.max_batch * 20, 1 + 8192 / 64));
  EXPECT_EQ(plan->total_bytes(), without->total_bytes()) << "nothing of the device";
  EXPECT_EQ(plan->unused_bytes, without->unused_bytes);
  EXPECT_THAT(plan->ToString(), HasSubstr("host memory for preempted requests"));
  MemoryPlanInput large = input;
  large.max_batch = 256;
  EXPECT_LE(PlanMemory(large)->suspended_bytes(), size_t{2} << 30);
  input.suspended_kv_bytes = plan->suspended_bytes() / 2 + 1;
  EXPECT_EQ(PlanMemory(input)->suspended_blocks, plan->suspended_blocks / 2);
  input.suspended_kv_bytes = size_t{64} << 30;
  EXPECT_EQ(PlanMemory(input)->suspended_bytes(), size_t{64} << 30);
  // In the same memory.
  input.owns_memory = false;
  const auto on_cpu = PlanMemory(input);
  EXPECT_LE(on_cpu->total_bytes() + on_cpu->suspended_bytes() + on_cpu->unused_bytes,
            input.available_bytes);
}

}  // namespace
}  // namespace retroinfer
