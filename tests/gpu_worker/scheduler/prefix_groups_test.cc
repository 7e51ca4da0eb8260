#include "gpu_worker/scheduler/prefix_groups.h"

#include <gtest/gtest.h>

namespace retroinfer {
namespace {

class PrefixGroupsTest : public testing::Test {
 protected:
  PrefixGroupsTest() {
    input_.now = 100;
    for (int i = 0; i < 50; ++i) costs_.Observe({.passes = 1, .cached = 100000}, 0.1);
  }
  RequestDescription& Add(uint64_t id, RequestPhase phase, uint64_t prefix = 7) {
    input_.requests.push_back({.id = id,
                               .phase = phase,
                               .prompt_tokens = 100200,
                               .cached_tokens = 100000,
                               .prefix = prefix});
    return input_.requests.back();
  }

  const SchedulerOptions options_{.num_layers = 4, .max_rows = 1024, .max_batch = 4};
  CostModel costs_;
  const TimeEstimates times_{options_, costs_};
  PrefixGroups groups_{options_, times_};
  SchedulerInput input_;
};

TEST_F(PrefixGroupsTest, ARequestWaitsForOthersOfItsGroupForAWhile) {
  Add(1, RequestPhase::kReady);
  Add(2, RequestPhase::kReserving);
  groups_.Update(input_);
  EXPECT_TRUE(groups_.WaitsForOthers(input_, input_.requests[0]));
  input_.now += 1.01 * options_.inter_token_target;
  EXPECT_FALSE(groups_.WaitsForOthers(input_, input_.requests[0])) << "not for ever";
}

TEST_F(PrefixGroupsTest, NobodyWaitsWhereAllAreReadyOrNobodyEverCame) {
  Add(1, RequestPhase::kReady);
  groups_.Update(input_);
  EXPECT_EQ(groups_.size(), 0u);
  EXPECT_FALSE(groups_.WaitsForOthers(input_, input_.requests[0]));
  Add(2, RequestPhase::kReady);
  groups_.Update(input_);
  EXPECT_FALSE(groups_.WaitsForOthers(input_, input_.requests[0]));
}

TEST_F(PrefixGroupsTest, OneWithoutCachedTokensHasNothingToShare) {
  Add(1, RequestPhase::kReady).cached_tokens = 0;
  Add(2, RequestPhase::kReserving);
  groups_.Update(input_);
  EXPECT_FALSE(groups_.WaitsForOthers(input_, input_.requests[0]));
}

TEST_F(PrefixGroupsTest, AnotherWaitBeginsWhenTheGroupWasRead) {
  Add(1, RequestPhase::kReady);
  Add(2, RequestPhase::kReserving);
  groups_.Update(input_);
  ASSERT_TRUE(groups_.WaitsForOthers(input_, input_.requests[0]));
  input_.now += 1.01 * options_.inter_token_target;
  ASSERT_FALSE(groups_.WaitsForOthers(input_, input_.requests[0]));
  groups_.EndWait(input_.requests[0]);
  EXPECT_TRUE(groups_.WaitsForOthers(input_, input_.requests[0]));
}

TEST_F(PrefixGroupsTest, AGroupIsForgottenAndTheirNumberIsBounded) {
  Add(1, RequestPhase::kReady);
  Add(2, RequestPhase::kReserving);
  groups_.Update(input_);
  EXPECT_EQ(groups_.size(), 1u);
  input_.requests.clear();
  input_.now += 11;
  groups_.Update(input_);
  EXPECT_EQ(groups_.size(), 0u);
  for (uint64_t prefix = 1; prefix <= 1000; ++prefix) {
    Add(2 * prefix, RequestPhase::kReady, prefix);
    Add(2 * prefix + 1, RequestPhase::kReady, prefix);
  }
  groups_.Update(input_);
  EXPECT_LE(groups_.size(), 256u);
}

}  // namespace
}  // namespace retroinfer
