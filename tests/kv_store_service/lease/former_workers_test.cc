#include "kv_store_service/lease/former_workers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/kv_store_service/lease/plane_fixture.h"

namespace retroinfer::kvstore {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

TEST(FormerWorkersTest, TellsEachOnceAndKeepsPagesUntilItsProcessIsGone) {
  FormerWorkers workers;
  const auto first = MakePlane();
  workers.Add({"first", first, {{3, 4}}});
  EXPECT_THAT(workers.SayArenaTaken(), ElementsAre(first));
  EXPECT_TRUE(SeesArenaTaken(*first));
  EXPECT_THAT(workers.SayArenaTaken(), IsEmpty());
  const auto second = MakePlane();
  workers.Add({"second", second, {}});
  EXPECT_THAT(workers.workers(), SizeIs(2));
  EXPECT_THAT(workers.TakePages("first"), ElementsAre(PageRun{3, 4}));
  EXPECT_THAT(workers.TakePages("first"), IsEmpty());
  EXPECT_FALSE(SeesArenaTaken(*second));
  // One that wrote nothing is only there to be told.
  workers.SayArenaTaken();
  EXPECT_THAT(workers.workers(), IsEmpty());
}

TEST(FormerWorkersTest, OneThatIsGoneWithoutItsMarkIsToldAllTheSame) {
  FormerWorkers workers;
  const auto plane = MakePlane();
  workers.Add({"token", plane, {{3, 4}}});
  EXPECT_THAT(workers.TakePages("token"), SizeIs(1));
  EXPECT_THAT(workers.SayArenaTaken(), ElementsAre(plane));
}

TEST(FormerWorkersTest, OnlyWhoWasNotToldComesBack) {
  FormerWorkers workers;
  EXPECT_THAT(workers.TakeReturned(), IsEmpty());
  workers.Add({"first", MakePlane(), {{3, 4}}});
  workers.SayArenaTaken();
  EXPECT_THAT(workers.TakeReturned(), IsEmpty());
  workers.Add({"second", MakePlane(), {{9, 1}}});
  const auto returned = workers.TakeReturned();
  ASSERT_THAT(returned, SizeIs(1));
  EXPECT_EQ(returned[0].token, "second");
  EXPECT_THAT(workers.TakeAll(), SizeIs(1));
  EXPECT_THAT(workers.workers(), IsEmpty());
}

}  // namespace
}  // namespace retroinfer::kvstore
