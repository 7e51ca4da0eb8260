#include "common/kv/query_units.h"

#include <gtest/gtest.h>

namespace retroinfer {
namespace {

TEST(QueryUnitsTest, UnitsBeginBehindTheSink) {
  EXPECT_EQ(UnitFrom(0), 4);
  EXPECT_EQ(UnitFrom(4), 4);
  EXPECT_EQ(UnitFrom(5), 68);
  EXPECT_EQ(UnitFrom(68), 68);
}

TEST(QueryUnitsTest, AStretchEndsWhereAUnitDoes) {
  EXPECT_EQ(EndOfUnits(0, 3, 1000), 3) << "the sink is in no unit";
  EXPECT_EQ(EndOfUnits(0, 4, 1000), 4);
  EXPECT_EQ(EndOfUnits(0, 68, 1000), 68);
  EXPECT_EQ(EndOfUnits(0, 131, 1000), 68);
  EXPECT_EQ(EndOfUnits(68, 131, 1000), 68);
  EXPECT_EQ(EndOfUnits(69, 131, 1000), 132) << "not before the least";
  EXPECT_EQ(EndOfUnits(69, 100, 120), 120) << "nor behind the prompt";
  EXPECT_EQ(EndOfUnits(69, 120, 120), 120);
}

}  // namespace
}  // namespace retroinfer
