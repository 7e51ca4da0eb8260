#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "gpu_worker/assembly/compute_backend.h"

namespace retroinfer {
namespace {

TEST(NoCudaBackendTest, SaysHowToGetOne) {
  const absl::Status status = CreateCudaBackend(ServedEngineOptions(), 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("--device cpu"));
}

}  // namespace
}  // namespace retroinfer
