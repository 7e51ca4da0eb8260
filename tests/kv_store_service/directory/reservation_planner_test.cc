#include "kv_store_service/directory/reservation_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace retroinfer::kvstore {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

class ReservationPlannerTest : public testing::Test {
 protected:
  // 100 pages, in tens: named segments 1 to 8, released in this order; 20 are free.
  ReservationPlannerTest() : allocator_(100) {
    for (uint64_t id = 1; id <= 8; ++id) {
      ExtentRecord segment;
      segment.id = id;
      segment.pages = *allocator_.Allocate(10);
      segment.token_begin = 4;
      SegmentKey key;
      key.identity.name = NameOf(id);
      segment.key = std::make_shared<const SegmentKey>(key);
      directory_.AddNamed(segment);
    }
  }
  static common::SegmentName NameOf(uint64_t id) {
    common::SegmentName name{};
    std::memcpy(name.bytes.data(), &id, sizeof(id));
    return name;
  }
  std::optional<ReservationPlan> Plan(std::vector<uint32_t> counts, bool may_evict_pinned,
                                      std::vector<uint64_t> shared = {}) {
    std::vector<ExtentRecord> records;
    for (const uint64_t id : shared) records.push_back(*directory_.FindExtent(id));
    return ReservationPlanner(allocator_, directory_, &pinned_, 50)
        .Plan(counts, records, may_evict_pinned);
  }

  ExtentAllocator allocator_;
  SegmentDirectory directory_;
  ReservationPlanner::NameSet pinned_;
};

TEST_F(ReservationPlannerTest, TheOneReleasedFirstIsEvictedFirst) {
  EXPECT_THAT(Plan({10, 10}, false)->evicted_ids, IsEmpty());
  EXPECT_THAT(Plan({10, 10, 10}, false)->evicted_ids, ElementsAre(1));
  EXPECT_THAT(Plan({10, 10, 10}, false, {1, 2})->evicted_ids, ElementsAre(3));
}

TEST_F(ReservationPlannerTest, WhatIsInUseStays) {
  directory_.Pin(1);
  EXPECT_THAT(Plan({10, 10, 10}, false)->evicted_ids, ElementsAre(2));
  EXPECT_FALSE(Plan({100}, true).has_value());
  directory_.Unpin(1);
  EXPECT_EQ(Plan({100}, true)->evicted_ids.size(), 8u);
}

TEST_F(ReservationPlannerTest, PinnedOnesAreEvictedOnlyWhereThereIsNoRoomOtherwise) {
  pinned_ = {NameOf(1), NameOf(2)};
  EXPECT_THAT(Plan({10, 10, 10}, false)->evicted_ids, ElementsAre(3));
  EXPECT_THAT(Plan({10, 10, 10}, true)->evicted_ids, ElementsAre(3));
  EXPECT_FALSE(Plan({85}, false).has_value());
  EXPECT_THAT(Plan({85}, true)->evicted_ids, UnorderedElementsAre(2, 3, 4, 5, 6, 7, 8));
}

TEST_F(ReservationPlannerTest, PinsHoldAtMostHalfOfTheArena) {
  for (uint64_t id = 1; id <= 8; ++id) pinned_.insert(NameOf(id));
  EXPECT_THAT(Plan({10, 10, 10}, false)->evicted_ids, ElementsAre(6));
  EXPECT_FALSE(Plan(std::vector<uint32_t>(6, 10), false).has_value());
  EXPECT_EQ(Plan(std::vector<uint32_t>(6, 10), true)->evicted_ids.size(), 4u);
}

}  // namespace
}  // namespace retroinfer::kvstore
