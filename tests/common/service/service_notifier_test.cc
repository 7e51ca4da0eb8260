#include "common/service/service_notifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/support/notify_listener.h"

namespace retroinfer::common {
namespace {

namespace fs = std::filesystem;
using test_support::NotifyListener;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr absl::Duration kSoon = absl::Minutes(1);  // for what must come

class ServiceNotifierTest : public ::testing::Test {
 protected:
  ServiceNotifierTest() {
    std::string pattern = (fs::temp_directory_path() / "retroinfer-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~ServiceNotifierTest() override {
    fs::remove_all(folder_);
    for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) ::unsetenv(name);
  }

  fs::path folder_;
};

TEST_F(ServiceNotifierTest, SaysWhatHappensInTheProtocolsWords) {
  const NotifyListener manager((folder_ / "notify").string());
  ASSERT_TRUE(manager.bound());
  auto notifier = ServiceNotifier::Create(manager.address(), absl::ZeroDuration());
  ASSERT_TRUE(notifier.ok()) << notifier.status();
  EXPECT_FALSE(notifier->is_silent());
  notifier->Progress("loading 40 %", absl::Seconds(90));
  EXPECT_EQ(manager.Next(kSoon), "STATUS=loading 40 %\nEXTEND_TIMEOUT_USEC=90000000");
  notifier->Ready("serving");
  EXPECT_EQ(manager.Next(kSoon), "READY=1\nSTATUS=serving");
  notifier->Status("two\nlines");
  EXPECT_EQ(manager.Next(kSoon), "STATUS=two lines") << "no further statement";
  notifier->Reloading();
  EXPECT_THAT(manager.Next(kSoon), MatchesRegex("RELOADING=1\nMONOTONIC_USEC=[0-9]+"));
  notifier->Stopping("draining");
  EXPECT_EQ(manager.Next(kSoon), "STOPPING=1\nSTATUS=draining");
}

TEST_F(ServiceNotifierTest, SpeaksToTheAbstractNamespace) {
  const NotifyListener manager(absl::StrCat("@retroinfer-test/", folder_.string()));
  ASSERT_TRUE(manager.bound());
  auto notifier = ServiceNotifier::Create(manager.address(), absl::ZeroDuration());
  ASSERT_TRUE(notifier.ok()) << notifier.status();
  notifier->Ready("serving");
  EXPECT_THAT(manager.Next(kSoon), HasSubstr("READY=1"));
}

TEST_F(ServiceNotifierTest, FeedsTheWatchdogAFewTimesAPeriodAndNotMore) {
  const NotifyListener manager((folder_ / "notify").string());
  constexpr absl::Duration kPeriod = absl::Milliseconds(400);
  auto notifier = ServiceNotifier::Create(manager.address(), kPeriod);
  ASSERT_TRUE(notifier.ok());
  const absl::Time begin = absl::Now();
  int feeds = 0;
  absl::Time end = begin;
  while (feeds < 8) {
    notifier->Feed();
    end = absl::Now();
    feeds += manager.Next(absl::Milliseconds(1)).empty() ? 0 : 1;
  }
  // Eight of them are seven quarters of a period apart.
  EXPECT_GE(end - begin, kPeriod / 4 * 7 - absl::Milliseconds(5));
}

TEST_F(ServiceNotifierTest, NobodyIsFedWhereNobodyWatches) {
  const NotifyListener manager((folder_ / "notify").string());
  auto notifier = ServiceNotifier::Create(manager.address(), absl::ZeroDuration());
  ASSERT_TRUE(notifier.ok());
  notifier->Feed();
  notifier->Status("after");
  EXPECT_EQ(manager.Next(kSoon), "STATUS=after");
}

// A manager that is gone, or that has not read for long, must not hold up the loop that feeds it.
TEST_F(ServiceNotifierTest, AManagerThatDoesNotReadHoldsNobodyUp) {
  const NotifyListener manager((folder_ / "notify").string());
  auto notifier = ServiceNotifier::Create(manager.address(), absl::Nanoseconds(4));
  ASSERT_TRUE(notifier.ok());
  for (int i = 0; i < 100'000; ++i) notifier->Feed();  // no queue is that long
  int heard = 0;
  while (!manager.Next(absl::ZeroDuration()).empty()) ++heard;
  EXPECT_GT(heard, 0);
  EXPECT_LT(heard, 100'000);
  notifier->Feed();
  EXPECT_EQ(manager.Next(kSoon), "WATCHDOG=1") << "it is fed again once it reads";
  fs::remove(manager.address());
  notifier->Ready("nobody hears this");
}

TEST_F(ServiceNotifierTest, TakesTheEnvironmentAndLeavesNothingToChildren) {
  EXPECT_TRUE(ServiceNotifier::FromEnvironment().is_silent());
  const NotifyListener manager((folder_ / "notify").string());
  ::setenv("NOTIFY_SOCKET", manager.address().c_str(), 1);
  ::setenv("WATCHDOG_USEC", "20000000", 1);
  ::setenv("WATCHDOG_PID", std::to_string(::getpid()).c_str(), 1);
  const ServiceNotifier notifier = ServiceNotifier::FromEnvironment();
  EXPECT_EQ(notifier.watchdog_period(), absl::Seconds(20));
  for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) {
    EXPECT_EQ(::getenv(name), nullptr) << name;
  }
  notifier.Ready("serving");
  EXPECT_THAT(manager.Next(kSoon), HasSubstr("READY=1"));
}

TEST_F(ServiceNotifierTest, AnotherProcessesWatchdogIsNotFed) {
  const NotifyListener manager((folder_ / "notify").string());
  ::setenv("NOTIFY_SOCKET", manager.address().c_str(), 1);
  ::setenv("WATCHDOG_USEC", "20000000", 1);
  ::setenv("WATCHDOG_PID", "1", 1);
  const ServiceNotifier notifier = ServiceNotifier::FromEnvironment();
  EXPECT_FALSE(notifier.is_silent());
  EXPECT_EQ(notifier.watchdog_period(), absl::ZeroDuration());
}

TEST_F(ServiceNotifierTest, AddressesOfOtherKindsAreRefused) {
  for (const std::string& address : {std::string(""), std::string("@"), std::string("relative"),
                                     std::string("vsock:2:1234"), "/" + std::string(200, 'x')}) {
    EXPECT_EQ(ServiceNotifier::Create(address, absl::ZeroDuration()).status().code(),
              absl::StatusCode::kInvalidArgument)
        << address;
  }
  ::setenv("NOTIFY_SOCKET", "nonsense", 1);
  ::setenv("WATCHDOG_USEC", "-5", 1);
  EXPECT_TRUE(ServiceNotifier::FromEnvironment().is_silent());
}

}  // namespace
}  // namespace retroinfer::common
