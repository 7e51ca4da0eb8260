#include "gpu_worker/scheduler/output_lengths.h"

#include <gtest/gtest.h>

namespace retroinfer {
namespace {

class OutputLengthsTest : public testing::Test {
 protected:
  OutputLengthsTest() { input_.weights = {1, 1}; }

  static RequestDescription Request(uint64_t id, int64_t generated, int64_t max_tokens,
                                    uint32_t tenant = 0) {
    return {.id = id,
            .phase = RequestPhase::kDecoding,
            .tenant = tenant,
            .tokens_left = max_tokens - generated,
            .tokens_generated = generated};
  }
  // Requests that generate so many tokens and end.
  void End(int count, int64_t tokens, int64_t max_tokens, uint32_t tenant = 0) {
    for (int i = 0; i < count; ++i) {
      input_.requests = {Request(next_id_++, tokens, max_tokens, tenant)};
      lengths_.Update(input_);
      input_.requests.clear();
      lengths_.Update(input_);
    }
  }

  SchedulerInput input_;
  OutputLengths lengths_;
  uint64_t next_id_ = 1;
};

TEST_F(OutputLengthsTest, WithoutExperienceAllOfTheMaximumIsExpected) {
  EXPECT_EQ(lengths_.Expected(Request(1, 5, 4096)), 4096);
  End(3, 100, 4096);
  EXPECT_EQ(lengths_.Expected(Request(1, 5, 4096)), 4096);
}

TEST_F(OutputLengthsTest, FourOfFiveWereNoLonger) {
  End(20, 100, 4096);
  EXPECT_EQ(lengths_.Expected(Request(1, 0, 4096)), 100);
  End(5, 900, 4096);
  EXPECT_EQ(lengths_.Expected(Request(1, 0, 4096)), 100);
  End(10, 900, 4096);
  EXPECT_EQ(lengths_.Expected(Request(1, 0, 4096)), 900);
  End(40, 50, 4096);  // what is old is forgotten
  EXPECT_EQ(lengths_.Expected(Request(1, 0, 4096)), 50);
}

TEST_F(OutputLengthsTest, OneThatIsLongerAlreadyGoesOnAsLongAgain) {
  End(10, 100, 4096);
  EXPECT_EQ(lengths_.Expected(Request(1, 99, 4096)), 100);
  EXPECT_EQ(lengths_.Expected(Request(1, 100, 4096)), 200);
  EXPECT_EQ(lengths_.Expected(Request(1, 3000, 4096)), 4096);
}

TEST_F(OutputLengthsTest, MaximaAndTenantsAreApart) {
  End(10, 100, 4096, 0);
  EXPECT_EQ(lengths_.Expected(Request(1, 0, 64, 0)), 64);
  EXPECT_EQ(lengths_.Expected(Request(1, 0, 5000, 0)), 100) << "nearly the same maximum";
  EXPECT_EQ(lengths_.Expected(Request(1, 0, 4096, 1)), 100) << "of whom nothing is known yet";
  End(10, 3000, 4096, 1);
  EXPECT_EQ(lengths_.Expected(Request(1, 0, 4096, 1)), 3000);
  EXPECT_EQ(lengths_.Expected(Request(1, 0, 4096, 0)), 100);
  // Its number is another tenant's now.
  input_.new_tenants = {0};
  lengths_.Update(input_);
  input_.new_tenants.clear();
  EXPECT_EQ(lengths_.Expected(Request(1, 0, 4096, 0)), 3000);
}

TEST_F(OutputLengthsTest, WhatIsKnownIsNotLearnedFrom) {
  RequestDescription measured = Request(1, 64, 64);
  measured.length_is_known = true;
  for (uint64_t id = 1; id <= 10; ++id) {
    measured.id = id;
    input_.requests = {measured};
    lengths_.Update(input_);
    input_.requests.clear();
    lengths_.Update(input_);
  }
  End(10, 7, 64);
  EXPECT_EQ(lengths_.Expected(Request(1, 0, 64)), 7);
  measured.tokens_generated = 0;
  measured.tokens_left = 64;
  EXPECT_EQ(lengths_.Expected(measured), 64);
}

// A suspended request has not ended.
TEST_F(OutputLengthsTest, ASuspendedRequestIsCountedOnce) {
  for (int i = 0; i < 10; ++i) {
    input_.requests = {Request(1, 10 + i, 4096)};
    input_.requests[0].phase = i % 2 == 0 ? RequestPhase::kSuspended : RequestPhase::kDecoding;
    lengths_.Update(input_);
  }
  EXPECT_EQ(lengths_.Expected(Request(2, 0, 4096)), 4096);
}

}  // namespace
}  // namespace retroinfer
