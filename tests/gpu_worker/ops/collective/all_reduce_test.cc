// Over the CPU's ranks; those of GPUs are in cuda/collective_test.cc.
#include "gpu_worker/ops/collective/all_reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gpu_worker/ops/collective/rank_matrices.h"
#include "tests/support/device_data.h"
#include "tests/support/rank_threads.h"

namespace retroinfer {
namespace {

using test_support::Backend;
using test_support::DeviceData;
using test_support::DrawnFor;
using test_support::RankThreads;
using test_support::SumOfRanks;
using ::testing::HasSubstr;

struct Case {
  int num_ranks;
  int64_t rows;
  int64_t cols;
};
// A turn has 1024 numbers of f32: less, as many, one more, and many times that.
constexpr Case kCases[] = {{1, 3, 5},  {2, 1, 1},   {2, 1, 1024}, {2, 5, 205},
                           {3, 7, 31}, {4, 64, 33}, {5, 2, 3000}, {2, 0, 8}};

class AllReduceTest : public ::testing::TestWithParam<DType> {
 protected:
  // The result on each rank.
  std::vector<std::vector<float>> Sum(const Case& c, bool accumulate, bool in_place) {
    RankThreads ranks(c.num_ranks);
    std::vector<std::vector<float>> results(static_cast<size_t>(c.num_ranks));
    ranks.Run([&](int rank) {
      Backend& backend = ranks.backend(rank);
      DeviceData data(backend);
      const int64_t elements = c.rows * c.cols;
      const auto upload = [&](int of) {
        return data.UploadMatrix(DrawnFor(of, elements, GetParam()), c.rows, c.cols, GetParam());
      };
      const DeviceData::Matrix in = upload(rank);
      const DeviceData::Matrix out = upload(accumulate ? -1 : 99);
      const DeviceData::Matrix& result = in_place ? in : out;
      const absl::Status status = backend.ops->collective().AllReduce(
          *backend.stream, {.in = in.view, .out = result.view, .accumulate = accumulate});
      EXPECT_TRUE(status.ok()) << status;
      results[static_cast<size_t>(rank)] = data.Values(result);
    });
    return results;
  }
};

TEST_P(AllReduceTest, IsTheSumInTheOrderOfRanksOnAll) {
  for (const Case& c : kCases) {
    for (const bool accumulate : {false, true}) {
      const auto want = SumOfRanks(c.num_ranks, c.rows * c.cols, GetParam(), accumulate);
      for (const auto& got : Sum(c, accumulate, false)) {
        EXPECT_TRUE(got == want) << c.num_ranks << " ranks, " << c.rows << " x " << c.cols;
      }
    }
  }
}

TEST_P(AllReduceTest, MayReplaceWhatIsAdded) {
  for (const Case& c : kCases) {
    const auto want = SumOfRanks(c.num_ranks, c.rows * c.cols, GetParam(), false);
    for (const auto& got : Sum(c, false, true)) EXPECT_TRUE(got == want) << c.num_ranks;
  }
}

TEST_P(AllReduceTest, LeavesWhatLiesBetweenRows) {
  RankThreads ranks(2);
  ranks.Run([&](int rank) {
    Backend& backend = ranks.backend(rank);
    DeviceData data(backend);
    const DeviceData::Matrix wide =
        data.UploadMatrix(DrawnFor(rank, 30, GetParam()), 3, 10, GetParam());
    const auto before = data.Values(wide);
    const MatrixView columns = wide.view.Columns(2, 5);
    ASSERT_TRUE(
        backend.ops->collective().AllReduce(*backend.stream, {.in = columns, .out = columns}).ok());
    const auto after = data.Values(wide);
    const auto sums = SumOfRanks(2, 30, GetParam(), false);
    for (size_t i = 0; i < after.size(); ++i) {
      const bool is_summed = i % 10 >= 2 && i % 10 < 7;
      EXPECT_EQ(after[i], is_summed ? sums[i] : before[i]) << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Types, AllReduceTest, ::testing::Values(DType::kF32, DType::kBf16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST(AllReduceArgsTest, AreChecked) {
  RankThreads ranks(1);
  Backend& backend = ranks.backend(0);
  DeviceData data(backend);
  const auto matrix = [&](int64_t rows, int64_t cols, DType dtype) {
    return data.UploadMatrix(std::vector<float>(static_cast<size_t>(rows * cols)), rows, cols,
                             dtype);
  };
  const DeviceData::Matrix a = matrix(2, 4, DType::kF32);
  const DeviceData::Matrix b = matrix(2, 5, DType::kF32);
  const DeviceData::Matrix half = matrix(2, 4, DType::kF16);
  const auto expect_refused = [&](const AllReduceArgs& args, const std::string& part) {
    const absl::Status status = backend.ops->collective().AllReduce(*backend.stream, args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  };
  expect_refused({.in = a.view, .out = b.view}, "in must be [2, 5]");
  expect_refused({.in = half.view, .out = a.view}, "in must be f32");
  expect_refused({.in = half.view, .out = half.view}, "needs f32 or bf16");
  expect_refused({.in = a.view, .out = a.view, .accumulate = true}, "in is out");
}

TEST(AllReduceRanksTest, ThatHaveEndedAreNotWaitedFor) {
  RankThreads ranks(2);
  ranks.Run([&](int rank) {
    if (rank == 1) return ranks.memory(rank).End();
    Backend& backend = ranks.backend(rank);
    DeviceData data(backend);
    const DeviceData::Matrix in = data.UploadMatrix(std::vector<float>(8), 2, 4, DType::kF32);
    const absl::Status status =
        backend.ops->collective().AllReduce(*backend.stream, {.in = in.view, .out = in.view});
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  });
}

}  // namespace
}  // namespace retroinfer
