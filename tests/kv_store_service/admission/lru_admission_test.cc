#include "kv_store_service/admission/lru_admission.h"

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
PageTable TableWith(uint32_t num_slots, const std::vector<SlotId>& used) {
  PageTable table(num_slots, num_slots, false);
  for (const SlotId slot : used) {
    table.Apply({static_cast<uint32_t>(LogKind::kAdmit), slot, slot, 0});
  }
  return table;
}

TEST(LruAdmissionTest, StartsBelowTheLowWatermarkAndAimsAtTheHighOne) {
  LruAdmission admission(100, {0.05, 0.10});
  EXPECT_EQ(admission.NumToEvict(100), 0u);
  EXPECT_EQ(admission.NumToEvict(5), 0u);
  EXPECT_EQ(admission.NumToEvict(4), 6u);
  EXPECT_EQ(admission.NumToEvict(0), 10u);
  for (SlotId slot = 0; slot < 4; ++slot) admission.MarkInFlight(slot);
  EXPECT_EQ(admission.NumToEvict(0), 6u);
  admission.MarkInFlight(4);
  EXPECT_EQ(admission.NumToEvict(0), 0u);
  admission.Answered(4);
  admission.Answered(4);
  admission.Answered(9999);
  EXPECT_EQ(admission.num_in_flight(), 4u);
  admission.Reset();
  EXPECT_EQ(admission.num_in_flight(), 0u);
}

TEST(LruAdmissionTest, WatermarksAreWholeSlotsAndMayBeAll) {
  EXPECT_EQ(LruAdmission(10, {0.01, 0.02}).NumToEvict(0), 1u);
  EXPECT_EQ(LruAdmission(10, {1, 1}).NumToEvict(9), 1u);
  EXPECT_EQ(LruAdmission(10, {0, 0}).NumToEvict(0), 0u);
  EXPECT_EQ(LruAdmission(0, {0.5, 0.5}).NumToEvict(0), 0u);
}

TEST(LruAdmissionTest, ChoosesTheOldestAndTheLowestOfEquals) {
  LruAdmission admission(6, {});
  const PageTable table = TableWith(6, {0, 1, 2, 3, 4, 5});
  const std::vector<StepStamp> stamps = {50, 10, 30, 10, 10, 40};
  EXPECT_THAT(admission.Choose(table, stamps, 60, 2), ElementsAre(1, 3));
  EXPECT_THAT(admission.Choose(table, stamps, 60, 4), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(admission.Choose(table, stamps, 60, 0), IsEmpty());
  EXPECT_EQ(admission.Choose(table, stamps, 60, 100).size(), 6u);
}

TEST(LruAdmissionTest, LeavesOutFreeSlotsAndThoseInFlight) {
  LruAdmission admission(5, {});
  const PageTable table = TableWith(5, {0, 2, 3});
  admission.MarkInFlight(0);
  const std::vector<StepStamp> stamps(5, 1);
  EXPECT_THAT(admission.Choose(table, stamps, 9, 5), ElementsAre(2, 3));
}

TEST(LruAdmissionTest, KnowsTheAgeAcrossTheWrapOfTheStamp) {
  LruAdmission admission(4, {});
  const PageTable table = TableWith(4, {0, 1, 2, 3});
  // now = 5: slot 1 was used 10 steps ago, before the wrap; slot 3 seems to be of the future.
  const std::vector<StepStamp> stamps = {3, UINT32_MAX - 4, 5, 700};
  EXPECT_THAT(admission.Choose(table, stamps, 5, 1), ElementsAre(1));
  EXPECT_THAT(admission.Choose(table, stamps, 5, 2), ElementsAre(0, 1));
}

TEST(LruAdmissionTest, EqualsSortingOverRandomStates) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 300; ++round) {
    const auto num_slots = static_cast<uint32_t>(1 + random() % 200);
    const auto now = static_cast<StepStamp>(random());
    // Ages of a few steps, of 16 bits and of 31 bits all occur.
    const uint32_t spread = 1u << (2 + random() % 29);
    LruAdmission admission(num_slots, {});
    PageTable table(num_slots, num_slots, false);
    std::vector<StepStamp> stamps(num_slots);
    std::vector<std::pair<uint32_t, SlotId>> by_age;  // inverted age, slot
    for (SlotId slot = 0; slot < num_slots; ++slot) {
      const auto age = static_cast<uint32_t>(random() % spread);
      stamps[slot] = now - age;
      const uint64_t kind = random() % 4;
      if (kind == 0) continue;
      table.Apply({static_cast<uint32_t>(LogKind::kAdmit), slot, slot, 0});
      if (kind == 1) {
        admission.MarkInFlight(slot);
      } else {
        by_age.emplace_back(UINT32_MAX - age, slot);
      }
    }
    const auto count = static_cast<uint32_t>(random() % (num_slots + 5));
    std::sort(by_age.begin(), by_age.end());
    std::vector<SlotId> expected;
    for (size_t i = 0; i < by_age.size() && i < count; ++i) expected.push_back(by_age[i].second);
    std::sort(expected.begin(), expected.end());
    ASSERT_EQ(admission.Choose(table, stamps, now, count), expected) << round;
  }
}

}  // namespace
}  // namespace retroinfer::kvstore
