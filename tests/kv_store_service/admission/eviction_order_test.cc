#include "kv_store_service/admission/eviction_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/kv_store_service/random_seed.h"

namespace retroinfer::kvstore {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// A table with a page in each slot of `used`.
PageTable TableWith(uint32_t num_slots, const std::vector<SlotId>& used, StepStamp step = 0) {
  PageTable table(num_slots, num_slots, false);
  for (const SlotId slot : used) {
    table.Apply({static_cast<uint32_t>(LogKind::kAdmit), slot, slot, step});
  }
  return table;
}

std::vector<SlotId> All(EvictionOrder& order) {
  std::vector<SlotId> slots;
  while (const auto candidate = order.Pop()) slots.push_back(candidate->slot);
  return slots;
}

// Of stamps of now.
std::vector<SlotId> Order(const PageTable& table, const std::vector<StepStamp>& stamps,
                          StepStamp now, uint32_t count) {
  EvictionOrder order;
  order.Begin(now, now, count);
  order.Continue(table, stamps, std::vector<bool>(stamps.size()), UINT32_MAX);
  EXPECT_FALSE(order.is_begun());
  return All(order);
}

TEST(EvictionOrderTest, HasTheOldestFirstAndTheLowestOfEquals) {
  const PageTable table = TableWith(6, {0, 1, 2, 3, 4, 5});
  const std::vector<StepStamp> stamps = {50, 10, 30, 10, 10, 40};
  EXPECT_THAT(Order(table, stamps, 60, 0), IsEmpty());
  EXPECT_THAT(Order(table, stamps, 60, 2), ElementsAre(1, 3));
  EXPECT_THAT(Order(table, stamps, 60, 4), ElementsAre(1, 3, 4, 2));
  EXPECT_THAT(Order(table, stamps, 60, 100), ElementsAre(1, 3, 4, 2, 5, 0));
  EXPECT_THAT(Order(TableWith(0, {}), {}, 60, 100), IsEmpty());
}

TEST(EvictionOrderTest, LeavesOutFreeSlotsAndThoseInFlight) {
  const PageTable table = TableWith(5, {0, 2, 3});
  EvictionOrder order;
  order.Begin(9, 9, 5);
  order.Continue(table, std::vector<StepStamp>(5, 1), {true, false, false, false, false}, 100);
  EXPECT_EQ(order.num_made(), 2u);
  EXPECT_THAT(All(order), ElementsAre(2, 3));
}

TEST(EvictionOrderTest, KnowsTheAgeAcrossTheWrapOfTheStamp) {
  const PageTable table = TableWith(4, {0, 1, 2, 3});
  // now = 5: slot 1 was used 10 steps ago, before the wrap; slot 3 seems to be of the future.
  EXPECT_THAT(Order(table, {3, UINT32_MAX - 4, 5, 700}, 5, 4), ElementsAre(1, 0, 2, 3));
}

// The stamp of a slot that was free when stamps were copied is that of the page before.
TEST(EvictionOrderTest, APageThatCameAfterTheStampsWasUsedThen) {
  PageTable table = TableWith(4, {0, 1, 2}, UINT32_MAX - 20);
  const std::vector<StepStamp> stamps = {UINT32_MAX - 9, UINT32_MAX - 5, UINT32_MAX - 4, 3};
  const auto change = [&](LogKind kind, SlotId slot, StepStamp step) {
    ASSERT_EQ(table.Apply({static_cast<uint32_t>(kind), slot, slot, step}),
              PageTable::Replay::kApplied);
  };
  change(LogKind::kEvict, 0, 1);
  change(LogKind::kAdmit, 0, 2);
  change(LogKind::kEvict, 2, UINT32_MAX);  // its stamp is of the page that came
  change(LogKind::kAdmit, 2, UINT32_MAX - 1);
  EvictionOrder order;
  order.Begin(2, UINT32_MAX, 4);
  order.Continue(table, stamps, std::vector<bool>(4), 100);
  EXPECT_EQ(order.Pop()->slot, 1u);
  EXPECT_EQ(order.Pop()->stamp, UINT32_MAX - 4);
  const auto last = order.Pop();
  EXPECT_EQ(last->slot, 0u);
  EXPECT_EQ(last->stamp, 2u);
  EXPECT_FALSE(order.IsOutdated(*last, table));
  change(LogKind::kEvict, 0, 3);
  change(LogKind::kAdmit, 0, 3);
  EXPECT_TRUE(order.IsOutdated(*last, table));
}

TEST(EvictionOrderTest, BucketsAreExactFirstAndWithinOnePercentThen) {
  for (uint32_t age = 0; age < 256; ++age) EXPECT_EQ(EvictionOrder::BucketOf(age), age);
  uint32_t first = 255;  // age of the bucket
  for (uint32_t age = 256; age < 3'000'000; ++age) {
    const uint32_t step = EvictionOrder::BucketOf(age) - EvictionOrder::BucketOf(age - 1);
    ASSERT_LE(step, 1u) << age;
    if (step == 1) first = age;
    ASSERT_LE(age - first, first / 100) << age;
  }
  EXPECT_EQ(EvictionOrder::BucketOf((1u << 31) - 1), EvictionOrder::kBuckets - 1);
}

TEST(EvictionOrderTest, TheLastOrderIsUsedWhileANewOneIsMadeInParts) {
  const PageTable table = TableWith(6, {0, 1, 2, 3, 4, 5});
  const std::vector<bool> in_flight(6);
  EvictionOrder order;
  order.Begin(10, 10, 6);
  // Each slot is looked at in a sample, which has all of so few, in the pass, and when it is
  // sorted.
  EXPECT_EQ(order.Continue(table, std::vector<StepStamp>{1, 2, 3, 4, 5, 6}, in_flight, 100), 18u);
  EXPECT_EQ(order.num_left(), 6u);
  EXPECT_EQ(order.Pop()->slot, 0u);
  order.Begin(20, 20, 6);
  const std::vector<StepStamp> stamps = {20, 12, 13, 14, 11, 10};
  EXPECT_EQ(order.Continue(table, stamps, in_flight, 4), 4u);
  EXPECT_EQ(order.Pop()->slot, 1u);
  EXPECT_EQ(order.Continue(table, stamps, in_flight, 13), 13u);
  EXPECT_TRUE(order.is_begun());
  EXPECT_EQ(order.made_at(), 10u);
  EXPECT_EQ(order.Pop()->stamp, 3u);
  EXPECT_EQ(order.Continue(table, stamps, in_flight, 7), 1u);
  EXPECT_FALSE(order.is_begun());
  EXPECT_EQ(order.made_at(), 20u);
  EXPECT_THAT(All(order), ElementsAre(5, 4, 1, 2, 3, 0));
  order.Begin(30, 30, 6);
  order.Clear();
  EXPECT_FALSE(order.is_begun());
  EXPECT_EQ(order.Pop(), std::nullopt);
}

// So many that a sample says where the order ends.
TEST(EvictionOrderTest, OfManySlotsTheOldestAreThere) {
  std::mt19937_64 random(TestSeed());
  constexpr uint32_t kSlots = 4 * EvictionOrder::kExact, kWanted = kSlots / 4;
  PageTable table(kSlots, kSlots, false);
  std::vector<StepStamp> stamps(kSlots);
  std::vector<StepStamp> sorted;
  for (SlotId slot = 0; slot < kSlots; ++slot) {
    table.Apply({static_cast<uint32_t>(LogKind::kAdmit), slot, slot, 0});
    stamps[slot] = static_cast<StepStamp>(900 + random() % 100);
    sorted.push_back(stamps[slot]);
  }
  std::sort(sorted.begin(), sorted.end());
  EvictionOrder order;
  order.Begin(1000, 1000, kWanted);
  order.Continue(table, stamps, std::vector<bool>(kSlots), UINT32_MAX);
  EXPECT_LE(order.num_left(), kWanted);
  EXPECT_GE(order.num_left(), kWanted * 9 / 10);
  for (size_t i = 0; order.num_left() > 0; ++i) ASSERT_EQ(order.Pop()->stamp, sorted[i]) << i;
}

TEST(EvictionOrderTest, EqualsSortingOverRandomStates) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 300; ++round) {
    const auto num_slots = static_cast<uint32_t>(1 + random() % 200);
    const auto now = static_cast<StepStamp>(random());
    // Ages of a few steps, of 16 bits and of 31 bits all occur.
    const uint32_t spread = 1u << (2 + random() % 29);
    PageTable table(num_slots, num_slots, false);
    std::vector<StepStamp> stamps(num_slots);
    std::vector<bool> in_flight(num_slots);
    std::vector<std::pair<int64_t, SlotId>> by_age;
    for (SlotId slot = 0; slot < num_slots; ++slot) {
      const auto age = static_cast<uint32_t>(random() % spread);
      stamps[slot] = now - age;
      const uint64_t kind = random() % 4;
      if (kind == 0) continue;
      table.Apply({static_cast<uint32_t>(LogKind::kAdmit), slot, slot, now});
      in_flight[slot] = kind == 1;
      if (kind > 1) by_age.emplace_back(-int64_t{EvictionOrder::BucketOf(age)}, slot);
    }
    const auto count = static_cast<uint32_t>(random() % (num_slots + 5));
    std::sort(by_age.begin(), by_age.end());
    if (by_age.size() > count) by_age.resize(count);
    EvictionOrder order;
    order.Begin(now, now, count);
    while (order.is_begun()) {
      order.Continue(table, stamps, in_flight, static_cast<uint32_t>(1 + random() % 50));
    }
    ASSERT_EQ(order.num_left(), by_age.size()) << round;
    for (const auto& [age, slot] : by_age) {
      const auto candidate = order.Pop();
      ASSERT_TRUE(candidate.has_value()) << round;
      ASSERT_EQ(candidate->slot, slot) << round;
      ASSERT_EQ(candidate->stamp, stamps[slot]) << round;
    }
  }
}

// As with a hostile worker, whose stamps are others at each look.
TEST(EvictionOrderTest, StampsThatChangeMeanwhileCostCandidatesAndNothingElse) {
  std::mt19937_64 random(TestSeed());
  constexpr uint32_t kSlots = 100;
  std::vector<SlotId> used(kSlots);
  for (SlotId slot = 0; slot < kSlots; ++slot) used[slot] = slot;
  const PageTable table = TableWith(kSlots, used);
  std::vector<StepStamp> stamps(kSlots);
  EvictionOrder order;
  for (int round = 0; round < 200; ++round) {
    order.Begin(static_cast<StepStamp>(random()), 0, static_cast<uint32_t>(random() % kSlots));
    while (order.is_begun()) {
      for (StepStamp& stamp : stamps) stamp = static_cast<StepStamp>(random());
      order.Continue(table, stamps, std::vector<bool>(kSlots), 7);
    }
    std::vector<SlotId> slots = All(order);
    std::sort(slots.begin(), slots.end());
    ASSERT_EQ(std::adjacent_find(slots.begin(), slots.end()), slots.end());
    ASSERT_TRUE(slots.empty() || slots.back() < kSlots);
  }
}

}  // namespace
}  // namespace retroinfer::kvstore
