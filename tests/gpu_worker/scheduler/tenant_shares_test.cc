#include "gpu_worker/scheduler/tenant_shares.h"

#include <gtest/gtest.h>

namespace retroinfer {
namespace {

constexpr double kWeights[] = {1, 4};
constexpr bool kBoth[] = {true, true};
constexpr bool kFirst[] = {true, false};

TEST(TenantSharesTest, CountsTokensOverWeights) {
  TenantShares shares;
  shares.Update(kWeights, kBoth);
  shares.Charge(0, 100);
  shares.Charge(1, 100);
  EXPECT_EQ(shares.Served(0), 100);
  EXPECT_EQ(shares.Served(1), 25);
}

TEST(TenantSharesTest, WhatWasNotUsedIsNotSaved) {
  TenantShares shares;
  shares.Update(kWeights, kFirst);
  shares.Charge(0, 1000);
  shares.Update(kWeights, kBoth);
  EXPECT_EQ(shares.Served(1), 1000) << "it comes back beside the other, not before it";
  shares.Charge(1, 400);
  shares.Update(kWeights, kFirst);
  shares.Update(kWeights, kBoth);
  EXPECT_EQ(shares.Served(1), 1100) << "going away pays no debt";
}

TEST(TenantSharesTest, ATenantThatIsNewBeginsWithTheOthers) {
  TenantShares shares;
  shares.Update(std::span(kWeights).first(1), std::span(kFirst).first(1));
  shares.Charge(0, 50);
  shares.Update(kWeights, kBoth);
  EXPECT_EQ(shares.Served(1), 50);
}

TEST(TenantSharesTest, ANumberThatIsGivenToAnotherBeginsAfresh) {
  TenantShares shares;
  shares.Update(kWeights, kBoth);
  shares.Charge(0, 100);
  shares.Charge(1, 4000);
  shares.Renew(1);
  shares.Update(kWeights, kBoth);
  EXPECT_EQ(shares.Served(1), 100) << "beside the others, whatever the old one had";
  shares.Renew(7);
}

}  // namespace
}  // namespace retroinfer
