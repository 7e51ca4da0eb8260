#include "gpu_worker/wave_index/retrieval_width.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace retroinfer {
namespace {

TEST(RetrievalWidthTest, StaysAsAskedWhileTheLimitIsKept) {
  RetrievalWidth width;
  for (int i = 0; i < 100; ++i) width.Follow(0.1, 0.3);
  EXPECT_EQ(width.factor(), 1);
  width.Follow(0, 0.3);  // nothing is indexed
  EXPECT_EQ(width.factor(), 1);
}

TEST(RetrievalWidthTest, GrowsNoFurtherThanItMay) {
  RetrievalWidth width;
  for (int i = 0; i < 100; ++i) {
    const double before = width.factor();
    width.Follow(0.9, 0.01);
    EXPECT_LE(width.factor(), 1.25 * before + 1e-12);
  }
  EXPECT_EQ(width.factor(), RetrievalWidth::kMost);
}

// Mass that falls with a power of the zone, from step to step by up to a fifth more or less.
TEST(RetrievalWidthTest, KeepsTheLimitOnAverageAndGivesBackWhatItNoLongerNeeds) {
  constexpr double kLimit = 0.2;
  RetrievalWidth width;
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> noise(0.8, 1.2);
  for (const double power : {0.3, 0.6, 1.0}) {
    SCOPED_TRACE(power);
    const auto unseen = [&](double of_asked) {
      return of_asked * std::pow(width.factor(), -power) * noise(random);
    };
    const double of_asked = kLimit * std::pow(2.0, power);  // a factor of 2 would do
    for (int i = 0; i < 20; ++i) width.Follow(unseen(of_asked), kLimit);
    double sum = 0;
    constexpr int kSteps = 1000;
    for (int i = 0; i < kSteps; ++i) {
      const double told = unseen(of_asked);
      sum += told;
      width.Follow(told, kLimit);
    }
    EXPECT_LT(sum / kSteps, kLimit);
    EXPECT_GT(sum / kSteps, 0.8 * kLimit) << "more is retrieved than the limit takes";
    for (int i = 0; i < 40; ++i) width.Follow(unseen(0.5 * kLimit), kLimit);
    EXPECT_EQ(width.factor(), 1);
  }
}

}  // namespace
}  // namespace retroinfer
