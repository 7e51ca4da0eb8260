#include "gpu_worker/server/pending_budget.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

namespace retroinfer {
namespace {

TEST(PendingBudget, OneCallMayHaveAllOfIt) {
  const auto budget = std::make_shared<PendingBudget>(1000);
  {
    PendingBudget::Share share(budget);
    EXPECT_TRUE(share.Set(1000));
    EXPECT_FALSE(share.Set(1001));
    EXPECT_EQ(budget->bytes(), 1001);
  }
  EXPECT_EQ(budget->bytes(), 0);
  EXPECT_TRUE(PendingBudget::Share(nullptr).Set(1 << 30));
}

TEST(PendingBudget, WhoHasMoreThanAnEqualShareGivesWay) {
  const auto budget = std::make_shared<PendingBudget>(1000);
  PendingBudget::Share slow(budget);
  PendingBudget::Share quick(budget);
  EXPECT_TRUE(slow.Set(900));
  EXPECT_TRUE(quick.Set(200));
  EXPECT_FALSE(slow.Set(901));
  slow.Set(0);
  EXPECT_TRUE(quick.Set(1000));
}

TEST(PendingBudget, AllTogetherStayUnderTwiceTheLimit) {
  constexpr size_t kLimit = 100'000;
  const auto budget = std::make_shared<PendingBudget>(kLimit);
  std::mt19937 random(7);
  std::vector<std::unique_ptr<PendingBudget::Share>> shares;
  for (int i = 0; i < 50; ++i) shares.push_back(std::make_unique<PendingBudget::Share>(budget));
  std::vector<size_t> bytes(shares.size(), 0);
  for (int i = 0; i < 100'000; ++i) {
    const size_t at = random() % shares.size();
    bytes[at] += random() % 1000;
    if (!shares[at]->Set(bytes[at])) shares[at]->Set(bytes[at] = 0);
    ASSERT_LE(budget->bytes(), static_cast<int64_t>(2 * kLimit));
  }
  EXPECT_GT(budget->bytes(), 0);
}

}  // namespace
}  // namespace retroinfer
