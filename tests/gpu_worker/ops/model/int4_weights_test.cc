// linear with weights in 4 bits, on every backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <random>

#include "gpu_worker/ops/model/int4.h"
#include "gpu_worker/ops/model/linear.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using namespace test_support;

struct Size {
  int64_t rows;
  int64_t in;
  int64_t out;
};

struct Grouping {
  int64_t cols = 128;  // 0: a row is a group
  bool has_zeros = true;
  bool permuted = false;  // columns, as act order has them
};
constexpr Grouping kGroupings[] = {{128, true}, {128, false},     {64, true},
                                   {32, false}, {32, true, true}, {0, true},
                                   {0, false},  {256, true},      {128, false, true}};

std::string Name(const Grouping& grouping) {
  return "groups of " + std::to_string(grouping.cols) + (grouping.has_zeros ? ", zeros" : "") +
         (grouping.permuted ? ", permuted" : "");
}

// A random weight in 4 bits: its codes, its scales, and the numbers that they stand for, in the
// order of input features.
struct CodedWeight {
  CodedWeight(int64_t out, int64_t in, const Grouping& grouping, uint64_t seed)
      : rows(out), cols(in), form(Int4Weights(grouping.cols, grouping.has_zeros)) {
    scales.cols_each = grouping.cols;
    std::mt19937_64 random(seed);
    const int64_t groups = scales.num_cols(cols);
    for (const float drawn : RandomNormal(static_cast<size_t>(rows * groups), seed + 1)) {
      scales.values.push_back(0.01f * std::exp2(drawn));
      if (grouping.has_zeros) scales.zeros.push_back(static_cast<float>(random() % 17));
    }
    if (grouping.permuted) {
      scales.columns.resize(static_cast<size_t>(cols));
      std::iota(scales.columns.begin(), scales.columns.end(), 0);
      std::shuffle(scales.columns.begin(), scales.columns.end(), random);
    }
    codes.resize(form.Bytes(rows, cols));
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < cols; ++col) Set(row, col, static_cast<int>(random() % 16));
    }
    Compute();
  }

  void Set(int64_t row, int64_t col, int code) {
    uint8_t& byte =
        codes[static_cast<size_t>(row) * form.RowBytes(cols) + static_cast<size_t>(col / 2)];
    const int shift = static_cast<int>(col % 2 * 4);
    byte = static_cast<uint8_t>((byte & ~(15 << shift)) | code << shift);
  }
  int Code(int64_t row, int64_t col) const {
    const size_t at = static_cast<size_t>(row) * form.RowBytes(cols) + static_cast<size_t>(col / 2);
    return codes[at] >> col % 2 * 4 & 15;
  }
  void Compute() {
    numbers.assign(static_cast<size_t>(rows * cols), 0);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < cols; ++col) {
        const double zero = form.has_zeros ? scales.zeros[scales.IndexOf(row, col, cols)] : 8;
        const int64_t feature =
            scales.columns.empty() ? col : scales.columns[static_cast<size_t>(col)];
        numbers[static_cast<size_t>(row * cols + feature)] =
            (Code(row, col) - zero) * scales.At(row, col, cols);
      }
    }
  }

  int64_t rows;
  int64_t cols;
  WeightForm form;
  std::vector<uint8_t> codes;
  WeightScales scales;
  std::vector<double> numbers;
};

class Int4WeightsTest : public testing::TestWithParam<BackendParam> {
 protected:
  absl::StatusOr<std::unique_ptr<PreparedLinear>> Prepare(
      const CodedWeight& weight, std::optional<MatrixView> bias = std::nullopt,
      KeptWeights keep = KeptWeights::kAsStored) {
    const DeviceBuffer codes = data_.Upload(weight.codes);
    LinearWeights weights{
        .weight = WeightView::Dense(codes.bytes(), weight.form, weight.rows, weight.cols),
        .bias = {},
        .scales = weight.scales,
        .keep = keep};
    if (bias.has_value()) weights.bias = AsWeights(*bias);
    return backend_->ops->model().PrepareLinear(weights);
  }
  absl::StatusOr<std::unique_ptr<PreparedLinear>> PrepareRounded(const MatrixView& weight) {
    return backend_->ops->model().PrepareLinear(
        {.weight = AsWeights(weight), .bias = {}, .scales = {}, .keep = KeptWeights::kInt4});
  }

  std::vector<float> Run(const PreparedLinear& linear, std::span<const float> in, int64_t rows,
                         bool decode) {
    const auto x = data_.Activations(in, rows, linear.in_features());
    const auto y = data_.Poisoned(rows, linear.out_features());
    const absl::Status status = backend_->ops->model().Linear(
        *backend_->stream, {.linear = &linear, .in = x.view, .out = y.view, .decode = decode});
    EXPECT_TRUE(status.ok()) << status;
    return data_.Values(y);
  }

  static std::vector<double> Products(std::span<const float> x, int64_t rows,
                                      const std::vector<double>& w, int64_t in, int64_t out,
                                      std::span<const float> bias = {}) {
    std::vector<double> products;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t o = 0; o < out; ++o) {
        double sum = bias.empty() ? 0.0 : bias[static_cast<size_t>(o)];
        for (int64_t i = 0; i < in; ++i) {
          sum += double{x[static_cast<size_t>(r * in + i)]} * w[static_cast<size_t>(o * in + i)];
        }
        products.push_back(sum);
      }
    }
    return products;
  }

  void CheckAgainstDoubles(const Size& size, const Grouping& grouping, bool decode,
                           KeptWeights keep) {
    const CodedWeight weight(size.out, size.in, grouping, 1);
    const auto x = data_.Rounded(RandomNormal(static_cast<size_t>(size.rows * size.in), 2));
    const auto bias = data_.UploadMatrix(RandomNormal(static_cast<size_t>(size.out), 3), 1,
                                         size.out, DType::kBf16);
    const auto linear = Prepare(weight, bias.view, keep);
    ASSERT_TRUE(linear.ok()) << linear.status();
    const auto got = Run(**linear, x, size.rows, decode);
    const auto want = Products(x, size.rows, weight.numbers, size.in, size.out, data_.Values(bias));
    EXPECT_LE(RelativeError(got, want), GetParam().matmul_tolerance)
        << size.rows << " x " << size.in << " x " << size.out << ", " << Name(grouping)
        << (decode ? ", decode" : "");
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(Int4WeightsTest, MultipliesByHand) {
  CodedWeight weight(2, 3, {0, true}, 1);
  weight.scales.values = {0.5f, 2.0f};
  weight.scales.zeros = {4, 16};
  const int codes[] = {0, 15, 4, 15, 0, 7};  // -4, 11, 0; -1, -16, -9
  for (int64_t i = 0; i < 6; ++i) weight.Set(i / 3, i % 3, codes[i]);
  const auto linear = Prepare(weight);
  ASSERT_TRUE(linear.ok()) << linear.status();
  const std::vector<float> in = {1, 0, 0, 0, 1, 2, 2, -1, 4};
  const std::vector<float> want = {-2, -2, 5.5f, -68, -9.5f, -44};
  EXPECT_EQ(Run(**linear, in, 3, true), want);
  EXPECT_EQ(Run(**linear, in, 3, false), want);
}

// Each in a group of its own.
TEST_P(Int4WeightsTest, EveryCodeWithEveryZeroIsItsNumber) {
  CodedWeight weight(17, 16 * 32, {32, true}, 1);
  std::fill(weight.codes.begin(), weight.codes.end(), uint8_t{0});
  std::vector<float> want(16 * 17);
  for (int64_t row = 0; row < 17; ++row) {
    for (int64_t group = 0; group < 16; ++group) {
      weight.Set(row, group * 32 + 5 + group, static_cast<int>(group));
      const auto at = static_cast<size_t>(row * 16 + group);
      weight.scales.values[at] = 1;
      weight.scales.zeros[at] = static_cast<float>(row);
      want[static_cast<size_t>(group * 17 + row)] = static_cast<float>(group - row);
    }
  }
  std::vector<float> x(16 * 16 * 32);
  for (size_t group = 0; group < 16; ++group) x[group * 512 + group * 32 + 5 + group] = 1;
  const auto linear = Prepare(weight);
  ASSERT_TRUE(linear.ok()) << linear.status();
  for (const bool decode : {false, true}) EXPECT_EQ(Run(**linear, x, 16, decode), want);
}

TEST_P(Int4WeightsTest, FollowsDoublesForAllSizesAndGroups) {
  const Size sizes[] = {{1, 1, 1},      {3, 31, 33},   {15, 136, 300}, {17, 128, 256},
                        {9, 200, 64},   {33, 264, 88}, {65, 512, 48},  {5, 1160, 40},
                        {40, 640, 520}, {8, 2304, 72}};
  for (const Size& size : sizes) {
    for (const bool decode : {false, true}) {
      for (const Grouping& grouping : kGroupings) {
        CheckAgainstDoubles(size, grouping, decode, KeptWeights::kAsStored);
      }
    }
  }
  for (const bool decode : {false, true}) {
    CheckAgainstDoubles({17, 264, 88}, {64, true}, decode, KeptWeights::kNumbers);
    CheckAgainstDoubles({17, 264, 88}, {64, true, true}, decode, KeptWeights::kNumbers);
  }
}

// More features than are unpacked at a time, with a last tile of fewer.
TEST_P(Int4WeightsTest, TilesOfAWeightJoin) {
  CheckAgainstDoubles({20, 64, 4600}, {32, true}, false, KeptWeights::kAsStored);
}

TEST_P(Int4WeightsTest, NumbersBecomeTheCodesOfTheirGroups) {
  constexpr int64_t kOut = 40, kIn = 328, kRows = 7;
  for (const DType dtype : {DType::kBf16, DType::kF32}) {
    auto values = RandomNormal(kOut * kIn, 1, 0.02f);
    std::fill(values.begin(), values.begin() + kIn, 0.0f);  // a row without numbers
    for (int64_t i = 0; i < kIn; ++i) values[static_cast<size_t>(kIn + i)] *= 1e-30f;
    for (int64_t i = 0; i < kIn; ++i) values[static_cast<size_t>(2 * kIn + i)] += 0.05f;
    const auto weight = data_.UploadMatrix(values, kOut, kIn, dtype);
    const auto given = data_.Values(weight);
    std::vector<double> want(given.size());
    for (size_t row = 0; row < kOut; ++row) {
      for (size_t first = 0; first < kIn; first += kInt4RoundedGroup) {
        const auto count = std::min<size_t>(kInt4RoundedGroup, kIn - first);
        const std::span numbers = std::span(given).subspan(row * kIn + first, count);
        const auto group = Int4Group::Of(
            std::ssize(numbers), [&](int64_t i) { return numbers[static_cast<size_t>(i)]; });
        for (size_t i = 0; i < count; ++i) {
          want[row * kIn + first + i] = group.NumberOf(group.CodeOf(numbers[i]));
        }
      }
    }
    const auto linear = PrepareRounded(weight.view);
    ASSERT_TRUE(linear.ok()) << linear.status();
    const auto x = data_.Rounded(RandomNormal(kRows * kIn, 2));
    for (const bool decode : {false, true}) {
      const auto got = Run(**linear, x, kRows, decode);
      EXPECT_LE(RelativeError(got, Products(x, kRows, want, kIn, kOut)),
                GetParam().matmul_tolerance);
      EXPECT_EQ(got.front(), 0.0f);
    }
  }
}

TEST_P(Int4WeightsTest, ARowDoesNotDependOnTheOthers) {
  constexpr int64_t kIn = 1296, kRows = 130;
  const auto x = RandomNormal(kRows * kIn, 5);
  for (const int64_t out : {300, 512}) {
    for (const Grouping& grouping : {Grouping{128, true}, {32, false}, {128, true, true}}) {
      const auto linear = Prepare(CodedWeight(out, kIn, grouping, 4));
      ASSERT_TRUE(linear.ok()) << linear.status();
      for (const bool decode : {false, true}) {
        const auto all = Run(**linear, x, kRows, decode);
        for (const auto& [first, rows] :
             {std::pair<int64_t, int64_t>{0, 1}, {7, 20}, {15, 64}, {3, 9}, {129, 1}, {50, 80}}) {
          const auto some = Run(**linear,
                                std::span(x).subspan(static_cast<size_t>(first * kIn),
                                                     static_cast<size_t>(rows * kIn)),
                                rows, decode);
          const auto same = std::span(all).subspan(static_cast<size_t>(first * out), some.size());
          EXPECT_TRUE(std::equal(some.begin(), some.end(), same.begin()))
              << first << ", " << rows << " of " << out << ", " << Name(grouping)
              << (decode ? ", decode" : "");
        }
      }
    }
  }
}

TEST_P(Int4WeightsTest, GatesTheFirstHalfOfTheFeaturesByTheOther) {
  for (const Grouping& grouping : {Grouping{128, true}, {64, false}, {32, true, true}}) {
    for (const Size& size : {Size{1, 64, 48}, Size{9, 520, 40}, Size{20, 136, 48},
                             Size{40, 384, 16}, Size{8, 1160, 176}}) {
      const int64_t half = size.out / 2;
      const CodedWeight weight(size.out, size.in, grouping, 1);
      const auto linear = Prepare(weight);
      ASSERT_TRUE(linear.ok()) << linear.status();
      const auto x = data_.Rounded(RandomNormal(static_cast<size_t>(size.rows * size.in), 2, 0.3f));
      const auto products = Products(x, size.rows, weight.numbers, size.in, size.out);
      std::vector<double> want;
      for (int64_t r = 0; r < size.rows; ++r) {
        for (int64_t o = 0; o < half; ++o) {
          const double gate = products[static_cast<size_t>(r * size.out + o)];
          want.push_back(gate / (1 + std::exp(-gate)) *
                         products[static_cast<size_t>(r * size.out + half + o)]);
        }
      }
      for (const bool decode : {false, true}) {
        const auto in = data_.Activations(x, size.rows, size.in);
        const auto gate_up = data_.Poisoned(size.rows, size.out);
        const auto out = data_.Poisoned(size.rows, half);
        const absl::Status status =
            backend_->ops->model().GatedLinear(*backend_->stream, {.linear = linear->get(),
                                                                   .in = in.view,
                                                                   .gate_up = gate_up.view,
                                                                   .out = out.view,
                                                                   .decode = decode});
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_LE(RelativeError(data_.Values(out), want), 2 * GetParam().matmul_tolerance)
            << size.rows << " x " << size.in << " x " << size.out << " decode " << decode << ", "
            << Name(grouping);
      }
    }
  }
}

TEST_P(Int4WeightsTest, RefusesWhatIsNotFinite) {
  for (const float bad : {kNan, std::numeric_limits<float>::infinity()}) {
    std::vector<float> values(300, 1.0f);
    values[299] = bad;
    const auto numbers = data_.UploadMatrix(values, 2, 150, DType::kF32);
    EXPECT_EQ(PrepareRounded(numbers.view).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(Int4WeightsTest, RefusesScalesZerosAndColumnsThatDoNotFit) {
  const CodedWeight good(40, 200, {64, true, true}, 1);
  ASSERT_TRUE(Prepare(good).ok()) << Prepare(good).status();
  const auto refused = [&](const auto& spoil) {
    CodedWeight weight = good;
    spoil(weight.scales);
    return Prepare(weight).status().code() == absl::StatusCode::kInvalidArgument;
  };
  for (const float zero : {-1.0f, 17.0f, 0.5f, kNan}) {
    EXPECT_TRUE(refused([zero](WeightScales& scales) { scales.zeros[3] = zero; })) << zero;
  }
  EXPECT_TRUE(refused([](WeightScales& scales) { scales.values[5] = 0; }));
  EXPECT_TRUE(refused([](WeightScales& scales) { scales.zeros.pop_back(); }));
  EXPECT_TRUE(refused([](WeightScales& scales) { scales.cols_each = 128; }));
  EXPECT_TRUE(refused([](WeightScales& scales) { scales.columns[1] = scales.columns[0]; }));
  EXPECT_TRUE(refused([](WeightScales& scales) { scales.columns[1] = 200; }));
  EXPECT_TRUE(refused([](WeightScales& scales) { scales.columns[1] = -1; }));
  EXPECT_TRUE(refused([](WeightScales& scales) { scales.columns.pop_back(); }));
}

INSTANTIATE_TEST_SUITE_P(Backends, Int4WeightsTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
