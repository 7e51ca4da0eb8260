#include <gtest/gtest.h>

#include "gpu_worker/assembly/compute_backend.h"

namespace retroinfer {
namespace {

TEST(CudaBackendTest, RefusesWhatAGpuDoesNotDo) {
  ServedEngineOptions options;
  options.compute_dtype = "f32";
  EXPECT_EQ(CreateCudaBackend(options, 0).status().code(), absl::StatusCode::kInvalidArgument);
  options.compute_dtype = "bf17";
  EXPECT_EQ(CreateCudaBackend(options, 0).status().code(), absl::StatusCode::kInvalidArgument);
  options.compute_dtype = "auto";
  EXPECT_EQ(CreateCudaBackend(options, 1000).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace retroinfer
