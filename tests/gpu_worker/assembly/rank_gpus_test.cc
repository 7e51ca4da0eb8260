#include "gpu_worker/assembly/rank_gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace retroinfer {
namespace {

using testing::AllOf;
using testing::HasSubstr;

ServedEngineOptions Options(const std::string& device, int num_ranks) {
  ServedEngineOptions options;
  options.device = device;
  options.num_ranks = num_ranks;
  return options;
}

const std::vector<std::string> kFour = {"H100", "H100", "A100", "H100"};

std::string WhyNot(const ServedEngineOptions& options, const std::vector<std::string>& gpus) {
  const absl::Status status = CheckGpusOfRanks(options, gpus);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  return std::string(status.message());
}

TEST(GpuOfRankTest, IsTheNextOneOrTheOneThatIsNamed) {
  ServedEngineOptions options = Options("auto", 2);
  options.rank = 1;
  EXPECT_EQ(GpuOfRank(options).value(), 1);
  options.device = "cuda";
  EXPECT_EQ(GpuOfRank(options).value(), 1);
  options.device = "cuda:2";
  EXPECT_EQ(GpuOfRank(options).value(), 3);
  options.device = "cuda:3,0";
  EXPECT_EQ(GpuOfRank(options).value(), 0);
  for (const char* const wrong : {"cuda:", "cuda:1,1", "cuda:x", "cuda:1,", "cuda:0,1,2"}) {
    options.device = wrong;
    EXPECT_EQ(GpuOfRank(options).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
}

TEST(CheckGpusOfRanksTest, EachNeedsOneOfItsOwn) {
  EXPECT_TRUE(CheckGpusOfRanks(Options("cuda", 2), kFour).ok());
  EXPECT_TRUE(CheckGpusOfRanks(Options("auto", 2), kFour).ok());
  EXPECT_THAT(WhyNot(Options("auto", 2), {"H100"}),
              AllOf(HasSubstr("--tensor-parallel 2: rank 1 would compute on GPU 1"),
                    HasSubstr("the GPUs of this machine are 0 (H100). Use fewer ranks")));
  EXPECT_THAT(WhyNot(Options("cuda:3", 2), kFour), HasSubstr("rank 1 would compute on GPU 4"));
  EXPECT_THAT(WhyNot(Options("cuda", 2), {}), HasSubstr("machine are none"));
}

TEST(CheckGpusOfRanksTest, AllNeedOnesOfOneKind) {
  EXPECT_THAT(WhyNot(Options("cuda", 4), kFour),
              AllOf(HasSubstr("rank 2 would compute on GPU 2, another kind than rank 0's"),
                    HasSubstr("1 (H100), 2 (A100)"), HasSubstr("--device cuda:N,M")));
  EXPECT_TRUE(CheckGpusOfRanks(Options("cuda:0,1,3", 3), kFour).ok());
}

TEST(CheckGpusOfRanksTest, TheCpuIsOneForAll) {
  EXPECT_TRUE(CheckGpusOfRanks(Options("cpu", 4), {"H100"}).ok());
  EXPECT_TRUE(CheckGpusOfRanks(Options("auto", 4), {}).ok());
}

}  // namespace
}  // namespace retroinfer
