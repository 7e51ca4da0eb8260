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
  Inbox inbox({.max_live = 4});
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
  Inbox inbox({.max_live = 4});
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
  Inbox inbox({.max_live = 1});
  ASSERT_TRUE(inbox.Submit(WithId("a")).ok());
  EXPECT_EQ(common::ReasonOf(inbox.Submit(WithId("b"))).reason, "QUEUE_FULL");
  EXPECT_EQ(common::ReasonOf(inbox.Submit(WithId("a"))).reason, "REQUEST_ID_IN_USE")
      << "a retry does not help";
  inbox.Forget("a");
  inbox.Close();
  EXPECT_EQ(common::ReasonOf(inbox.Submit(WithId("b"))).reason, "DRAINING");
}

Submission Of(std::string id, const std::shared_ptr<const common::Tenant>& tenant,
              size_t prompt_tokens) {
  Submission submission = WithId(std::move(id));
  submission.request.tenant = tenant;
  submission.request.prompt.resize(prompt_tokens);
  return submission;
}

TEST(InboxTest, ATenantsLimitsHoldForItAlone) {
  const auto tenant = [](const char* name) {
    return std::make_shared<const common::Tenant>(
        common::Tenant{.name = name, .max_requests = 2, .max_waiting_tokens = 100});
  };
  const auto a = tenant("a"), b = tenant("b");
  Inbox inbox({});
  ASSERT_TRUE(inbox.Submit(Of("1", a, 500)).ok()) << "one prompt may wait, however long it is";
  EXPECT_EQ(common::ReasonOf(inbox.Submit(Of("2", a, 1))).reason, "TENANT_WAITING_TOKENS_FULL");
  ASSERT_TRUE(inbox.Submit(Of("3", b, 60)).ok());
  inbox.PromptRead("1");
  ASSERT_TRUE(inbox.Submit(Of("2", a, 100)).ok());
  const absl::Status full = inbox.Submit(Of("4", a, 0));
  EXPECT_EQ(common::ReasonOf(full).reason, "TENANT_QUEUE_FULL");
  EXPECT_EQ(common::ReasonOf(full).metadata.at("tenant"), "a");
  EXPECT_TRUE(common::RetryDelayOf(full).has_value());
  inbox.Forget("1");
  EXPECT_TRUE(inbox.Submit(Of("4", a, 0)).ok());
  inbox.Forget("2");
  inbox.Forget("4");
  EXPECT_TRUE(inbox.Submit(Of("5", a, 200)).ok()) << "what ended while it waited counts no more";
}

TEST(InboxTest, AllTenantsTogetherMayLetOnlySoManyTokensWait) {
  Inbox inbox({.max_waiting_tokens = 1000});
  ASSERT_TRUE(inbox.Submit(Of("1", nullptr, 600)).ok());
  const absl::Status full = inbox.Submit(Of("2", nullptr, 401));
  EXPECT_EQ(common::ReasonOf(full).reason, "WAITING_TOKENS_FULL");
  EXPECT_EQ(common::ReasonOf(full).metadata.at("waiting_tokens"), "600");
  EXPECT_TRUE(inbox.Submit(Of("2", nullptr, 400)).ok());
  inbox.PromptRead("1");
  inbox.PromptRead("1");
  EXPECT_TRUE(inbox.Submit(Of("3", nullptr, 600)).ok());
  EXPECT_FALSE(inbox.Submit(Of("4", nullptr, 1)).ok()) << "a prompt is read once";
}

TEST(InboxTest, RefusesWhileTheWaitIsTooLongAndSaysWhenToComeBack) {
  Inbox inbox({.max_expected_wait = absl::Seconds(10)});
  inbox.SetExpectedWait(absl::Seconds(10));
  EXPECT_TRUE(inbox.Submit(WithId("1")).ok());
  inbox.SetExpectedWait(absl::Seconds(35));
  const absl::Status status = inbox.Submit(WithId("2"));
  EXPECT_EQ(common::ReasonOf(status).reason, "WAIT_TOO_LONG");
  EXPECT_EQ(common::RetryDelayOf(status), absl::Seconds(25));
  inbox.SetExpectedWait(absl::Seconds(1));
  EXPECT_TRUE(inbox.Submit(WithId("2")).ok());
}

TEST(InboxTest, ALateAbortIsNotForTheNextRequestOfThatName) {
  Inbox inbox({.max_live = 4});
  ASSERT_TRUE(inbox.Submit(WithId("a")).ok());
  ASSERT_TRUE(inbox.Submit(WithId("b")).ok());
  inbox.Take(absl::ZeroDuration());
  EXPECT_TRUE(inbox.Abort("a"));
  EXPECT_TRUE(inbox.Abort("b"));
  inbox.Forget("a");
  ASSERT_TRUE(inbox.Submit(WithId("a")).ok());
  EXPECT_EQ(inbox.Take(absl::ZeroDuration()).aborts, std::vector<std::string>{"b"});
}

Inbox::Uncounted UncountedIn(const Inbox& inbox) {
  Inbox::Uncounted found;
  inbox.ReadUncounted([&](const Inbox::Uncounted& uncounted) { found = uncounted; });
  return found;
}

// Also of what was taken, until the engine's statistics have it.
TEST(InboxTest, TellsOfWhatStatisticsDoNotHave) {
  Inbox inbox({.max_live = 4});
  EXPECT_EQ(UncountedIn(inbox).count, 0);
  EXPECT_EQ(UncountedIn(inbox).oldest, absl::InfiniteFuture());
  const absl::Time now = absl::Now();
  const auto submit = [&](const char* id) {
    Submission submission = WithId(id);
    submission.submitted = now + absl::Seconds(*id - 'a');
    ASSERT_TRUE(inbox.Submit(std::move(submission)).ok());
  };
  submit("a");
  submit("b");
  EXPECT_EQ(UncountedIn(inbox).count, 2);
  EXPECT_EQ(UncountedIn(inbox).oldest, now);
  inbox.Take(absl::ZeroDuration());
  submit("c");
  EXPECT_EQ(UncountedIn(inbox).count, 3);
  EXPECT_EQ(UncountedIn(inbox).oldest, now);
  inbox.Take(absl::ZeroDuration());
  bool published = false;
  inbox.Publish([&] { published = true; });
  EXPECT_TRUE(published);
  EXPECT_EQ(UncountedIn(inbox).count, 0);
  EXPECT_EQ(UncountedIn(inbox).oldest, absl::InfiniteFuture());
}

TEST(InboxTest, TakeSleepsUntilMailOrWake) {
  Inbox inbox({.max_live = 4});
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
