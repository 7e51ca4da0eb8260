#include "client/serve/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "absl/time/clock.h"

namespace retroinfer::client {
namespace {

using ::testing::HasSubstr;

TEST(RestartDelay, DoublesUntilAProcessHasLivedLong) {
  RestartDelay delay;
  const absl::Time now = absl::Now();
  EXPECT_EQ(delay.Next(now, now), absl::Milliseconds(500));
  EXPECT_EQ(delay.Next(now, now), absl::Seconds(1));
  EXPECT_EQ(delay.Next(now, now), absl::Seconds(2));
  for (int i = 0; i < 10; ++i) delay.Next(now, now);
  EXPECT_EQ(delay.Next(now, now), absl::Seconds(30));
  EXPECT_EQ(delay.Next(now - absl::Minutes(2), now), absl::Milliseconds(500));
}

void Ignore(Supervisor::Severity, const std::string&) {}

ServiceSpec Spec(const std::string& command) {
  return {"service", {"/bin/sh", "-c", command}, "unix:/no/such/socket", absl::Seconds(5)};
}

TEST(Supervisor, AServiceThatEndsIsAnErrorAtTheStart) {
  Supervisor supervisor(
      {Spec("exit 3")}, [] { return 0; }, Ignore);
  const absl::Status status = supervisor.Start();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("exit code 3"));
  supervisor.Stop();
}

TEST(Supervisor, AServiceThatRefusesItsSettingsIsAnErrorOfItsOwn) {
  Supervisor supervisor(
      {Spec("exit 2")}, [] { return 0; }, Ignore);
  EXPECT_EQ(supervisor.Start().code(), absl::StatusCode::kInvalidArgument);
  supervisor.Stop();
}

TEST(Supervisor, AProgramThatIsNotThereIsAnError) {
  Supervisor supervisor(
      {{"service", {"/no/such/program"}, "unix:/x", absl::Seconds(5)}}, [] { return 0; }, Ignore);
  EXPECT_EQ(supervisor.Start().code(), absl::StatusCode::kNotFound);
  supervisor.Stop();
}

TEST(Supervisor, ASignalEndsTheWaitForAService) {
  int asked = 0;
  Supervisor supervisor(
      {Spec("exec sleep 100")}, [&] { return ++asked > 2 ? 1 : 0; }, Ignore);
  EXPECT_EQ(supervisor.Start().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(supervisor.Watch().ok());
  supervisor.Stop();
}

}  // namespace
}  // namespace retroinfer::client
