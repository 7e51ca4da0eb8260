// What a row of a decode step becomes does not depend, to the bit, on how many rows share the step:
// products of one row and of up to 66, for the shapes for which backends divide their work in
// other ways.
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gpu_worker/ops/model/gated_linear.h"
#include "gpu_worker/ops/model/linear.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using namespace test_support;

constexpr int64_t kRows = 66;
constexpr int64_t kSomeRows[] = {8, 17, 33, 48, 64};
constexpr KeptWeights kForms[] = {KeptWeights::kAsStored, KeptWeights::kFp8, KeptWeights::kInt4};

struct Shape {
  int64_t in;
  int64_t out;
};
// Few features of many columns, more columns than a slice of k has room for on a GPU, and ends that
// divide nothing; many features; so many that each warp of a GPU takes all columns. The last
// features of each fill neither a GPU's tile of 16 nor the four that one thread stores.
constexpr Shape kShapes[] = {{4616, 270}, {136, 5006}, {72, 33438}};

class RowsOfAStepTest : public testing::TestWithParam<BackendParam> {
 protected:
  std::unique_ptr<PreparedLinear> Prepare(const Shape& shape, KeptWeights keep, bool has_bias) {
    const auto values = RandomNormal(static_cast<size_t>(shape.in * shape.out), 1, 0.1f);
    const auto weight = data_.UploadMatrix(values, shape.out, shape.in, DType::kBf16);
    const auto bias = data_.UploadMatrix(RandomNormal(static_cast<size_t>(shape.out), 2), 1,
                                         shape.out, DType::kBf16);
    LinearWeights weights{.weight = AsWeights(weight.view), .bias = {}, .scales = {}, .keep = keep};
    if (has_bias) weights.bias = AsWeights(bias.view);
    auto linear = backend_->ops->model().PrepareLinear(weights);
    EXPECT_TRUE(linear.ok()) << linear.status();
    return *std::move(linear);
  }

  // Runs the first `rows` rows of `x` into `y`, which has `before` to begin with, and returns it.
  template <typename Operation>
  std::vector<float> Run(const Operation& operation, std::span<const float> x, int64_t rows,
                         int64_t in, std::span<const float> before, int64_t out) {
    const auto source = data_.Activations(x.first(static_cast<size_t>(rows * in)), rows, in);
    const auto target = data_.Activations(before.first(static_cast<size_t>(rows * out)), rows, out);
    const absl::Status status = operation(source.view, target.view);
    EXPECT_TRUE(status.ok()) << status;
    return data_.Values(target);
  }

  // Checks that any number of the first rows, and the last row alone, become what they become
  // together.
  template <typename Operation>
  void CheckRows(const Operation& operation, const Shape& shape, std::string_view what) {
    const auto x = RandomNormal(static_cast<size_t>(kRows * shape.in), 3);
    std::vector<float> before;
    for (int64_t i = 0; i < kRows * shape.out; ++i) {
      before.push_back(0.25f * static_cast<float>(i % 13 - 6));
    }
    const auto all = Run(operation, x, kRows, shape.in, before, shape.out);
    EXPECT_NE(all, before);
    for (const int64_t rows : kSomeRows) {
      const auto some = Run(operation, x, rows, shape.in, before, shape.out);
      EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()))
          << what << ", " << rows << " rows of " << shape.in << " x " << shape.out;
    }
    for (const int64_t row : {int64_t{0}, int64_t{19}, kRows - 1}) {
      const auto from = [row](std::span<const float> rows, int64_t cols) {
        return rows.subspan(static_cast<size_t>(row * cols), static_cast<size_t>(cols));
      };
      const auto alone =
          Run(operation, from(x, shape.in), 1, shape.in, from(before, shape.out), shape.out);
      EXPECT_TRUE(std::ranges::equal(alone, from(all, shape.out)))
          << what << ", row " << row << " of " << shape.in << " x " << shape.out;
    }
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(RowsOfAStepTest, ProductsWithABias) {
  for (const KeptWeights keep : kForms) {
    for (const Shape& shape : kShapes) {
      const auto linear = Prepare(shape, keep, true);
      CheckRows(
          [&](const MatrixView& in, const MatrixView& out) {
            return backend_->ops->model().Linear(
                *backend_->stream, {.linear = linear.get(), .in = in, .out = out, .decode = true});
          },
          shape, "with a bias");
    }
  }
}

TEST_P(RowsOfAStepTest, ProductsThatAreAddedToWhatIsThere) {
  for (const KeptWeights keep : kForms) {
    for (const Shape& shape : kShapes) {
      const auto linear = Prepare(shape, keep, false);
      CheckRows(
          [&](const MatrixView& in, const MatrixView& out) {
            return backend_->ops->model().Linear(
                *backend_->stream,
                {.linear = linear.get(), .in = in, .out = out, .accumulate = true, .decode = true});
          },
          shape, "added");
    }
  }
}

TEST_P(RowsOfAStepTest, GatedProducts) {
  for (const KeptWeights keep : kForms) {
    for (const Shape& shape : kShapes) {
      const auto linear = Prepare(shape, keep, false);
      for (const GatedActivation activation :
           {GatedActivation::kSilu, GatedActivation::kGeluTanh, GatedActivation::kClampedSwiglu}) {
        // Where a GPU's kernels differ in how they divide the work, for each.
        if (activation != GatedActivation::kSilu && shape.out < kShapes[2].out) continue;
        CheckRows(
            [&](const MatrixView& in, const MatrixView& out) {
              const auto gate_up = data_.Poisoned(in.rows, shape.out);
              return backend_->ops->model().GatedLinear(*backend_->stream,
                                                        {.linear = linear.get(),
                                                         .in = in,
                                                         .gate_up = gate_up.view,
                                                         .out = out,
                                                         .decode = true,
                                                         .activation = activation});
            },
            {shape.in, shape.out / 2}, absl::StrCat("gated ", static_cast<int>(activation)));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, RowsOfAStepTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
