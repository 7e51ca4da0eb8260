#include "gpu_worker/device/device.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

#include "gpu_worker/device/cpu/cpu_device.h"

namespace retroinfer {
namespace {

TEST(MemoryPurposeTest, NamesAreDistinct) {
  std::set<std::string> names;
  for (int i = 0; i < static_cast<int>(MemoryPurpose::kCount); ++i) {
    names.insert(std::string(MemoryPurposeName(static_cast<MemoryPurpose>(i))));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(MemoryPurpose::kCount));
  EXPECT_EQ(names.count("unknown"), 0u);
}

TEST(DeviceBufferTest, FreesOnceHoweverItIsMoved) {
  CpuDevice device({.num_threads = 1});
  {
    DeviceBuffer a = *device.Allocate(1000, MemoryPurpose::kWeights);
    DeviceBuffer b = *device.Allocate(500, MemoryPurpose::kWeights);
    EXPECT_EQ(device.allocated_bytes(MemoryPurpose::kWeights), 1500u);
    a = std::move(b);
    EXPECT_EQ(a.size_bytes(), 500u);
    EXPECT_EQ(device.allocated_bytes(MemoryPurpose::kWeights), 500u);
    DeviceBuffer c(std::move(a));
    EXPECT_EQ(c.as<double>().size(), 62u);
    DeviceBuffer& same = c;
    c = std::move(same);
    EXPECT_EQ(c.size_bytes(), 500u);
  }
  EXPECT_EQ(device.allocated_bytes(MemoryPurpose::kWeights), 0u);
}

}  // namespace
}  // namespace retroinfer
