#include "gpu_worker/device/cuda/gpu_names.h"

#include <gtest/gtest.h>

#include "gpu_worker/device/cuda/cuda_device.h"

namespace retroinfer::cuda {
namespace {

TEST(GpuNamesTest, AreThoseOfTheDevicesThatThereAre) {
  const std::vector<std::string> names = GpuNames();
  for (size_t i = 0; i < names.size(); ++i) {
    const auto device =
        CudaDevice::Create({.ordinal = static_cast<int>(i), .memory_utilization = 0.01});
    if (device.ok()) {
      EXPECT_EQ((*device)->info().name, names[i]);
    }
  }
  const auto beyond = CudaDevice::Create({.ordinal = static_cast<int>(names.size())});
  EXPECT_EQ(beyond.status().code(), absl::StatusCode::kFailedPrecondition) << beyond.status();
}

}  // namespace
}  // namespace retroinfer::cuda
