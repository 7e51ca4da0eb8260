#include "gpu_worker/assembly/gpu_nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using ::testing::HasSubstr;

TEST(FindGpuNode, TakesTheFilesOfGpusAndNoneOfTheDriver) {
  const test_support::TempFolder folder;
  const std::filesystem::path dev = folder.path();
  EXPECT_FALSE(FindGpuNode(dev / "none").has_value());
  for (const char* name : {"nvidiactl", "nvidia-uvm", "nvidia-modeset", "nvidia", "null"}) {
    std::ofstream(dev / name) << "x";
  }
  EXPECT_FALSE(FindGpuNode(dev).has_value());
  std::ofstream(dev / "nvidia1") << "x";
  std::ofstream(dev / "nvidia0") << "x";
  EXPECT_EQ(FindGpuNode(dev), (dev / "nvidia0").string());
}

TEST(MayComputeOnCpu, UnlessAGpuLiesIdle) {
  const absl::Status why = absl::FailedPreconditionError("the driver is too old");
  EXPECT_TRUE(MayComputeOnCpu(why, std::nullopt, nullptr).ok());
  const absl::Status refused = MayComputeOnCpu(why, "/dev/nvidia0", nullptr);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("/dev/nvidia0"), HasSubstr("the driver is too old"),
                    HasSubstr("--device cpu")));
  EXPECT_FALSE(MayComputeOnCpu(why, "/dev/nvidia0", "0").ok());
}

TEST(MayComputeOnCpu, IfGpusAreHiddenOnPurpose) {
  const absl::Status why = absl::FailedPreconditionError("no device");
  for (const char* hides : {"", "-1", "NoDevFiles"}) {
    EXPECT_TRUE(MayComputeOnCpu(why, "/dev/nvidia0", hides).ok()) << hides;
  }
}

}  // namespace
}  // namespace retroinfer
