#include "client/serve/settings_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace retroinfer::client {
namespace {

using ::testing::HasSubstr;

absl::Status Check(const std::string& script, int signals = 0,
                   absl::Duration patience = absl::Minutes(2)) {
  const ServiceSpec spec = {"service", {"/bin/sh", "-c", script, "service"}, "unix:/x", {}};
  return CheckSettings(
      spec, [&] { return signals; }, patience);
}

TEST(CheckSettings, AsksTheProgramWithItsArguments) {
  EXPECT_TRUE(Check("exit 0").ok());
  EXPECT_TRUE(Check("[ \"$*\" = --check-settings ]").ok());
}

TEST(CheckSettings, TellsWhatTheProgramSaid) {
  const absl::Status refused = Check("echo 'service: --max-batch is odd' >&2; exit 2");
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(), "service: --max-batch is odd");
  const absl::Status failed = Check("echo 'service: no GPU'; exit 1");
  EXPECT_EQ(failed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(failed.message(), "service: no GPU");
  EXPECT_THAT(std::string(Check("kill -SEGV $$").message()), HasSubstr("service ended: signal 11"));
}

TEST(CheckSettings, WaitsForNoProgramThatHangs) {
  const absl::Status hung = Check("exec sleep 1000", 0, absl::Milliseconds(10));
  EXPECT_EQ(hung.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(hung.message()), HasSubstr("service has not checked"));
  EXPECT_TRUE(absl::IsCancelled(Check("exec sleep 1000", 1)));
}

TEST(CheckSettings, AProgramThatIsNotThereIsAnError) {
  const ServiceSpec spec = {"service", {"/no/such/program"}, "unix:/x", {}};
  EXPECT_TRUE(absl::IsNotFound(CheckSettings(spec, [] { return 0; })));
}

}  // namespace
}  // namespace retroinfer::client
