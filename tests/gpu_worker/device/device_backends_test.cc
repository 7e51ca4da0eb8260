// What every backend's device does alike: copies, events and recorded work.
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "gpu_worker/device/device.h"
#include "tests/support/backends.h"

namespace retroinfer {
namespace {

class DeviceBackendsTest : public testing::TestWithParam<test_support::BackendParam> {
 protected:
  std::unique_ptr<test_support::Backend> backend_ = GetParam().create();
  Device& device_ = *backend_->device;
  Stream& stream_ = *backend_->stream;
};

TEST_P(DeviceBackendsTest, HostMemoryIsZeroedAlignedAndCopiedBothWays) {
  const HostBuffer host = device_.AllocateHost(4000).value();
  ASSERT_EQ(host.size_bytes(), 4000u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(host.bytes().data()) % 256, 0u);
  for (const uint32_t word : host.as<uint32_t>()) ASSERT_EQ(word, 0u);
  std::iota(host.as<uint32_t>().begin(), host.as<uint32_t>().end(), 7u);
  const DeviceBuffer there = device_.Allocate(4000, MemoryPurpose::kActivations).value();
  const HostBuffer back = device_.AllocateHost(4000).value();
  ASSERT_TRUE(device_.Upload(stream_, host.bytes(), there.bytes()).ok());
  ASSERT_TRUE(device_.Download(stream_, there.bytes(), back.bytes()).ok());
  const auto done = device_.CreateEvent().value();
  ASSERT_TRUE(stream_.Record(*done).ok());
  ASSERT_TRUE(device_.Synchronize(*done).ok());
  EXPECT_TRUE(device_.IsDone(*done).value());
  EXPECT_EQ(back.as<uint32_t>().back(), 7u + 999);
  EXPECT_EQ(device_.AllocateHost(0).value().size_bytes(), 0u);
}

TEST_P(DeviceBackendsTest, MemoryInUseHasWhatWasAllocated) {
  constexpr size_t kBytes = size_t{64} << 20;
  const size_t before = device_.MemoryInUse().value();
  const DeviceBuffer buffer = device_.Allocate(kBytes, MemoryPurpose::kActivations).value();
  EXPECT_GE(device_.MemoryInUse().value(), before + kBytes);
}

TEST_P(DeviceBackendsTest, RecordedWorkReadsWhatMemoryHoldsWhenItRuns) {
  if (!device_.can_capture()) GTEST_SKIP() << "this backend records no work";
  const HostBuffer in = device_.AllocateHost(8).value(), out = device_.AllocateHost(8).value();
  const DeviceBuffer there = device_.Allocate(8, MemoryPurpose::kActivations).value();
  const auto beside = device_.CreateStream(StreamKind::kCompute).value();
  const auto forked = device_.CreateEvent().value(), joined = device_.CreateEvent().value();
  const auto graph = device_.Capture(stream_, [&]() -> absl::Status {
    EXPECT_TRUE(device_.Upload(stream_, in.bytes(), there.bytes()).ok());
    EXPECT_TRUE(stream_.Record(*forked).ok());
    EXPECT_TRUE(beside->Wait(*forked).ok());
    EXPECT_TRUE(device_.Download(*beside, there.bytes(), out.bytes()).ok());
    EXPECT_TRUE(beside->Record(*joined).ok());
    return stream_.Wait(*joined);
  });
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (const uint64_t value : {3u, 4u}) {
    in.as<uint64_t>()[0] = value;
    EXPECT_NE(out.as<uint64_t>()[0], value) << "recording is not running";
    ASSERT_TRUE(device_.Launch(stream_, **graph).ok());
    ASSERT_TRUE(stream_.Synchronize().ok());
    EXPECT_EQ(out.as<uint64_t>()[0], value);
  }
}

TEST_P(DeviceBackendsTest, ARecordingThatFailsLeavesTheStreamUsable) {
  const auto graph =
      device_.Capture(stream_, [] { return absl::InternalError("what was enqueued"); });
  EXPECT_EQ(graph.status().code(),
            device_.can_capture() ? absl::StatusCode::kInternal : absl::StatusCode::kUnimplemented);
  const HostBuffer host = device_.AllocateHost(8).value();
  const DeviceBuffer there = device_.Allocate(8, MemoryPurpose::kActivations).value();
  EXPECT_TRUE(device_.Upload(stream_, host.bytes(), there.bytes()).ok());
  EXPECT_TRUE(stream_.Synchronize().ok());
}

INSTANTIATE_TEST_SUITE_P(Backends, DeviceBackendsTest,
                         testing::ValuesIn(test_support::AvailableBackends()),
                         test_support::BackendName);

}  // namespace
}  // namespace retroinfer
