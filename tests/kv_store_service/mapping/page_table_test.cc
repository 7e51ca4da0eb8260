#include "kv_store_service/mapping/page_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/kv_store_service/random_seed.h"

namespace retroinfer::kvstore {
namespace {

using Replay = PageTable::Replay;

LogEntry Entry(LogKind kind, PageId page, SlotId slot) {
  return {static_cast<uint32_t>(kind), page, slot, 0};
}

TEST(PageTableTest, ReplaysAdmissionsAndEvictions) {
  PageTable table(100, 10, /*await_reset=*/false);
  EXPECT_EQ(table.Apply(Entry(LogKind::kAdmit, 5, 3)), Replay::kApplied);
  EXPECT_EQ(table.PageIn(3), 5u);
  EXPECT_EQ(table.SlotOf(5), 3u);
  EXPECT_EQ(table.used_slots(), 1u);
  EXPECT_EQ(table.Apply(Entry(LogKind::kKeep, 5, 3)), Replay::kApplied);
  EXPECT_EQ(table.used_slots(), 1u);
  EXPECT_EQ(table.Apply(Entry(LogKind::kEvict, 5, 3)), Replay::kApplied);
  EXPECT_EQ(table.PageIn(3), kNoPage);
  EXPECT_EQ(table.SlotOf(5), kNoSlot);
  EXPECT_EQ(table.Apply(Entry(LogKind::kAdmit, 5, 4)), Replay::kApplied);
  EXPECT_EQ(table.Apply(Entry(LogKind::kRelease, 5, 4)), Replay::kApplied);
  EXPECT_EQ(table.free_slots(), 10u);
}

TEST(PageTableTest, RefusesGarbageAndKeepsItsState) {
  PageTable table(100, 10, false);
  ASSERT_EQ(table.Apply(Entry(LogKind::kAdmit, 5, 3)), Replay::kApplied);
  for (const LogEntry& entry :
       {Entry(LogKind::kAdmit, 100, 4), Entry(LogKind::kAdmit, 6, 10), Entry(LogKind::kAdmit, 5, 4),
        Entry(LogKind::kAdmit, 6, 3), Entry(LogKind::kAdmit, kNoPage, kNoSlot),
        Entry(LogKind::kEvict, 5, 4), Entry(LogKind::kEvict, 6, 3), Entry(LogKind::kRelease, 7, 7),
        Entry(static_cast<LogKind>(0), 1, 1), Entry(static_cast<LogKind>(6), 1, 1),
        Entry(LogKind::kKeep, 100, 1)}) {
    EXPECT_EQ(table.Apply(entry), Replay::kRefused);
  }
  EXPECT_EQ(table.PageIn(3), 5u);
  EXPECT_EQ(table.used_slots(), 1u);
}

TEST(PageTableTest, IgnoresEverythingUntilTheAwaitedReset) {
  PageTable table(100, 10, /*await_reset=*/true);
  EXPECT_EQ(table.Apply(Entry(LogKind::kEvict, 5, 3)), Replay::kIgnored);
  EXPECT_EQ(table.Apply(Entry(LogKind::kAdmit, 999, 3)), Replay::kIgnored);
  EXPECT_TRUE(table.awaits_reset());
  EXPECT_EQ(table.Apply(Entry(LogKind::kReset, kNoPage, kNoSlot)), Replay::kApplied);
  EXPECT_FALSE(table.awaits_reset());
  EXPECT_EQ(table.Apply(Entry(LogKind::kAdmit, 5, 3)), Replay::kApplied);
  EXPECT_EQ(table.Apply(Entry(LogKind::kReset, 0, 0)), Replay::kApplied);
  EXPECT_EQ(table.used_slots(), 0u);
  EXPECT_EQ(table.SlotOf(5), kNoSlot);
}

TEST(PageTableTest, WorksWithoutSlots) {
  PageTable table(10, 0, false);
  EXPECT_EQ(table.Apply(Entry(LogKind::kAdmit, 0, 0)), Replay::kRefused);
  EXPECT_EQ(table.free_slots(), 0u);
}

TEST(PageTableTest, EqualsANaiveTableOverRandomEntries) {
  std::mt19937_64 random(TestSeed());
  constexpr uint32_t kPages = 60;
  constexpr uint32_t kSlots = 20;
  PageTable table(kPages, kSlots, false);
  std::map<PageId, SlotId> naive;
  for (int i = 0; i < 200'000; ++i) {
    auto page = static_cast<PageId>(random() % (kPages + 2));
    auto slot = static_cast<SlotId>(random() % (kSlots + 2));
    const auto kind = static_cast<LogKind>(random() % 2000 == 0 ? 1 : 2 + random() % 5);
    if (kind != LogKind::kAdmit && random() % 2 == 0 && !naive.empty()) {
      const auto known = naive.lower_bound(page);
      if (known != naive.end()) std::tie(page, slot) = *known;
    }
    bool slot_taken = false;
    for (const auto& [p, s] : naive) slot_taken = slot_taken || s == slot;
    bool expected = false;
    if (kind == LogKind::kReset) {
      naive.clear();
      expected = true;
    } else if (page < kPages && slot < kSlots) {
      const auto known = naive.find(page);
      if (kind == LogKind::kAdmit && known == naive.end() && !slot_taken) {
        naive[page] = slot;
        expected = true;
      } else if ((kind == LogKind::kEvict || kind == LogKind::kRelease) && known != naive.end() &&
                 known->second == slot) {
        naive.erase(known);
        expected = true;
      } else if (kind == LogKind::kKeep) {
        expected = true;
      }
    }
    ASSERT_EQ(table.Apply(Entry(kind, page, slot)) == Replay::kApplied, expected) << i;
    ASSERT_EQ(table.used_slots(), naive.size()) << i;
    if (page < kPages) {
      const auto known = naive.find(page);
      ASSERT_EQ(table.SlotOf(page), known == naive.end() ? kNoSlot : known->second) << i;
    }
  }
}

}  // namespace
}  // namespace retroinfer::kvstore
