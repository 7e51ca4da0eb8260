#include "gpu_worker/ops/cpu/cpu_features.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

namespace retroinfer::cpu {
namespace {

TEST(CpuFeaturesTest, AgreesWithTheSystem) {
  std::ifstream file("/proc/cpuinfo");
  std::ostringstream text;
  text << file.rdbuf();
  const std::string cpuinfo = text.str();
  EXPECT_EQ(HasAvx512Bf16(), cpuinfo.find(" avx512_bf16") != std::string::npos);
  if (cpuinfo.find(" amx_bf16") == std::string::npos) {
    EXPECT_FALSE(HasAmxBf16());
  }
  EXPECT_EQ(HasAmxBf16(), HasAmxBf16());
}

}  // namespace
}  // namespace retroinfer::cpu
