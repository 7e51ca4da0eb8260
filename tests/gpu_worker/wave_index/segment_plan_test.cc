#include "gpu_worker/wave_index/segment_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace retroinfer {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kDense = 8192;

TEST(SegmentPlanTest, ShortContextsStayDense) {
  EXPECT_THAT(PlanSegments(1, 1, kDense), IsEmpty());
  EXPECT_THAT(PlanSegments(8191, 8191, kDense), IsEmpty());
  EXPECT_THAT(PlanSegments(100, 8256, kDense), IsEmpty());
}

TEST(SegmentPlanTest, APromptIsCutIntoLargeThenSmallSegments) {
  // 20,000 - 4 - 64 = 2 * 8192 + 3 * 1024 + 476.
  EXPECT_THAT(PlanSegments(20'000, 20'000, kDense),
              ElementsAre(PlannedSegment{4, 8192, 20'000, 20'000},
                          PlannedSegment{8196, 8192, 20'000, 20'000},
                          PlannedSegment{16'388, 1024, 20'000, 20'000},
                          PlannedSegment{17'412, 1024, 20'000, 20'000},
                          PlannedSegment{18'436, 1024, 20'000, 20'000}));
  // Exactly at the limit: 8 segments need 4 + 8192 + 64 tokens.
  EXPECT_EQ(PlanSegments(8192, 8192, kDense).size(), 7u);
  EXPECT_EQ(PlanSegments(8259, 8259, kDense).size(), 7u);
  EXPECT_THAT(PlanSegments(8260, 8260, kDense), ElementsAre(PlannedSegment{4, 8192, 8260, 8260}));
}

TEST(SegmentPlanTest, GenerationAddsASegmentForEach1024Tokens) {
  const auto plan = PlanSegments(8260, 8260 + 3000, kDense);
  EXPECT_THAT(
      plan, ElementsAre(PlannedSegment{4, 8192, 8260, 8260}, PlannedSegment{8196, 1024, 9284, 9348},
                        PlannedSegment{9220, 1024, 10'308, 10'372}));
}

TEST(SegmentPlanTest, ADenseSequenceGivesUpAllItCanWhenItGrows) {
  const auto plan = PlanSegments(100, 9300, kDense);
  ASSERT_EQ(plan.size(), 8u);
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(plan[i], (PlannedSegment{4 + 1024 * static_cast<int64_t>(i), 1024, 8192, 8256}));
  }
  EXPECT_EQ(plan[7], (PlannedSegment{7172, 1024, 8260, 8324}));
}

TEST(SegmentPlanTest, ALongPromptBelowDenseIsTakenAtTheFirstStep) {
  // The limit is larger than the prompt, which is larger than a window.
  const auto plan = PlanSegments(3000, 5000, 3500);
  ASSERT_GE(plan.size(), 3u);
  EXPECT_EQ(plan[0], (PlannedSegment{4, 1024, 3500, 3564}));
  EXPECT_EQ(plan[2], (PlannedSegment{2052, 1024, 3500, 3564}));
}

TEST(SegmentPlanTest, InvariantsHoldForManyLengths) {
  for (const int64_t dense_below : {0, 1000, 4096, 8192}) {
    for (int64_t prompt = 1; prompt < 40'000; prompt += 397) {
      for (const int64_t more : {0, 1, 500, 5000}) {
        const int64_t total = prompt + more;
        const auto plan = PlanSegments(prompt, total, dense_below);
        int64_t end = kSinkTokens, live_before = 0;
        for (const PlannedSegment& segment : plan) {
          ASSERT_EQ(segment.token_begin, end) << "segments are adjacent";
          end += segment.num_tokens;
          ASSERT_LE(segment.build_at, segment.live_at);
          ASSERT_GE(segment.live_at, live_before);
          live_before = segment.live_at;
          // The newest 64 tokens are in no segment while it is built.
          ASSERT_LE(end + kMinWindowTokens, segment.build_at);
          ASSERT_GE(segment.build_at, dense_below);
          ASSERT_TRUE(segment.live_at == prompt || segment.live_at < total);
        }
        // While decoding the window stays under 1024 + 64 + 64 tokens, unless the sequence is
        // dense.
        const int64_t window = MaxWindowTokens(plan, prompt, total);
        ASSERT_LE(window, std::max<int64_t>(1152, dense_below + kBuildDelayTokens));
        ASSERT_GE(window, std::min<int64_t>(total - kSinkTokens, 64));
      }
    }
  }
}

// Beside a sequence that grows token by token, whose window is counted.
TEST(SegmentPlanTest, WindowsOfAPartOfALifeAreThoseThatItHas) {
  for (const int64_t dense_below : {0, 1000, 2048}) {
    for (const int64_t prompt : {1, 900, 1990, 2047, 2048, 5000}) {
      const int64_t total = prompt + 2600;
      const auto plan = PlanSegments(prompt, total, dense_below);
      // Tokens in the window once there are so many with KV.
      std::vector<int64_t> windows(static_cast<size_t>(total) + 1);
      int64_t begin = kSinkTokens;
      size_t live = 0;
      for (; live < plan.size() && plan[live].live_at <= prompt; ++live) {
        begin = plan[live].token_begin + plan[live].num_tokens;
      }
      windows[static_cast<size_t>(prompt)] = std::max<int64_t>(0, prompt - begin);
      for (int64_t length = prompt; length < total; ++length) {
        for (; live < plan.size() && plan[live].live_at <= length; ++live) {
          begin = plan[live].token_begin + plan[live].num_tokens;
        }
        windows[static_cast<size_t>(length) + 1] = std::max<int64_t>(0, length + 1 - begin);
      }
      for (int64_t from = prompt; from <= total; from += 97) {
        int64_t most = 0;
        for (int64_t to = from; to <= total; ++to) {
          most = std::max(most, windows[static_cast<size_t>(to)]);
          const int64_t told = MaxWindowTokens(plan, prompt, from, to);
          // Of the tokens at `from`, those that leave in the next step count as well.
          ASSERT_GE(told, most) << prompt << ": " << from << " to " << to;
          ASSERT_LE(told, std::max(most, windows[static_cast<size_t>(from)]));
          ASSERT_LE(told, MaxWindowTokens(plan, prompt, total));
        }
      }
    }
  }
}

TEST(SegmentPlanTest, TheBeginningDoesNotDependOnWhatFollows) {
  const auto shorter = PlanSegments(30'000, 30'000, kDense);
  const auto longer = PlanSegments(60'000, 61'000, kDense);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(shorter[i].token_begin, longer[i].token_begin);
    EXPECT_EQ(shorter[i].num_tokens, longer[i].num_tokens);
  }
}

}  // namespace
}  // namespace retroinfer
