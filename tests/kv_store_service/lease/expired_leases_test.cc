#include "kv_store_service/lease/expired_leases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/kv_store_service/lease/plane_fixture.h"

namespace retroinfer::kvstore {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

TEST(ExpiredLeasesTest, TellsEachOnceAndKeepsPagesUntilItsProcessIsGone) {
  ExpiredLeases leases;
  const auto first = MakePlanes();
  leases.Add({"first", first, {{3, 4}}});
  EXPECT_THAT(leases.NotifyArenaTaken(), ElementsAre(first));
  EXPECT_TRUE(SeesArenaTaken(*first));
  EXPECT_THAT(leases.NotifyArenaTaken(), IsEmpty());
  const auto second = MakePlanes();
  leases.Add({"second", second, {}});
  EXPECT_THAT(leases.leases(), SizeIs(2));
  EXPECT_THAT(leases.TakePages("first"), ElementsAre(PageRun{3, 4}));
  EXPECT_THAT(leases.TakePages("first"), IsEmpty());
  EXPECT_FALSE(SeesArenaTaken(*second));
  // One that wrote nothing is only there to be told.
  leases.NotifyArenaTaken();
  EXPECT_THAT(leases.leases(), IsEmpty());
}

TEST(ExpiredLeasesTest, OneThatIsGoneWithoutItsMarkIsToldAllTheSame) {
  ExpiredLeases leases;
  const auto plane = MakePlanes();
  leases.Add({"token", plane, {{3, 4}}});
  EXPECT_THAT(leases.TakePages("token"), SizeIs(1));
  EXPECT_THAT(leases.NotifyArenaTaken(), ElementsAre(plane));
}

TEST(ExpiredLeasesTest, OnlyWhoWasNotToldComesBack) {
  ExpiredLeases leases;
  EXPECT_THAT(leases.TakeHandedBack(), IsEmpty());
  leases.Add({"first", MakePlanes(), {{3, 4}}});
  leases.NotifyArenaTaken();
  EXPECT_THAT(leases.TakeHandedBack(), IsEmpty());
  leases.Add({"second", MakePlanes(), {{9, 1}}});
  const auto returned = leases.TakeHandedBack();
  ASSERT_THAT(returned, SizeIs(1));
  EXPECT_EQ(returned[0].token, "second");
  EXPECT_THAT(leases.TakeAll(), SizeIs(1));
  EXPECT_THAT(leases.leases(), IsEmpty());
}

}  // namespace
}  // namespace retroinfer::kvstore
