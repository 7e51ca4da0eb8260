#include "kv_store_service/tier/kept_names.h"

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

TEST(KeptNamesTest, HoldsUntilTheLatestTimeOrTheEnd) {
  const absl::Time now = absl::Now();
  const auto names = Names(1, 2);
  KeptNames kept;
  EXPECT_FALSE(kept.IsHeld(names[0], now));
  ASSERT_TRUE(kept.Hold(names, now + absl::Seconds(60), now).ok());
  ASSERT_TRUE(kept.Hold(names, now + absl::Seconds(10), now).ok());
  EXPECT_TRUE(kept.IsHeld(names[1], now + absl::Seconds(59)));
  EXPECT_FALSE(kept.IsHeld(names[1], now + absl::Seconds(60)));
  ASSERT_TRUE(kept.Hold({names.data(), 1}, absl::InfinitePast(), now).ok());
  EXPECT_FALSE(kept.IsHeld(names[0], now));
  EXPECT_TRUE(kept.IsHeld(names[1], now));
}

TEST(KeptNamesTest, HasALimitThatTimeGivesBack) {
  const absl::Time now = absl::Now();
  KeptNames kept;
  ASSERT_TRUE(kept.Hold(Names(0, 4 * kMaxContextSegments), now + absl::Seconds(60), now).ok());
  const auto more = Names(4 * kMaxContextSegments, 1);
  EXPECT_TRUE(absl::IsResourceExhausted(kept.Hold(more, now + absl::Seconds(60), now)));
  EXPECT_FALSE(kept.IsHeld(more[0], now));
  const absl::Time later = now + absl::Seconds(61);
  EXPECT_TRUE(kept.Hold(more, later + absl::Seconds(60), later).ok());
}

TEST(KeptNamesTest, PinsReplaceEachOther) {
  KeptNames kept;
  const KeptNames::NameSet* const pinned = &kept.pinned();
  const auto names = Names(1, 2);
  kept.Pin({names[0]});
  kept.Pin({names[1]});
  EXPECT_EQ(pinned, &kept.pinned());
  EXPECT_EQ(*pinned, KeptNames::NameSet{names[1]});
}

}  // namespace
}  // namespace retroinfer::kvstore
