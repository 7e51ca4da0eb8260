#include "gpu_worker/device/cuda/cuda_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace retroinfer {
namespace {

using ::testing::HasSubstr;

TEST(CudaStatusTest, SaysWhatFailedAndWhoseFaultItIs) {
  EXPECT_TRUE(CudaStatus(cudaSuccess, "nothing").ok());
  const absl::Status memory = CudaStatus(cudaErrorMemoryAllocation, "making room");
  EXPECT_EQ(memory.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(memory.message()), HasSubstr("making room: cudaErrorMemoryAllocation"));
  EXPECT_EQ(CudaStatus(cudaErrorNoDevice, "looking").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CudaStatus(cudaErrorInsufficientDriver, "looking").code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CudaStatus(cudaErrorInvalidValue, "calling").code(), absl::StatusCode::kInternal);
}

TEST(CudaStatusDeathTest, AnErrorThatSpoilsTheContextEndsTheProcess) {
  EXPECT_EXIT((void)CudaStatus(cudaErrorIllegalAddress, "a kernel"),
              testing::ExitedWithCode(EXIT_FAILURE), "");
}

}  // namespace
}  // namespace retroinfer
