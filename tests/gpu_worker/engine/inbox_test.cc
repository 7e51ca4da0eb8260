#include "gpu_worker/engine/inbox.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "common/status/error_reason.h"

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
  EXPECT_EQ(common::ReasonOf(inbox.Submit(WithId("b"))).reason, "QUEUE_FULL");
  EXPECT_EQ(common::ReasonOf(inbox.Submit(WithId("a"))).reason, "REQUEST_ID_IN_USE")
      << "a retry does not help";
  inbox.Forget("a");
  inbox.Close();
  EXPECT_EQ(common::ReasonOf(inbox.Submit(WithId("b"))).reason, "DRAINING");
}

TEST(InboxTest, ALateAbortIsNotForTheNextRequestOfThatName) {
  Inbox inbox(4);
  ASSERT_TRUE(inbox.Submit(WithId("a")).ok());
  ASSERT_TRUE(inbox.Submit(WithId("b")).ok());
  inbox.Take(absl::ZeroDuration());
  EXPECT_TRUE(inbox.Abort("a"));
  EXPECT_TRUE(inbox.Abort("b"));
  inbox.Forget("a");
  ASSERT_TRUE(inbox.Submit(WithId("a")).ok());
  EXPECT_EQ(inbox.Take(absl::ZeroDuration()).aborts, std::vector<std::string>{"b"});
}

TEST(InboxTest, TellsOfWhatTheEngineHasNotTaken) {
  Inbox inbox(4);
  EXPECT_EQ(inbox.untaken().count, 0);
  EXPECT_EQ(inbox.untaken().oldest, absl::InfiniteFuture());
  const absl::Time now = absl::Now();
  for (const char* id : {"a", "b"}) {
    Submission submission = WithId(id);
    submission.submitted = now + absl::Seconds(*id - 'a');
    ASSERT_TRUE(inbox.Submit(std::move(submission)).ok());
  }
  EXPECT_EQ(inbox.untaken().count, 2);
  EXPECT_EQ(inbox.untaken().oldest, now);
  inbox.Take(absl::ZeroDuration());
  EXPECT_EQ(inbox.untaken().count, 0);
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
