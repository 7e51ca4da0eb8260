#include "gpu_worker/attention/policy_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "common/rpc/policy_name.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer {
namespace {

TEST(PolicyTableTest, HasAnEntryForEachKindInItsOrder) {
  ASSERT_EQ(PolicyTable().size(), kNumPolicies);
  std::set<std::string_view> names;
  for (size_t i = 0; i < kNumPolicies; ++i) {
    const auto kind = static_cast<PolicyKind>(i);
    EXPECT_EQ(EntryOf(kind).kind, kind);
    EXPECT_TRUE(names.insert(PolicyName(kind)).second) << PolicyName(kind);
    EXPECT_EQ(PolicyOfName(PolicyName(kind)), kind);
  }
  EXPECT_FALSE(PolicyOfName("").has_value());
  EXPECT_FALSE(PolicyOfName("Full").has_value());
}

// What the server can do is what its API can ask for.
TEST(PolicyTableTest, TheApiHasTheSameNames) {
  const std::vector<std::string> names(std::begin(kPolicyNames), std::end(kPolicyNames));
  EXPECT_THAT(common::PolicyNames(), testing::UnorderedElementsAreArray(names));
}

TEST(PolicyTableTest, CapacityIsWhatTheMemoryHolds) {
  const ContextMemory plenty{.max_model_len = 100'000,
                             .max_single_pass_tokens = 100'000,
                             .dense_blocks = 10'000,
                             .arena_tokens = 1'000'000,
                             .dense_below = 8192};
  for (const int64_t tokens : CapacitiesOf(plenty).tokens) EXPECT_GE(tokens, 100'000);

  // 40 dense blocks, the first of them the sink's.
  ContextMemory little = plenty;
  little.dense_blocks = 40;
  EXPECT_EQ(CapacitiesOf(little)[PolicyKind::kFull], 4 + 39 * 64);
  EXPECT_EQ(CapacitiesOf(little)[PolicyKind::kWave], 100'000);
  little.arena_tokens = 3 * 8192;
  EXPECT_EQ(CapacitiesOf(little)[PolicyKind::kWave], 4 + 3 * 8192 + 64);
  // A window takes memory, a context none; what is read as one has to fit a lane.
  EXPECT_EQ(CapacitiesOf(little)[PolicyKind::kStreaming], 4 + 39 * 64) << "no window of 4096";
  little.dense_blocks = 4096 / 64 + 3;
  little.max_single_pass_tokens = 5000;
  EXPECT_EQ(CapacitiesOf(little)[PolicyKind::kStreaming], 100'000);
  EXPECT_EQ(CapacitiesOf(little)[PolicyKind::kFull], 4 + 66 * 64);
  EXPECT_EQ(CapacitiesOf(little)[PolicyKind::kWave], 5000);
  little = plenty;
  little.dense_blocks = 40;
  // Without an arena what is dense is all there is.
  little.arena_tokens = 0;
  EXPECT_EQ(CapacitiesOf(little)[PolicyKind::kWave], 4 + 39 * 64);
}

}  // namespace
}  // namespace retroinfer
