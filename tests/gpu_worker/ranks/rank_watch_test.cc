#include "gpu_worker/ranks/rank_watch.h"

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "gpu_worker/ranks/rank_channel.h"

namespace retroinfer {
namespace {

struct Lost {
  absl::Notification noticed;
  size_t index = 99;
  absl::Status why;
};

std::unique_ptr<RankWatch> Watch(std::vector<int> sockets, absl::Duration limit, Lost& lost) {
  auto watch = RankWatch::Start(std::move(sockets), limit, [&lost](size_t index, absl::Status why) {
    lost.index = index;
    lost.why = std::move(why);
    lost.noticed.Notify();
  });
  EXPECT_TRUE(watch.ok()) << watch.status();
  return *std::move(watch);
}

TEST(RankWatchTest, NoticesWhoIsGone) {
  auto first = RankChannel::MakePair().value(), second = RankChannel::MakePair().value();
  Lost lost;
  const auto watch = Watch({first.first.get(), second.first.get()}, absl::InfiniteDuration(), lost);
  EXPECT_FALSE(lost.noticed.HasBeenNotified());
  second.second.Reset();
  lost.noticed.WaitForNotification();
  EXPECT_EQ(lost.index, 1u);
  EXPECT_TRUE(absl::IsUnavailable(lost.why)) << lost.why;
}

// Messages that nobody has read yet hide nothing.
TEST(RankWatchTest, NoticesWhoIsGoneBehindMessages) {
  auto ends = RankChannel::MakePair().value();
  Lost lost;
  const auto watch = Watch({ends.first.get()}, absl::InfiniteDuration(), lost);
  {
    RankChannel channel(std::move(ends.second));
    ASSERT_TRUE(channel.Send(RankMessageType::kEnd, "last words", absl::Minutes(1)).ok());
  }
  lost.noticed.WaitForNotification();
  EXPECT_EQ(lost.index, 0u);
}

TEST(RankWatchTest, NoticesThatNobodyAnswers) {
  auto first = RankChannel::MakePair().value(), second = RankChannel::MakePair().value();
  Lost lost;
  const auto watch = Watch({first.first.get(), second.first.get()}, absl::Milliseconds(4), lost);
  watch->Begin();
  watch->Await(1);
  lost.noticed.WaitForNotification();
  EXPECT_TRUE(absl::IsDeadlineExceeded(lost.why)) << lost.why;
  EXPECT_LT(lost.index, 2u);
}

TEST(RankWatchTest, NoticesWhoIsGoneWhenItEnds) {
  for (int i = 0; i < 50; ++i) {
    auto ends = RankChannel::MakePair().value();
    Lost lost;
    auto watch = Watch({ends.first.get()}, absl::InfiniteDuration(), lost);
    ends.second.Reset();
    watch.reset();
    EXPECT_TRUE(lost.noticed.HasBeenNotified());
  }
}

TEST(RankWatchTest, NobodyIsMissedWhoseAnswerIsThere) {
  auto ends = RankChannel::MakePair().value();
  Lost lost;
  auto watch = Watch({ends.first.get()}, absl::Hours(1), lost);
  for (int i = 0; i < 100; ++i) {
    watch->Begin();
    watch->Await(0);
    watch->End();
  }
  watch.reset();
  EXPECT_FALSE(lost.noticed.HasBeenNotified());
}

}  // namespace
}  // namespace retroinfer
