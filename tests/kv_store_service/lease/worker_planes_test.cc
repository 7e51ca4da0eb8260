#include "kv_store_service/lease/worker_planes.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "absl/time/clock.h"
#include "tests/kv_store_service/lease/plane_fixture.h"

namespace retroinfer::kvstore {
namespace {

TEST(WorkerPlanesTest, ServesUntilItIsStopped) {
  const auto planes = MakePlanes(3);
  ASSERT_TRUE(planes->Start().ok());
  while (std::ranges::min(planes->num_rounds()) == 0) absl::SleepFor(absl::Milliseconds(1));
  planes->Stop();
  ASSERT_EQ(planes->stats().size(), 3u);
  EXPECT_EQ(planes->stats()[2].num_slots, 16u);
  // A claim that failed behind the start is made again.
  const std::vector<uint64_t> before = planes->num_rounds();
  ASSERT_TRUE(planes->Start().ok());
  while (planes->num_rounds()[1] == before[1]) absl::SleepFor(absl::Milliseconds(1));
}

// What one rank writes is that rank's alone, garbage included.
TEST(WorkerPlanesTest, PlanesKnowNothingOfEachOther) {
  const auto planes = MakePlanes(2);
  ASSERT_TRUE(planes->Start().ok());
  const common::SealedMemory first = MemoryOf(*planes, 0), second = MemoryOf(*planes, 1);
  DataPlane broken = *DataPlane::Open(first.bytes());
  ASSERT_TRUE(broken.log().TryPush({99, 1, 1, 0}));
  DataPlane good = *DataPlane::Open(second.bytes());
  // The same page in another slot than the other rank might have.
  ASSERT_TRUE(good.log().TryPush({uint32_t(LogKind::kAdmit), 7, 3, 0}));
  while (planes->stats()[0].entries_refused == 0 || planes->stats()[1].used_slots == 0) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(planes->stats()[0].used_slots, 0u);
  EXPECT_EQ(planes->stats()[1].entries_refused, 0u);
  ASSERT_TRUE(broken.log().TryPush({uint32_t(LogKind::kAdmit), 7, 5, 0}));
  while (planes->stats()[0].used_slots == 0) absl::SleepFor(absl::Milliseconds(1));
}

TEST(WorkerPlanesTest, TakesOverWhatFitsOnly) {
  const auto planes = MakePlanes(2);
  const auto adopt = [&](std::initializer_list<int> fds, PlaneSizes sizes, uint64_t arena_pages) {
    sizes.num_planes = 2;
    return WorkerPlanes::Adopt(CopiesOf(fds), sizes, arena_pages, Watermarks()).status();
  };
  const int a = planes->fd(0), b = planes->fd(1);
  EXPECT_TRUE(adopt({a, b}, kPlaneSizes, 100).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(adopt({a, b}, {17, 64, 64}, 100)));
  EXPECT_TRUE(absl::IsInvalidArgument(adopt({a, b}, kPlaneSizes, 101)));
  EXPECT_TRUE(absl::IsInvalidArgument(adopt({a}, kPlaneSizes, 100)));
  EXPECT_TRUE(absl::IsInvalidArgument(adopt({a, b, b}, kPlaneSizes, 100)));
  const auto larger = *WorkerPlanes::Make({32, 64, 64}, 100, Watermarks(), nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument(adopt({a, larger->fd(0)}, kPlaneSizes, 100)))
      << "one plane that does not fit";
  EXPECT_FALSE(SeesArenaTaken(*planes, 1));
  planes->NotifyArenaTaken();
  EXPECT_TRUE(SeesArenaTaken(*planes, 0));
  EXPECT_TRUE(SeesArenaTaken(*planes, 1));
  EXPECT_TRUE(absl::IsFailedPrecondition(adopt({a, b}, kPlaneSizes, 100)));
}

TEST(WorkerPlanesTest, SaysThatThereIsNoMemory) {
  const auto plane = WorkerPlanes::Make(kPlaneSizes, 100, Watermarks(), [](uint64_t) {
    return absl::ResourceExhaustedError("none");
  });
  EXPECT_TRUE(absl::IsResourceExhausted(plane.status()));
  PlaneSizes two = kPlaneSizes;
  two.num_planes = 2;
  int num_made = 0;
  const auto planes = WorkerPlanes::Make(
      two, 100, Watermarks(), [&](uint64_t bytes) -> absl::StatusOr<common::SealedMemory> {
        if (++num_made == 2) return absl::ResourceExhaustedError("no more");
        return common::SealedMemory::Create("test plane", bytes, 1);
      });
  EXPECT_TRUE(absl::IsResourceExhausted(planes.status()));
}

}  // namespace
}  // namespace retroinfer::kvstore
