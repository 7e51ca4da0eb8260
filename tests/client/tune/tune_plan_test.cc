#include "client/tune/tune_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(TuneLengthsTest, DoublesUpToTheLongest) {
  EXPECT_THAT(TuneLengths(100000), ElementsAre(16384, 32768, 65536, 100000));
  EXPECT_THAT(TuneLengths(32768), ElementsAre(16384, 32768));
  EXPECT_THAT(TuneLengths(8192), ElementsAre(8192));
}

TEST(PlanTextWindowsTest, TextsTakeTurnsAndAShortContextBeginsWhereALongOneDoes) {
  const std::vector<int64_t> texts = {1000, 250, 20};
  const std::vector<int64_t> lengths = {100, 200};
  const auto plan = [&](int64_t context, int64_t most) {
    return PlanTextWindows(texts, lengths, context, 10, most);
  };
  EXPECT_THAT(plan(200, 3), ElementsAre(TextWindow{0, 0}, TextWindow{1, 0}, TextWindow{0, 210}));
  EXPECT_THAT(plan(200, 100), testing::SizeIs(4 + 1)) << "1000 / 210 and 250 / 210";
  EXPECT_THAT(plan(100, 3), ElementsAre(TextWindow{0, 0}, TextWindow{1, 0}, TextWindow{0, 210}));
  EXPECT_THAT(PlanTextWindows(std::vector<int64_t>{50}, lengths, 100, 10, 4), IsEmpty());
}

TEST(PlanTextWindowsTest, ATextThatIsShortForTheLongestServesForTheOthers) {
  const std::vector<int64_t> texts = {230, 120};
  const std::vector<int64_t> lengths = {100, 200};
  EXPECT_THAT(PlanTextWindows(texts, lengths, 100, 10, 4),
              ElementsAre(TextWindow{0, 0}, TextWindow{1, 0}));
  EXPECT_THAT(PlanTextWindows(texts, lengths, 200, 10, 4), ElementsAre(TextWindow{0, 0}));
}

TEST(ShareOfTest, NumbersAndPercent) {
  EXPECT_DOUBLE_EQ(*ShareOf("0.05"), 0.05);
  EXPECT_DOUBLE_EQ(*ShareOf("0.5%"), 0.005);
  for (const char* wrong : {"", "%", "-1", "0", "nan", "inf", "0.5 percent", "1e9"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ShareOf(wrong).status())) << wrong;
  }
}

}  // namespace
}  // namespace retroinfer::client
