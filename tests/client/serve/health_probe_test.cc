#include "client/serve/health_probe.h"

#include <gtest/gtest.h>

#include "tests/support/worker_harness.h"

namespace retroinfer::client {
namespace {

TEST(HealthProbe, FollowsTheServer) {
  WorkerHarness::Settings settings;
  settings.serve = false;
  WorkerHarness worker(settings);
  HealthProbe probe(worker.address());
  EXPECT_FALSE(probe.IsServing(absl::Seconds(5)));
  worker.Serve();
  bool serving = false;
  for (int i = 0; i < 500 && !serving; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
    serving = probe.IsServing(absl::Seconds(5));
  }
  EXPECT_TRUE(serving);
}

TEST(HealthProbe, NobodyIsNotServing) {
  HealthProbe probe("unix:/no/such/socket");
  const absl::Time begin = absl::Now();
  EXPECT_FALSE(probe.IsServing(absl::Milliseconds(100)));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
}

}  // namespace
}  // namespace retroinfer::client
