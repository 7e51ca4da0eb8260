#include "gpu_worker/device/staged_arrays.h"

#include <gtest/gtest.h>

#include <array>

#include "tests/support/backends.h"

namespace retroinfer {
namespace {

class StagedArraysTest : public testing::TestWithParam<test_support::BackendParam> {};

TEST_P(StagedArraysTest, CopiesAllArraysThereAndTheLeadingOnesBack) {
  const auto backend = GetParam().create();
  const StagedArrays arrays =
      StagedArrays::Create(*backend->device, std::array<size_t, 3>{12, 100, 8},
                           MemoryPurpose::kActivations)
          .value();
  EXPECT_EQ(arrays.Host<int32_t>(0).size(), 3u);
  EXPECT_EQ(arrays.On<int32_t>(1).size(), 25u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arrays.On<int32_t>(1).device_data()) % 64, 0u);
  arrays.Host<int32_t>(0)[2] = 5;
  arrays.Host<int32_t>(1)[24] = 6;
  arrays.Host<int64_t>(2)[0] = 7;
  ASSERT_TRUE(arrays.Upload(*backend->stream).ok());
  ASSERT_TRUE(backend->stream->Synchronize().ok());
  arrays.Host<int32_t>(0)[2] = arrays.Host<int32_t>(1)[24] = 0;
  arrays.Host<int64_t>(2)[0] = 0;
  ASSERT_TRUE(arrays.Download(*backend->stream, 2).ok());
  ASSERT_TRUE(backend->stream->Synchronize().ok());
  EXPECT_EQ(arrays.Host<int32_t>(0)[2], 5);
  EXPECT_EQ(arrays.Host<int32_t>(1)[24], 6);
  EXPECT_EQ(arrays.Host<int64_t>(2)[0], 0) << "not asked for";
}

INSTANTIATE_TEST_SUITE_P(Backends, StagedArraysTest,
                         testing::ValuesIn(test_support::AvailableBackends()),
                         test_support::BackendName);

}  // namespace
}  // namespace retroinfer
