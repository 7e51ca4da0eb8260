#include "gpu_worker/device/cpu/cpu_device.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <vector>

namespace retroinfer {
namespace {

// Resident memory of this process, in bytes.
size_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  size_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * 4096;
}

TEST(CpuDeviceTest, DescribesItself) {
  const CpuDevice device({.num_threads = 3, .memory_limit_bytes = 12345});
  EXPECT_EQ(device.info().backend, "cpu");
  EXPECT_FALSE(device.info().name.empty());
  EXPECT_EQ(device.info().num_processors, 3);
  EXPECT_EQ(device.info().memory_bytes, 12345u);
  EXPECT_GE(CpuDevice({}).info().num_processors, 1);
}

TEST(CpuDeviceTest, AlignsAndCountsByPurpose) {
  CpuDevice device({.num_threads = 1});
  for (const size_t bytes : {size_t{1}, size_t{300}, size_t{5} << 20}) {
    const DeviceBuffer buffer = *device.Allocate(bytes, MemoryPurpose::kDenseKv);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.bytes().device_data()) % 256, 0u);
    EXPECT_EQ(device.allocated_bytes(MemoryPurpose::kDenseKv), bytes);
    EXPECT_EQ(device.allocated_bytes(MemoryPurpose::kWeights), 0u);
    std::memset(buffer.bytes().device_data(), 1, bytes);
  }
  EXPECT_EQ(device.allocated_bytes(MemoryPurpose::kDenseKv), 0u);
  EXPECT_EQ(device.Allocate(0, MemoryPurpose::kWeights)->size_bytes(), 0u);
}

TEST(CpuDeviceTest, UntouchedMemoryCostsNothing) {
  CpuDevice device({.num_threads = 1, .memory_limit_bytes = size_t{1} << 40});
  const size_t before = ResidentBytes();
  const DeviceBuffer buffer = *device.Allocate(size_t{8} << 30, MemoryPurpose::kDenseKv);
  buffer.bytes().device_data()[size_t{4} << 30] = std::byte{1};
  EXPECT_LT(ResidentBytes(), before + (size_t{64} << 20));
}

TEST(CpuDeviceTest, RefusesMoreThanItsLimitAndSaysTheNumbers) {
  CpuDevice device({.num_threads = 1, .memory_limit_bytes = 1000});
  const DeviceBuffer first = *device.Allocate(600, MemoryPurpose::kWeights);
  const absl::Status status = device.Allocate(401, MemoryPurpose::kDenseKv).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  for (const char* part : {"dense_kv", "401", "600", "1000"}) {
    EXPECT_NE(status.ToString().find(part), std::string::npos) << part;
  }
  EXPECT_EQ(device.allocated_bytes(MemoryPurpose::kDenseKv), 0u);
  EXPECT_TRUE(device.Allocate(400, MemoryPurpose::kDenseKv).ok());
}

TEST(CpuDeviceTest, CopiesThroughAStream) {
  CpuDevice device({.num_threads = 1});
  for (const StreamKind kind : {StreamKind::kCompute, StreamKind::kBackground}) {
    const auto stream = *device.CreateStream(kind);
    const std::vector<uint32_t> host = {1, 2, 3, 4};
    std::vector<uint32_t> back(4);
    const DeviceBuffer buffer = *device.Allocate(16, MemoryPurpose::kActivations);
    ASSERT_TRUE(device.Upload(*stream, std::as_bytes(std::span(host)), buffer.bytes()).ok());
    ASSERT_TRUE(
        device.Download(*stream, buffer.bytes(), std::as_writable_bytes(std::span(back))).ok());
    ASSERT_TRUE(stream->Synchronize().ok());
    EXPECT_EQ(back, host);
    EXPECT_EQ(
        device.Upload(*stream, std::as_bytes(std::span(host)).first(8), buffer.bytes()).code(),
        absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(device.Download(*stream, buffer.bytes(), {}).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(CpuDeviceTest, HostMemoryIsDeviceMemory) {
  CpuDevice device({.num_threads = 1});
  std::vector<std::byte> host(100);
  const auto mapped = device.MapHost(host);
  ASSERT_TRUE(mapped.ok());
  EXPECT_EQ(mapped->device_data(), host.data());
  EXPECT_EQ(mapped->size(), 100u);
  device.UnmapHost(host);
}

}  // namespace
}  // namespace retroinfer
