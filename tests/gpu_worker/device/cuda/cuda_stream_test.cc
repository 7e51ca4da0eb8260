#include "gpu_worker/device/cuda/cuda_stream.h"

#include <gtest/gtest.h>

namespace retroinfer {
namespace {

TEST(CudaStreamTest, EventsOrderStreams) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
  const auto first = CudaStream::Create(StreamKind::kCompute);
  const auto second = CudaStream::Create(StreamKind::kBackground);
  const auto event = CudaEvent::Create();
  ASSERT_TRUE(first.ok() && second.ok() && event.ok());
  EXPECT_NE((*first)->get(), (*second)->get());
  EXPECT_TRUE((*first)->Record(**event).ok());
  EXPECT_TRUE((*second)->Wait(**event).ok());
  EXPECT_TRUE((*second)->Synchronize().ok());
  EXPECT_EQ(cudaEventQuery((*event)->get()), cudaSuccess);
}

}  // namespace
}  // namespace retroinfer
