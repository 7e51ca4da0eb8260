// Over the CPU's ranks; those of GPUs are in cuda/collective_test.cc.
#include "gpu_worker/ops/collective/norm_of_sum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/gpu_worker/ops/collective/layer_end.h"
#include "tests/gpu_worker/ops/collective/rank_matrices.h"
#include "tests/support/device_data.h"
#include "tests/support/rank_threads.h"

namespace retroinfer {
namespace {

using test_support::Backend;
using test_support::DeviceData;
using test_support::ExpectTheSameAsOne;
using test_support::RankThreads;
using ::testing::HasSubstr;

TEST(NormOfSumTest, IsTheSumAndTheNormsBehindIt) {
  for (const int num_ranks : {1, 2, 3}) {
    RankThreads ranks(num_ranks);
    ranks.Run([&](int rank) {
      // A turn has 1024 numbers of f32: less than one, and several.
      for (const int64_t rows : {1, 5}) {
        for (const int64_t cols : {8, 31, 1000}) {
          ExpectTheSameAsOne(ranks.backend(rank), rank, rows, cols);
        }
      }
    });
  }
}

TEST(NormOfSumTest, FollowsDoubles) {
  constexpr int64_t kCols = 96;
  RankThreads ranks(2);
  ranks.Run([&](int rank) {
    Backend& backend = ranks.backend(rank);
    DeviceData data(backend);
    const auto drawn = [](int of) { return test_support::DrawnFor(of, kCols, DType::kBf16); };
    const auto part = data.Activations(drawn(rank), 1, kCols);
    const auto hidden = data.Activations(drawn(-1), 1, kCols);
    const auto weight = data.UploadMatrix(drawn(-2), 1, kCols, DType::kBf16);
    const RmsNormArgs norm = {
        .in = hidden.view, .weight = weight.view, .epsilon = 1e-5f, .out = part.view};
    const absl::Status status = backend.ops->collective().NormOfSum(
        *backend.stream,
        {.sum = {.in = part.view, .out = hidden.view, .accumulate = true}, .norms = {&norm, 1}});
    ASSERT_TRUE(status.ok()) << status;
    const auto first = drawn(0), second = drawn(1), before = drawn(-1), weights = drawn(-2);
    const auto sums = data.Values(hidden), normed = data.Values(part);
    double squares = 0;
    for (size_t i = 0; i < kCols; ++i) {
      const double sum = double{first[i]} + second[i] + before[i];
      EXPECT_NEAR(sums[i], sum, 1e-6);
      squares += sum * sum;
    }
    for (size_t i = 0; i < kCols; ++i) {
      const double sum = double{first[i]} + second[i] + before[i];
      EXPECT_NEAR(normed[i], sum / std::sqrt(squares / kCols + 1e-5) * weights[i], 1e-5);
    }
  });
}

TEST(NormOfSumArgsTest, AreChecked) {
  RankThreads ranks(1);
  Backend& backend = ranks.backend(0);
  DeviceData data(backend);
  const auto matrix = [&](int64_t rows, int64_t cols) {
    return data.Activations(std::vector<float>(static_cast<size_t>(rows * cols)), rows, cols);
  };
  const auto a = matrix(2, 8), b = matrix(2, 8), wide = matrix(2, 16);
  const auto weight = matrix(1, 8), of_head = matrix(1, 4);
  const RmsNormArgs norm = {.in = b.view, .weight = weight.view, .epsilon = 1, .out = a.view};
  const AllReduceArgs sum = {.in = a.view, .out = b.view};
  const auto expect_refused = [&](const AllReduceArgs& of, const std::vector<RmsNormArgs>& norms,
                                  const std::string& part) {
    const absl::Status status =
        backend.ops->collective().NormOfSum(*backend.stream, {.sum = of, .norms = norms});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  };
  expect_refused(sum, {}, "0 norms");
  expect_refused(sum, {norm, norm, norm}, "3 norms");
  expect_refused({.in = wide.view, .out = b.view}, {norm}, "in must be [2, 8]");
  expect_refused({.in = b.view, .out = a.view}, {norm}, "another matrix");
  // The sum in another element type than the norms read at the same place.
  MatrixView short_in = a.view, short_out = b.view;
  short_in.dtype = short_out.dtype = DType::kBf16;
  expect_refused({.in = short_in, .out = short_out}, {norm}, "sum must be f32");
  expect_refused(sum, {norm, norm}, "another matrix");
  RmsNormArgs of_heads = norm;
  of_heads.weight = of_head.view;
  expect_refused(sum, {of_heads}, "a norm of heads");
}

TEST(NormOfSumRanksTest, ThatHaveEndedAreNotWaitedFor) {
  RankThreads ranks(2);
  ranks.Run([&](int rank) {
    if (rank == 1) return ranks.memory(rank).End();
    test_support::LayerEnd end(ranks.backend(rank), rank, 2, 8);
    const absl::Status status = end.Run(test_support::LayerEndForm::kNormBehind, true);
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  });
}

}  // namespace
}  // namespace retroinfer
