#include "kv_store_service/admission/lru_admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace retroinfer::kvstore {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

void Take(LruAdmission& admission, StepStamp step, uint32_t slots) {
  for (uint32_t i = 0; i < slots; ++i) admission.Admitted(step);
}

// All slots in use.
PageTable FullTable(uint32_t num_slots) {
  PageTable table(num_slots, num_slots, false);
  for (SlotId slot = 0; slot < num_slots; ++slot) {
    table.Apply({static_cast<uint32_t>(LogKind::kAdmit), slot, slot, 0});
  }
  return table;
}

std::vector<SlotId> ChooseAll(LruAdmission& admission, const PageTable& table) {
  std::vector<SlotId> slots;
  while (const auto chosen = admission.Choose(table)) slots.push_back(chosen->slot);
  return slots;
}

TEST(LruAdmissionTest, KeepsOneAndAHalfTimesFreeOfWhatStepsTake) {
  LruAdmission admission(1000, {0.02, 0.10});
  EXPECT_EQ(admission.NumWantedFree(), 20u);
  EXPECT_EQ(admission.NumToEvict(1000), 0u);
  EXPECT_EQ(admission.NumToEvict(20), 0u);
  EXPECT_EQ(admission.NumToEvict(19), 1u);
  EXPECT_EQ(admission.NumToEvict(0), 20u);
  Take(admission, 1, 40);
  EXPECT_EQ(admission.NumWantedFree(), 60u);
  EXPECT_EQ(admission.NumToEvict(10), 50u);
  // The next step has only begun.
  Take(admission, 2, 2);
  EXPECT_EQ(admission.NumWantedFree(), 60u);
  Take(admission, 2, 48);
  EXPECT_EQ(admission.NumWantedFree(), 75u);
  Take(admission, 3, 500);
  EXPECT_EQ(admission.NumWantedFree(), 100u);  // at most
}

// What a step took is all that was free: it may have missed far more.
TEST(LruAdmissionTest, GrowsUntilStepsFindEnough) {
  constexpr uint32_t kMissed = 5000;
  LruAdmission admission(100'000, {0.001, 0.10});
  uint32_t free = 100;
  StepStamp step = 0;
  while (free < kMissed && step < 100) {
    Take(admission, ++step, free);
    free = admission.NumToEvict(0);
  }
  EXPECT_LT(step, 12u);
}

TEST(LruAdmissionTest, ForgetsWhatStepsTookLongAgo) {
  LruAdmission admission(1000, {0.02, 0.10});
  Take(admission, UINT32_MAX - 3, 60);
  EXPECT_EQ(admission.NumWantedFree(), 90u);
  for (StepStamp step = UINT32_MAX - 2; step != 3; ++step) Take(admission, step, 1);
  EXPECT_GT(admission.NumWantedFree(), 40u);
  EXPECT_LT(admission.NumWantedFree(), 90u);
  Take(admission, 300, 1);
  EXPECT_EQ(admission.NumWantedFree(), 20u);
}

TEST(LruAdmissionTest, WatermarksAreWholeSlotsAndMayBeAll) {
  EXPECT_EQ(LruAdmission(10, {0.01, 0.02}).NumToEvict(0), 1u);
  EXPECT_EQ(LruAdmission(10, {1, 1}).NumToEvict(9), 1u);
  EXPECT_EQ(LruAdmission(10, {0, 0}).NumToEvict(0), 0u);
  EXPECT_EQ(LruAdmission(0, {0.5, 0.5}).NumToEvict(0), 0u);
}

TEST(LruAdmissionTest, ChoosesEachSlotOnceUntilItIsAnswered) {
  const PageTable table = FullTable(6);
  const std::vector<StepStamp> stamps = {50, 10, 30, 10, 10, 40};
  LruAdmission admission(6, {0.5, 0.5});
  EXPECT_EQ(admission.Choose(table), std::nullopt);
  admission.BeginOrder(60, 60);
  EXPECT_EQ(admission.ContinueOrder(table, stamps, 100), 18u);
  const auto first = admission.Choose(table);
  EXPECT_EQ(first->slot, 1u);
  EXPECT_EQ(first->stamp, 10u);
  EXPECT_EQ(admission.Choose(table)->slot, 3u);
  EXPECT_EQ(admission.num_in_flight(), 2u);
  EXPECT_EQ(admission.NumToEvict(0), 1u);
  // Another order leaves out what is in flight; an answer lets it in again.
  admission.Answered(3, false);
  admission.Answered(3, false);
  admission.Answered(9999, true);
  EXPECT_EQ(admission.num_in_flight(), 1u);
  admission.BeginOrder(61, 61);
  admission.ContinueOrder(table, stamps, 100);
  EXPECT_THAT(ChooseAll(admission, table), ElementsAre(3, 4, 2, 5, 0));
  admission.Reset();
  EXPECT_EQ(admission.num_in_flight(), 0u);
  EXPECT_THAT(ChooseAll(admission, table), IsEmpty());
}

TEST(LruAdmissionTest, PassesOverSlotsThatAreFreeByNow) {
  PageTable table = FullTable(3);
  LruAdmission admission(3, {});
  admission.BeginOrder(9, 9);
  admission.ContinueOrder(table, std::vector<StepStamp>{1, 2, 3}, 100);
  table.Apply({static_cast<uint32_t>(LogKind::kRelease), 0, 0, 9});
  EXPECT_THAT(ChooseAll(admission, table), ElementsAre(1, 2));
}

TEST(LruAdmissionTest, PassesOverSlotsThatHaveAnotherPageByNow) {
  PageTable table = FullTable(3);
  LruAdmission admission(3, {});
  admission.BeginOrder(9, 9);
  admission.ContinueOrder(table, std::vector<StepStamp>{1, 2, 3}, 100);
  table.Apply({static_cast<uint32_t>(LogKind::kRelease), 1, 1, 10});
  table.Apply({static_cast<uint32_t>(LogKind::kAdmit), 1, 1, 10});
  EXPECT_THAT(ChooseAll(admission, table), ElementsAre(0, 2));
}

TEST(LruAdmissionTest, AsksForMoreWhereSomeAreKept) {
  constexpr uint32_t kSlots = 100'000;
  LruAdmission admission(kSlots, {0.05, 0.05});
  const PageTable table = FullTable(kSlots);
  admission.BeginOrder(9, 9);
  admission.ContinueOrder(table, std::vector<StepStamp>(kSlots, 1), UINT32_MAX);
  EXPECT_EQ(admission.NumToEvict(0), 5000u);
  for (SlotId slot = 0; slot < 20'000; ++slot) {
    ASSERT_EQ(admission.Choose(table)->slot, slot);
    admission.Answered(slot, slot % 4 != 0);
  }
  EXPECT_NEAR(admission.NumToEvict(0), 5000 / 0.75, 100);
  // Where all are kept, it does not ask for all there are.
  for (SlotId slot = 20'000; slot < 40'000; ++slot) {
    ASSERT_EQ(admission.Choose(table)->slot, slot);
    admission.Answered(slot, false);
  }
  EXPECT_LE(admission.NumToEvict(0), 12'500u);
}

TEST(LruAdmissionTest, WantsAnOrderWhereSlotsGetShortAndTheLastOneIsUsedOrOld) {
  constexpr uint32_t kSlots = 1000;
  LruAdmission admission(kSlots, {0.1, 0.1});
  const PageTable table = FullTable(kSlots);
  EXPECT_FALSE(admission.WantsOrder(200, 5));
  EXPECT_TRUE(admission.WantsOrder(199, 5));
  admission.BeginOrder(5, 5);
  EXPECT_FALSE(admission.WantsOrder(0, 5)) << "one is being made";
  EXPECT_EQ(admission.ContinueOrder(table, std::vector<StepStamp>(kSlots, 1), 600), 600u);
  EXPECT_TRUE(admission.is_ordering());
  EXPECT_EQ(admission.ContinueOrder(table, std::vector<StepStamp>(kSlots, 1), 5000), 2400u);
  EXPECT_FALSE(admission.is_ordering());
  EXPECT_FALSE(admission.WantsOrder(0, 5));
  EXPECT_TRUE(admission.WantsOrder(0, 500)) << "it is old";
  for (int i = 0; i < 63; ++i) ASSERT_TRUE(admission.Choose(table).has_value());
  EXPECT_TRUE(admission.WantsOrder(0, 5)) << "a part of it is used";
}

}  // namespace
}  // namespace retroinfer::kvstore
