#include "common/rpc/policy_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer::common {
namespace {

using generation::v1::AttentionPolicy;
using testing::Contains;

TEST(PolicyNameTest, EveryPolicyOfTheApiHasAName) {
  const std::vector<std::string> names = PolicyNames();
  EXPECT_THAT(names, Contains("full"));
  EXPECT_THAT(names, Contains("wave"));
  EXPECT_EQ(static_cast<int>(names.size()),
            generation::v1::AttentionPolicy_descriptor()->value_count() - 1);
  for (const std::string& name : names) {
    ASSERT_TRUE(PolicyNamed(name).has_value()) << name;
    EXPECT_EQ(NameOfPolicy(*PolicyNamed(name)), name);
  }
}

TEST(PolicyNameTest, WhatIsNoPolicyHasNone) {
  for (const std::string name : {"", "unspecified", "Full", "ATTENTION_POLICY_FULL", "wave "}) {
    EXPECT_FALSE(PolicyNamed(name).has_value()) << name;
  }
  EXPECT_EQ(NameOfPolicy(generation::v1::ATTENTION_POLICY_UNSPECIFIED), "");
  EXPECT_EQ(NameOfPolicy(static_cast<AttentionPolicy>(77)), "");
}

TEST(PolicyNameTest, TheListReadsWell) {
  EXPECT_THAT(PolicyNameList(), testing::ContainsRegex("^([a-z]+, )*[a-z]+ or [a-z]+$"));
}

}  // namespace
}  // namespace retroinfer::common
