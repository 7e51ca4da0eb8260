#include "common/memory/available_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace retroinfer::common {
namespace {

class AvailableMemoryTest : public testing::Test {
 protected:
  AvailableMemoryTest() : root_(absl::StrCat(testing::TempDir(), "available_memory_test")) {
    std::filesystem::remove_all(root_);
    Write("/proc/meminfo", "MemTotal: 2000 kB\nMemFree: 10 kB\nMemAvailable:    1000 kB\n");
  }
  ~AvailableMemoryTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  std::string root_;
};

TEST_F(AvailableMemoryTest, IsWhatTheKernelSaysWithoutAGroup) {
  EXPECT_EQ(*AvailableMemoryBytes(root_), 1'024'000u);
}

TEST_F(AvailableMemoryTest, IsLimitedByTheTightestGroupOfVersion2) {
  Write("/proc/self/cgroup", "0::/pod/worker\n");
  Write("/sys/fs/cgroup/pod/worker/memory.max", "max\n");
  Write("/sys/fs/cgroup/pod/worker/memory.current", "5000\n");
  Write("/sys/fs/cgroup/pod/memory.max", "100000\n");
  Write("/sys/fs/cgroup/pod/memory.current", "70000\n");
  Write("/sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 20000\n");
  EXPECT_EQ(*AvailableMemoryBytes(root_), 50'000u);
  Write("/sys/fs/cgroup/pod/memory.current", "200000\n");
  EXPECT_EQ(*AvailableMemoryBytes(root_), 0u);
}

TEST_F(AvailableMemoryTest, FindsTheLimitOfAContainerAtTheRoot) {
  Write("/proc/self/cgroup", "9:cpu,cpuacct:/x\n4:memory:/docker/abc\nnonsense\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "300000\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "100000\n");
  EXPECT_EQ(*AvailableMemoryBytes(root_), 200'000u);
}

TEST_F(AvailableMemoryTest, NeedsMeminfo) {
  EXPECT_EQ(AvailableMemoryBytes(root_ + "/none").status().code(), absl::StatusCode::kNotFound);
}

TEST(RequireAvailableMemoryTest, NamesBothNumbers) {
  EXPECT_TRUE(RequireAvailableMemory(1, "a test").ok());
  const absl::Status status = RequireAvailableMemory(1ull << 60, "a test");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("1152921504606846976"), absl::string_view::npos);
}

}  // namespace
}  // namespace retroinfer::common
