#include "kv_store_service/lease/worker_plane.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/time/clock.h"
#include "tests/kv_store_service/lease/plane_fixture.h"

namespace retroinfer::kvstore {
namespace {

TEST(WorkerPlaneTest, ServesUntilItIsStopped) {
  const auto plane = MakePlane();
  ASSERT_TRUE(plane->Start().ok());
  while (plane->num_rounds() == 0) absl::SleepFor(absl::Milliseconds(1));
  plane->Stop();
  EXPECT_EQ(plane->stats().num_slots, 16u);
}

TEST(WorkerPlaneTest, TakesOverWhatFitsOnly) {
  const auto plane = MakePlane();
  const auto adopt = [&](const PlaneSizes& sizes, uint64_t arena_pages) {
    return WorkerPlane::Adopt(common::UniqueFd(::dup(plane->fd())), sizes, arena_pages,
                              Watermarks())
        .status();
  };
  EXPECT_TRUE(adopt(kPlaneSizes, 100).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(adopt({17, 64, 64}, 100)));
  EXPECT_TRUE(absl::IsInvalidArgument(adopt(kPlaneSizes, 101)));
  EXPECT_FALSE(SeesArenaTaken(*plane));
  plane->NotifyArenaTaken();
  EXPECT_TRUE(SeesArenaTaken(*plane));
  EXPECT_TRUE(absl::IsFailedPrecondition(adopt(kPlaneSizes, 100)));
}

TEST(WorkerPlaneTest, SaysThatThereIsNoMemory) {
  const auto plane = WorkerPlane::Make(kPlaneSizes, 100, Watermarks(), [](uint64_t) {
    return absl::ResourceExhaustedError("none");
  });
  EXPECT_TRUE(absl::IsResourceExhausted(plane.status()));
}

}  // namespace
}  // namespace retroinfer::kvstore
