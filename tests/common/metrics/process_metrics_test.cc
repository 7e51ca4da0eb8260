#include "common/metrics/process_metrics.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <ctime>
#include <vector>

#include "common/shm/unique_fd.h"

namespace retroinfer::common {
namespace {

ProcessUsage Usage() {
  const auto usage = ReadProcessUsage();
  EXPECT_TRUE(usage.ok()) << usage.status();
  return usage.value_or(ProcessUsage());
}

TEST(ProcessMetricsTest, CountsDescriptors) {
  const double before = Usage().open_fds;
  EXPECT_GE(before, 3);
  std::vector<UniqueFd> fds;
  for (int i = 0; i < 5; ++i) fds.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(Usage().open_fds, before + 5);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(Usage().max_fds, static_cast<double>(limit.rlim_cur));
}

TEST(ProcessMetricsTest, MeasuresMemoryThatWasTouched) {
  constexpr size_t kBytes = size_t{64} << 20;
  const ProcessUsage before = Usage();
  const std::vector<std::byte> touched(kBytes, std::byte{1});
  const ProcessUsage after = Usage();
  EXPECT_GE(after.resident_bytes, before.resident_bytes + 0.9 * kBytes);
  EXPECT_GE(after.virtual_bytes, after.resident_bytes);
  EXPECT_EQ(touched.back(), std::byte{1});
}

TEST(ProcessMetricsTest, MeasuresTimeThatWasUsed) {
  const ProcessUsage before = Usage();
  const std::clock_t begun = std::clock();
  while (std::clock() - begun < CLOCKS_PER_SEC / 10) {
  }
  const ProcessUsage after = Usage();
  EXPECT_GE(after.cpu_seconds, before.cpu_seconds + 0.05) << "it counts in hundredths of a second";
  const auto now = static_cast<double>(std::time(nullptr));
  EXPECT_LE(after.start_time_seconds, now + 2);
  EXPECT_GE(after.start_time_seconds, now - 3600) << "no test of this project runs for an hour";
  EXPECT_EQ(after.start_time_seconds, before.start_time_seconds);
}

TEST(ProcessMetricsTest, ExportsTheStandardNames) {
  prometheus::Registry registry;
  ProcessMetrics metrics(registry);
  metrics.Update();
  double cpu_seconds = -1, resident_bytes = 0;
  for (const prometheus::MetricFamily& family : registry.Collect()) {
    if (family.name == "process_cpu_seconds_total") {
      EXPECT_EQ(family.type, prometheus::MetricType::Counter);
      cpu_seconds = family.metric.at(0).counter.value;
    }
    if (family.name == "process_resident_memory_bytes") {
      resident_bytes = family.metric.at(0).gauge.value;
    }
  }
  EXPECT_EQ(registry.Collect().size(), 6u);
  EXPECT_GE(cpu_seconds, 0);
  EXPECT_GT(resident_bytes, 0);
}

}  // namespace
}  // namespace retroinfer::common
