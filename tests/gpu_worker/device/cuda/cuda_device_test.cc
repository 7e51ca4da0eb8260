#include "gpu_worker/device/cuda/cuda_device.h"

#include <gtest/gtest.h>

#include <vector>

namespace retroinfer {
namespace {

bool HasGpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

TEST(CudaDeviceTest, RefusesSettingsThatMakeNoSense) {
  for (const double utilization : {0.0, -1.0, 1.01}) {
    EXPECT_EQ(CudaDevice::Create({.memory_utilization = utilization}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(CudaDeviceTest, ADeviceThatIsNotThereIsAFailedPrecondition) {
  EXPECT_EQ(CudaDevice::Create({.ordinal = 1000}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  if (!HasGpu()) {
    EXPECT_EQ(CudaDevice::Create({}).status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST(CudaDeviceTest, MemoryIsCountedByPurposeAndLimited) {
  if (!HasGpu()) GTEST_SKIP() << "no GPU";
  auto device = CudaDevice::Create({.memory_utilization = 0.1});
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_GE((*device)->compute_capability(), 80);
  auto buffer = (*device)->Allocate(1000, MemoryPurpose::kMetaIndex);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_EQ((*device)->allocated_bytes(MemoryPurpose::kMetaIndex), 1000u);
  EXPECT_EQ(
      (*device)->Allocate((*device)->info().memory_bytes, MemoryPurpose::kWeights).status().code(),
      absl::StatusCode::kResourceExhausted);
  buffer = DeviceBuffer();
  EXPECT_EQ((*device)->allocated_bytes(MemoryPurpose::kMetaIndex), 0u);
}

TEST(CudaDeviceTest, HostMemoryIsMappedNoLongerThanItsDevice) {
  if (!HasGpu()) GTEST_SKIP() << "no GPU";
  std::vector<std::byte> host(1 << 20);
  for (int i = 0; i < 2; ++i) {  // mapped twice would be refused
    auto device = CudaDevice::Create({.memory_utilization = 0.1});
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_TRUE((*device)->MapHost(host).ok());
    EXPECT_FALSE((*device)->MapHost(host).ok());
  }
}

}  // namespace
}  // namespace retroinfer
