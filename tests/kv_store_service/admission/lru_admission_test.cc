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

// No stamps are newer than the order's.
std::vector<StepStamp> OldStamps(const PageTable& table) {
  return std::vector<StepStamp>(table.num_slots());
}

std::vector<SlotId> ChooseAll(LruAdmission& admission, const PageTable& table) {
  std::vector<SlotId> slots;
  const std::vector<StepStamp> stamps = OldStamps(table);
  while (const auto chosen = admission.Choose(table, stamps)) slots.push_back(chosen->slot);
  return slots;
}

TEST(LruAdmissionTest, KeepsTwiceFreeOfWhatStepsTake) {
  LruAdmission admission(1000, {0.02, 0.15});
  EXPECT_EQ(admission.NumWantedFree(), 20u);
  EXPECT_EQ(admission.NumToEvict(1000), 0u);
  EXPECT_EQ(admission.NumToEvict(20), 0u);
  EXPECT_EQ(admission.NumToEvict(19), 1u);
  EXPECT_EQ(admission.NumToEvict(0), 20u);
  Take(admission, 1, 40);
  EXPECT_EQ(admission.NumWantedFree(), 80u);
  EXPECT_EQ(admission.NumToEvict(10), 70u);
  // The next step has only begun.
  Take(admission, 2, 2);
  EXPECT_EQ(admission.NumWantedFree(), 80u);
  Take(admission, 2, 48);
  EXPECT_EQ(admission.NumWantedFree(), 100u);
  Take(admission, 3, 500);
  EXPECT_EQ(admission.NumWantedFree(), 150u);  // at most
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
  Take(admission, UINT32_MAX - 3, 45);
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
  EXPECT_EQ(admission.Choose(table, stamps), std::nullopt);
  admission.BeginOrder(60, 60);
  EXPECT_EQ(admission.ContinueOrder(table, stamps, 100), 18u);
  const auto first = admission.Choose(table, stamps);
  EXPECT_EQ(first->slot, 1u);
  EXPECT_EQ(first->stamp, 10u);
  EXPECT_EQ(admission.Choose(table, stamps)->slot, 3u);
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

TEST(LruAdmissionTest, PassesOverSlotsThatNewerStampsKnowAsUsed) {
  const PageTable table = FullTable(5);
  LruAdmission admission(5, {});
  std::vector<StepStamp> stamps = {UINT32_MAX - 1, UINT32_MAX, 0, 1, 2};  // across the wrap
  admission.BeginOrder(9, 9);
  admission.ContinueOrder(table, stamps, 100);
  stamps[0] = 5;
  stamps[2] = UINT32_MAX;  // older than before: of no worker's, and no reason
  EXPECT_EQ(admission.Choose(table, stamps)->slot, 1u);
  stamps[3] = 2;
  EXPECT_EQ(admission.Choose(table, stamps)->slot, 2u);
  EXPECT_EQ(admission.Choose(table, stamps)->slot, 4u);
  EXPECT_EQ(admission.Choose(table, stamps), std::nullopt);
  EXPECT_EQ(admission.num_in_flight(), 3u);
}

TEST(LruAdmissionTest, WantsNewerStampsWhileManyAreKeptAndSlotsAreShort) {
  constexpr uint32_t kSlots = 100'000;
  LruAdmission admission(kSlots, {0.05, 0.05});
  const PageTable table = FullTable(kSlots);
  const std::vector<StepStamp> stamps(kSlots, 1);
  EXPECT_FALSE(admission.WantsStamps(0)) << "nothing was kept so far";
  admission.BeginOrder(9, 9);
  admission.ContinueOrder(table, stamps, UINT32_MAX);
  const auto answer = [&](uint32_t count, uint32_t one_in_kept) {
    for (uint32_t i = 0; i < count; ++i) {
      const auto chosen = admission.Choose(table, stamps);
      ASSERT_TRUE(chosen.has_value());
      admission.Answered(chosen->slot, i % one_in_kept != 0);
    }
  };
  answer(20'000, 4);
  EXPECT_TRUE(admission.WantsStamps(0));
  EXPECT_FALSE(admission.WantsStamps(20'000)) << "enough are free";
  answer(30'000, 30);
  EXPECT_FALSE(admission.WantsStamps(0)) << "few are kept by now";
}

TEST(LruAdmissionTest, AsksForMoreWhereSomeAreKept) {
  constexpr uint32_t kSlots = 100'000;
  LruAdmission admission(kSlots, {0.05, 0.05});
  const PageTable table = FullTable(kSlots);
  const std::vector<StepStamp> stamps(kSlots, 1);
  admission.BeginOrder(9, 9);
  admission.ContinueOrder(table, stamps, UINT32_MAX);
  EXPECT_EQ(admission.NumToEvict(0), 5000u);
  for (SlotId slot = 0; slot < 20'000; ++slot) {
    ASSERT_EQ(admission.Choose(table, stamps)->slot, slot);
    admission.Answered(slot, slot % 4 != 0);
  }
  EXPECT_NEAR(admission.NumToEvict(0), 5000 / 0.75, 100);
  // Where all are kept, it does not ask for all there are.
  for (SlotId slot = 20'000; slot < 40'000; ++slot) {
    ASSERT_EQ(admission.Choose(table, stamps)->slot, slot);
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
  const std::vector<StepStamp> stamps(kSlots, 1);
  for (int i = 0; i < 126; ++i) ASSERT_TRUE(admission.Choose(table, stamps).has_value());
  EXPECT_TRUE(admission.WantsOrder(0, 5)) << "a part of it is used";
}

}  // namespace
}  // namespace retroinfer::kvstore
