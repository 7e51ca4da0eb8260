#include "gpu_worker/device/cuda/cuda_graph.h"

#include <gtest/gtest.h>

namespace retroinfer {
namespace {

TEST(CudaGraphTest, AFailureWhileRecordingLeavesTheStreamUsable) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
  const auto stream = CudaStream::Create(StreamKind::kCompute);
  ASSERT_TRUE(stream.ok());
  const auto failed =
      CudaGraph::Capture(**stream, [] { return absl::InvalidArgumentError("not this way"); });
  EXPECT_EQ(failed.status().message(), "not this way");
  const auto graph = CudaGraph::Capture(**stream, [] { return absl::OkStatus(); });
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(cudaGraphLaunch((*graph)->get(), (*stream)->get()), cudaSuccess);
  EXPECT_TRUE((*stream)->Synchronize().ok());
}

}  // namespace
}  // namespace retroinfer
