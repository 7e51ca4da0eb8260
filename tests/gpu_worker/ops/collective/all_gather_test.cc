// Over the CPU's ranks; those of GPUs are in cuda/collective_test.cc.
#include "gpu_worker/ops/collective/all_gather.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/device_data.h"
#include "tests/support/rank_threads.h"

namespace retroinfer {
namespace {

using test_support::Backend;
using test_support::DeviceData;
using test_support::RandomNormal;
using test_support::RankThreads;
using ::testing::HasSubstr;

struct Case {
  int num_ranks;
  int64_t rows;
  int64_t cols;
  int64_t unit;
};
// A turn has 1024 numbers.
constexpr Case kCases[] = {{1, 2, 7, 1},    {2, 1, 2, 1},      {2, 3, 101, 16}, {3, 1, 3072, 1},
                           {4, 5, 259, 16}, {2, 2, 6001, 128}, {3, 40, 100, 1}, {2, 0, 8, 1}};

// The columns that rank has of `all`, [rows, cols].
std::vector<float> ColumnsOf(const std::vector<float>& all, const Case& c, const Share& share) {
  std::vector<float> columns;
  for (int64_t row = 0; row < c.rows; ++row) {
    const auto first = all.begin() + row * c.cols + share.first;
    columns.insert(columns.end(), first, first + share.count);
  }
  return columns;
}

TEST(AllGatherTest, BringsColumnsTogetherOnAllRanks) {
  for (const Case& c : kCases) {
    const auto all = RandomNormal(static_cast<size_t>(c.rows * c.cols), 5);
    RankThreads ranks(c.num_ranks);
    ranks.Run([&](int rank) {
      Backend& backend = ranks.backend(rank);
      DeviceData data(backend);
      const Share share = ShareOf({rank, c.num_ranks}, c.cols, c.unit);
      const DeviceData::Matrix in =
          data.UploadMatrix(ColumnsOf(all, c, share), c.rows, share.count, DType::kF32);
      const DeviceData::Matrix out = data.UploadMatrix(
          std::vector<float>(all.size(), test_support::kNan), c.rows, c.cols, DType::kF32);
      const absl::Status status = backend.ops->collective().AllGather(
          *backend.stream, {.in = in.view, .out = out.view, .unit = c.unit});
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_TRUE(data.Values(out) == all) << c.num_ranks << ": " << c.rows << " x " << c.cols;
    });
  }
}

TEST(AllGatherTest, ColumnsMayLieInTheirPlace) {
  for (const Case& c : kCases) {
    const auto all = RandomNormal(static_cast<size_t>(c.rows * c.cols), 6);
    RankThreads ranks(c.num_ranks);
    ranks.Run([&](int rank) {
      Backend& backend = ranks.backend(rank);
      DeviceData data(backend);
      const Share share = ShareOf({rank, c.num_ranks}, c.cols, c.unit);
      std::vector<float> mine(all.size(), test_support::kNan);
      for (size_t i = 0; i < all.size(); ++i) {
        const int64_t col = static_cast<int64_t>(i) % c.cols;
        if (col >= share.first && col < share.first + share.count) mine[i] = all[i];
      }
      const DeviceData::Matrix out = data.UploadMatrix(mine, c.rows, c.cols, DType::kF32);
      const absl::Status status = backend.ops->collective().AllGather(
          *backend.stream,
          {.in = out.view.Columns(share.first, share.count), .out = out.view, .unit = c.unit});
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_TRUE(data.Values(out) == all) << c.num_ranks << ": " << c.rows << " x " << c.cols;
    });
  }
}

TEST(AllGatherTest, ArgumentsAreChecked) {
  RankThreads ranks(3);
  Backend& backend = ranks.backend(1);
  DeviceData data(backend);
  const DeviceData::Matrix out = data.UploadMatrix(std::vector<float>(12), 2, 6, DType::kF32);
  const DeviceData::Matrix half = data.UploadMatrix(std::vector<float>(4), 2, 2, DType::kBf16);
  const auto expect_refused = [&](const AllGatherArgs& args, const std::string& part) {
    const absl::Status status = backend.ops->collective().AllGather(*backend.stream, args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  };
  expect_refused({.in = out.view, .out = out.view}, "in must be [2, 2]");
  expect_refused({.in = half.view, .out = out.view}, "in must be f32");
  expect_refused({.in = out.view.Columns(2, 2), .out = out.view, .unit = 0}, "a unit of 0");
  expect_refused({.in = out.view.Columns(0, 0), .out = out.view, .unit = 4}, "in must be [2, 4]");
}

}  // namespace
}  // namespace retroinfer
