#include "text/constraint/code_point_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer::constraint {
namespace {

using testing::ElementsAre;
using Range = CodePointRange;

TEST(CodePointSetTest, MergesWhatOverlapsOrTouches) {
  CodePointSet set = {{'d', 'f'}, {'a', 'b'}, {'c', 'c'}, {'e', 'z'}};
  EXPECT_THAT(set.ranges(), ElementsAre(Range{'a', 'z'}));
  set.Add('0', '9');
  EXPECT_THAT(set.ranges(), ElementsAre(Range{'0', '9'}, Range{'a', 'z'}));
}

TEST(CodePointSetTest, SurrogatesAreNeverMembers) {
  EXPECT_THAT(CodePointSet::All().ranges(), ElementsAre(Range{0, 0xD7FF}, Range{0xE000, 0x10FFFF}));
  EXPECT_TRUE((CodePointSet{{0xD800, 0xDFFF}}).empty());
  EXPECT_FALSE(CodePointSet().Complement().Contains(0xDABC));
}

TEST(CodePointSetTest, SetAlgebra) {
  const CodePointSet letters = {{'a', 'z'}};
  const CodePointSet vowels = {{'a', 'a'}, {'e', 'e'}, {'z', 0x10FFFF}};
  EXPECT_THAT(letters.And(vowels).ranges(),
              ElementsAre(Range{'a', 'a'}, Range{'e', 'e'}, Range{'z', 'z'}));
  EXPECT_THAT(letters.Minus(vowels).ranges(), ElementsAre(Range{'b', 'd'}, Range{'f', 'y'}));
  EXPECT_EQ(letters.Complement().Complement().ranges(), letters.ranges());
  EXPECT_TRUE(CodePointSet::All().Complement().empty());
  EXPECT_TRUE(letters.Includes({{'c', 'd'}, {'x', 'x'}}));
  EXPECT_FALSE(letters.Includes(vowels));
  EXPECT_TRUE(letters.Includes({}));
}

}  // namespace
}  // namespace retroinfer::constraint
