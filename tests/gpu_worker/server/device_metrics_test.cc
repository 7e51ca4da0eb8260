#include "gpu_worker/server/device_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu_worker/device/cpu/cpu_device.h"

namespace retroinfer {
namespace {

TEST(DeviceMetrics, TellsTheMemoryInUseAtEachScrape) {
  common::Metrics metrics("gpu_worker", "1", "r", "cpu");
  CpuDevice device(CpuDeviceOptions{.num_threads = 1});
  {
    const DeviceMetrics exported(device, metrics);
    EXPECT_THAT(metrics.Render(), testing::HasSubstr("retroinfer_device_memory_in_use_bytes 0"));
    const auto buffer = device.Allocate(4096, MemoryPurpose::kActivations);
    ASSERT_TRUE(buffer.ok());
    EXPECT_THAT(metrics.Render(), testing::HasSubstr("retroinfer_device_memory_in_use_bytes 4096"));
  }
  EXPECT_THAT(metrics.Render(), testing::HasSubstr("retroinfer_device_memory_in_use_bytes 4096"))
      << "nobody asks any more";
}

}  // namespace
}  // namespace retroinfer
