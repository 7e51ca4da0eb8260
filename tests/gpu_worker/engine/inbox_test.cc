#include "gpu_worker/engine/inbox.h"

#include <gtest/gtest.h>

#include <thread>

namespace retroinfer {
namespace {

Submission WithId(std::string id) {
  Submission submission;
  submission.request.request_id = std::move(id);
  return submission;
}

TEST(InboxTest, HandsOverWhatWasPostedOnce) {
  Inbox inbox(4);
  ASSERT_TRUE(inbox.Submit(WithId("a")).ok());
  ASSERT_TRUE(inbox.Submit(WithId("b")).ok());
  EXPECT_TRUE(inbox.Abort("a"));
  inbox.Answer({7, absl::UnavailableError("gone")});
  const Mail mail = inbox.Take(absl::ZeroDuration());
  ASSERT_EQ(mail.submissions.size(), 2u);
  EXPECT_EQ(mail.submissions[1].request.request_id, "b");
  ASSERT_EQ(mail.aborts.size(), 1u);
  ASSERT_EQ(mail.answers.size(), 1u);
  EXPECT_EQ(mail.answers[0].sequence_id, 7u);
  EXPECT_TRUE(inbox.Take(absl::ZeroDuration()).submissions.empty());
}

TEST(InboxTest, AnIdIsInUseUntilForgotten) {
  Inbox inbox(4);
  ASSERT_TRUE(inbox.Submit(WithId("a")).ok());
  inbox.Take(absl::ZeroDuration());
  EXPECT_EQ(inbox.Submit(WithId("a")).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(inbox.AnyLive());
  inbox.Forget("a");
  EXPECT_FALSE(inbox.AnyLive());
  EXPECT_FALSE(inbox.Abort("a"));
  EXPECT_TRUE(inbox.Submit(WithId("a")).ok());
}

TEST(InboxTest, RefusesBeyondItsLimitAndAfterClose) {
  Inbox inbox(1);
  ASSERT_TRUE(inbox.Submit(WithId("a")).ok());
  EXPECT_EQ(inbox.Submit(WithId("b")).code(), absl::StatusCode::kResourceExhausted);
  inbox.Forget("a");
  inbox.Close();
  EXPECT_EQ(inbox.Submit(WithId("b")).code(), absl::StatusCode::kUnavailable);
}

TEST(InboxTest, TakeSleepsUntilMailOrWake) {
  Inbox inbox(4);
  std::thread poster([&inbox] {
    absl::SleepFor(absl::Milliseconds(20));
    ASSERT_TRUE(inbox.Submit(WithId("a")).ok());
  });
  EXPECT_EQ(inbox.Take(absl::Seconds(30)).submissions.size(), 1u);
  poster.join();
  std::thread waker([&inbox] { inbox.Wake(); });
  EXPECT_TRUE(inbox.Take(absl::Seconds(30)).submissions.empty());
  waker.join();
}

}  // namespace
}  // namespace retroinfer
