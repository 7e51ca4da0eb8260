#include "kv_store_service/tier/context_pins.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "absl/time/clock.h"
#include "kv_store_service/persistence/segment_storage.h"

namespace retroinfer::kvstore {
namespace {

std::vector<common::SegmentName> Names(uint32_t first, size_t count) {
  std::vector<common::SegmentName> names(count);
  for (common::SegmentName& name : names) {
    std::memcpy(name.bytes.data(), &first, sizeof(first));
    ++first;
  }
  return names;
}

TEST(ContextPinsTest, HoldsUntilTheLatestTimeOrTheEnd) {
  const absl::Time now = absl::Now();
  const auto names = Names(1, 2);
  ContextPins pins;
  EXPECT_FALSE(pins.IsPinnedForSave(names[0], now));
  ASSERT_TRUE(pins.PinForSave(names, now + absl::Seconds(60), now).ok());
  ASSERT_TRUE(pins.PinForSave(names, now + absl::Seconds(10), now).ok());
  EXPECT_TRUE(pins.IsPinnedForSave(names[1], now + absl::Seconds(59)));
  EXPECT_FALSE(pins.IsPinnedForSave(names[1], now + absl::Seconds(60)));
  ASSERT_TRUE(pins.PinForSave({names.data(), 1}, absl::InfinitePast(), now).ok());
  EXPECT_FALSE(pins.IsPinnedForSave(names[0], now));
  EXPECT_TRUE(pins.IsPinnedForSave(names[1], now));
}

TEST(ContextPinsTest, HasALimitThatTimeGivesBack) {
  const absl::Time now = absl::Now();
  ContextPins pins;
  ASSERT_TRUE(
      pins.PinForSave(Names(0, 4 * kMaxContextSegments), now + absl::Seconds(60), now).ok());
  const auto more = Names(4 * kMaxContextSegments, 1);
  EXPECT_TRUE(absl::IsResourceExhausted(pins.PinForSave(more, now + absl::Seconds(60), now)));
  EXPECT_FALSE(pins.IsPinnedForSave(more[0], now));
  const absl::Time later = now + absl::Seconds(61);
  EXPECT_TRUE(pins.PinForSave(more, later + absl::Seconds(60), later).ok());
}

TEST(ContextPinsTest, PinsReplaceEachOther) {
  ContextPins pins;
  const ContextPins::NameSet* const pinned = &pins.pinned();
  const auto names = Names(1, 2);
  pins.Pin({names[0]});
  pins.Pin({names[1]});
  EXPECT_EQ(pinned, &pins.pinned());
  EXPECT_EQ(*pinned, ContextPins::NameSet{names[1]});
}

}  // namespace
}  // namespace retroinfer::kvstore
