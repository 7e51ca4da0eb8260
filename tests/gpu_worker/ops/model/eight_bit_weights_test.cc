// linear with weights in 8 bits, on every backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "gpu_worker/ops/model/e4m3.h"
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

// A random weight in 8 bits: its codes, its scales, and the numbers that they stand for.
struct CodedWeight {
  CodedWeight(int64_t out, int64_t in, int64_t rows_each, int64_t cols_each, uint64_t seed)
      : rows(out), cols(in) {
    scales.rows_each = rows_each;
    scales.cols_each = cols_each;
    const int64_t count = scales.num_rows(rows) * scales.num_cols(cols);
    for (const float drawn : RandomNormal(static_cast<size_t>(count), seed + 1)) {
      scales.values.push_back(0.01f * std::exp2(drawn));
    }
    const auto drawn = RandomNormal(static_cast<size_t>(rows * cols), seed, 40.0f);
    for (int64_t i = 0; i < rows * cols; ++i) {
      codes.push_back(ToE4m3(drawn[static_cast<size_t>(i)]));
      numbers.push_back(double{FromE4m3(codes.back())} * scales.At(i / cols, i % cols, cols));
    }
  }

  int64_t rows;
  int64_t cols;
  std::vector<uint8_t> codes;
  WeightScales scales;
  std::vector<double> numbers;
};

class EightBitWeightsTest : public testing::TestWithParam<BackendParam> {
 protected:
  absl::StatusOr<std::unique_ptr<PreparedLinear>> Prepare(
      const CodedWeight& weight, std::optional<MatrixView> bias = std::nullopt,
      KeptWeights keep = KeptWeights::kAsStored) {
    const DeviceBuffer codes = data_.Upload(weight.codes);
    LinearWeights weights{
        .weight = WeightView::Dense(codes.bytes(), WeightType::kF8E4M3, weight.rows, weight.cols),
        .bias = {},
        .scales = weight.scales,
        .keep = keep};
    if (bias.has_value()) weights.bias = AsWeights(*bias);
    return backend_->ops->model().PrepareLinear(weights);
  }

  absl::StatusOr<std::unique_ptr<PreparedLinear>> PrepareRounded(const MatrixView& weight) {
    return backend_->ops->model().PrepareLinear(
        {.weight = AsWeights(weight), .bias = {}, .scales = {}, .keep = KeptWeights::kFp8});
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

  void CheckAgainstDoubles(const Size& size, int64_t rows_each, int64_t cols_each, bool decode,
                           KeptWeights keep) {
    const CodedWeight weight(size.out, size.in, rows_each, cols_each, 1);
    const auto x = RandomNormal(static_cast<size_t>(size.rows * size.in), 2);
    const auto bias = data_.UploadMatrix(RandomNormal(static_cast<size_t>(size.out), 3), 1,
                                         size.out, DType::kBf16);
    const auto linear = Prepare(weight, bias.view, keep);
    ASSERT_TRUE(linear.ok()) << linear.status();
    const auto got = Run(**linear, x, size.rows, decode);
    const auto want = Products(x, size.rows, weight.numbers, size.in, size.out, data_.Values(bias));
    EXPECT_LE(RelativeError(got, want), GetParam().matmul_tolerance)
        << size.rows << " x " << size.in << " x " << size.out << ", a scale for " << rows_each
        << " x " << cols_each << (decode ? ", decode" : "");
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(EightBitWeightsTest, MultipliesByHand) {
  CodedWeight weight(2, 3, 1, 0, 1);
  weight.scales.values = {0.5f, 2.0f};
  const float numbers[] = {1, -448, 0.25f, 0x1p-9f, 0, -16};
  for (size_t i = 0; i < 6; ++i) weight.codes[i] = ToE4m3(numbers[i]);
  const auto linear = Prepare(weight);
  ASSERT_TRUE(linear.ok()) << linear.status();
  const std::vector<float> in = {0, 0, 4, 0, 1, 0, 512, 0, 0};
  const std::vector<float> want = {0.5f, -128, -224, 0, 256, 2};
  EXPECT_EQ(Run(**linear, in, 3, true), want);
  EXPECT_EQ(Run(**linear, in, 3, false), want);
}

// Every code but the two of NaN, each in a column and row of its own.
TEST_P(EightBitWeightsTest, EveryCodeIsItsNumber) {
  CodedWeight weight(254, 256, 1, 0, 1);
  std::fill(weight.codes.begin(), weight.codes.end(), uint8_t{0});
  std::fill(weight.scales.values.begin(), weight.scales.values.end(), 1.0f);
  std::vector<float> want;
  for (int row = 0; row < 254; ++row) {
    const auto code = static_cast<uint8_t>(row < 127 ? row : row + 1);
    weight.codes[static_cast<size_t>(row * 256 + row)] = code;
    want.push_back(FromE4m3(code));
  }
  const auto linear = Prepare(weight);
  ASSERT_TRUE(linear.ok()) << linear.status();
  const std::vector<float> ones(256, 1.0f);
  for (const bool decode : {false, true}) EXPECT_EQ(Run(**linear, ones, 1, decode), want);
}

TEST_P(EightBitWeightsTest, FollowsDoublesForAllSizesAndScales) {
  const Size sizes[] = {{1, 1, 1},     {3, 31, 33},   {15, 136, 300}, {17, 128, 256}, {9, 200, 64},
                        {33, 264, 88}, {65, 512, 48}, {5, 1160, 40},  {40, 640, 520}};
  for (const Size& size : sizes) {
    for (const bool decode : {false, true}) {
      for (const auto& [rows_each, cols_each] :
           {std::pair<int64_t, int64_t>{1, 0}, {128, 128}, {8, 128}, {64, 0}}) {
        CheckAgainstDoubles(size, rows_each, cols_each, decode, KeptWeights::kAsStored);
      }
    }
  }
  for (const bool decode : {false, true}) {
    CheckAgainstDoubles({17, 264, 88}, 8, 128, decode, KeptWeights::kNumbers);
  }
}

// More features than are unpacked at a time, with a last tile of fewer.
TEST_P(EightBitWeightsTest, TilesOfAWeightJoin) {
  CheckAgainstDoubles({20, 64, 4600}, 8, 0, false, KeptWeights::kAsStored);
}

TEST_P(EightBitWeightsTest, NumbersBecomeTheNearestOfEachRow) {
  constexpr int64_t kOut = 40, kIn = 136, kRows = 7;
  for (const DType dtype : {DType::kBf16, DType::kF32}) {
    auto values = RandomNormal(kOut * kIn, 1, 0.02f);
    std::fill(values.begin(), values.begin() + kIn, 0.0f);  // a row without numbers
    for (int64_t i = 0; i < kIn; ++i) values[static_cast<size_t>(kIn + i)] *= 1e-36f;
    const auto weight = data_.UploadMatrix(values, kOut, kIn, dtype);
    const auto rounded = data_.Values(weight);
    std::vector<double> want(rounded.size());
    for (size_t row = 0; row < kOut; ++row) {
      float largest = 0;
      for (size_t i = 0; i < kIn; ++i) {
        largest = std::max(largest, std::fabs(rounded[row * kIn + i]));
      }
      const float scale = QuantizationScale(largest);
      for (size_t i = 0; i < kIn; ++i) {
        const float code = FromE4m3(ToE4m3(rounded[row * kIn + i] / scale));
        want[row * kIn + i] = double{code} * scale;
        // The nearest: half of a step of 1/8 below the largest power of two, or of 2^-9.
        const double of_scale = std::fabs(double{rounded[row * kIn + i]}) / scale;
        EXPECT_LE(std::fabs(code - double{rounded[row * kIn + i]} / scale),
                  std::max(of_scale / 16, 0x1p-10) * 1.0001);
      }
    }
    const auto linear = PrepareRounded(weight.view);
    ASSERT_TRUE(linear.ok()) << linear.status();
    const auto x = RandomNormal(kRows * kIn, 2);
    for (const bool decode : {false, true}) {
      const auto got = Run(**linear, x, kRows, decode);
      EXPECT_LE(RelativeError(got, Products(x, kRows, want, kIn, kOut)),
                GetParam().matmul_tolerance);
      EXPECT_EQ(got.front(), 0.0f);
    }
  }
}

TEST_P(EightBitWeightsTest, ARowDoesNotDependOnTheOthers) {
  constexpr int64_t kIn = 272, kRows = 130;
  const auto x = RandomNormal(kRows * kIn, 5);
  for (const int64_t out : {300, 512}) {
    for (const int64_t cols_each : {int64_t{0}, WeightScales::kBlock}) {
      const auto linear = Prepare(CodedWeight(out, kIn, 4, cols_each, 4));
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
              << first << ", " << rows << " of " << out << (decode ? ", decode" : "");
        }
      }
    }
  }
}

TEST_P(EightBitWeightsTest, GatesTheFirstHalfOfTheFeaturesByTheOther) {
  for (const int64_t cols_each : {int64_t{0}, WeightScales::kBlock}) {
    for (const Size& size :
         {Size{1, 64, 48}, Size{9, 520, 40}, Size{20, 136, 48}, Size{40, 384, 16}}) {
      const int64_t half = size.out / 2;
      const CodedWeight weight(size.out, size.in, 8, cols_each, 1);
      const auto linear = Prepare(weight);
      ASSERT_TRUE(linear.ok()) << linear.status();
      const auto x = RandomNormal(static_cast<size_t>(size.rows * size.in), 2, 0.3f);
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
            << size.rows << " x " << size.in << " x " << size.out << " decode " << decode;
      }
    }
  }
}

// Numbers as a product of codes by codes has them: each row rounded with its own scale.
std::vector<float> RoundedRows(std::span<const float> x, int64_t rows, int64_t in) {
  std::vector<float> rounded;
  for (int64_t r = 0; r < rows; ++r) {
    const auto row = x.subspan(static_cast<size_t>(r * in), static_cast<size_t>(in));
    float largest = 0;
    for (const float value : row) largest = std::max(largest, std::fabs(value));
    const float scale = QuantizationScale(largest);
    for (const float value : row) {
      rounded.push_back(FromE4m3(ToE4m3(value * (1.0f / scale))) * scale);
    }
  }
  return rounded;
}

// Whether the backend multiplies codes by codes; else it must refuse.
class EightBitActivationsTest : public EightBitWeightsTest {
 protected:
  void SetUp() override {
    const auto linear =
        Prepare(CodedWeight(32, 64, 1, 0, 1), std::nullopt, KeptWeights::kFp8Products);
    if (linear.ok()) return;
    EXPECT_EQ(linear.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(linear.status().message().find("--activations-dtype bf16"), std::string::npos);
    GTEST_SKIP() << linear.status();
  }

  // Of bf16 numbers, as activations are.
  std::vector<float> Rows(int64_t rows, int64_t in, uint64_t seed) {
    auto values = RandomNormal(static_cast<size_t>(rows * in), seed);
    for (int64_t r = 0; r < rows; ++r) {  // of sizes that no one scale would hold
      for (int64_t i = 0; i < in; ++i) {
        values[static_cast<size_t>(r * in + i)] *= std::exp2(static_cast<float>(r % 40 - 20));
      }
    }
    return data_.Values(data_.Activations(values, rows, in));
  }
};

TEST_P(EightBitActivationsTest, FollowDoublesOfRoundedRows) {
  for (const Size& size : {Size{1, 64, 32},
                           {17, 128, 256},
                           {33, 264, 96},
                           {5, 1160, 48},
                           {300, 640, 528},
                           {9, 200, 64}}) {
    for (const int64_t rows_each : {1, 16}) {
      const CodedWeight weight(size.out, size.in, rows_each, 0, 1);
      const auto bias = data_.UploadMatrix(RandomNormal(static_cast<size_t>(size.out), 3), 1,
                                           size.out, DType::kBf16);
      const auto linear = Prepare(weight, bias.view, KeptWeights::kFp8Products);
      ASSERT_TRUE(linear.ok()) << linear.status();
      const auto x = Rows(size.rows, size.in, 2);
      // Row by row: the sizes of rows differ too much for one error of all.
      const auto got = Run(**linear, x, size.rows, false);
      const auto want = Products(RoundedRows(x, size.rows, size.in), size.rows, weight.numbers,
                                 size.in, size.out, data_.Values(bias));
      for (int64_t r = 0; r < size.rows; ++r) {
        const auto at = static_cast<size_t>(r * size.out);
        const auto count = static_cast<size_t>(size.out);
        EXPECT_LE(
            RelativeError(std::span(got).subspan(at, count), std::span(want).subspan(at, count)),
            GetParam().matmul_tolerance)
            << "row " << r << " of " << size.rows << " x " << size.in << " x " << size.out;
      }
    }
  }
}

TEST_P(EightBitActivationsTest, AddToWhatIsThere) {
  constexpr int64_t kRows = 20, kIn = 128, kOut = 64;
  const CodedWeight weight(kOut, kIn, 1, 0, 1);
  const auto linear = Prepare(weight, std::nullopt, KeptWeights::kFp8Products);
  ASSERT_TRUE(linear.ok()) << linear.status();
  const auto x = data_.Values(data_.Activations(RandomNormal(kRows * kIn, 2), kRows, kIn));
  const auto before = RandomNormal(kRows * kOut, 7);
  const auto in = data_.Activations(x, kRows, kIn);
  const auto out = data_.Activations(before, kRows, kOut);
  auto want = Products(RoundedRows(x, kRows, kIn), kRows, weight.numbers, kIn, kOut);
  const auto added = data_.Values(out);
  for (size_t i = 0; i < want.size(); ++i) want[i] += double{added[i]};
  const absl::Status status = backend_->ops->model().Linear(
      *backend_->stream,
      {.linear = linear->get(), .in = in.view, .out = out.view, .accumulate = true});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_LE(RelativeError(data_.Values(out), want), GetParam().matmul_tolerance);
}

// More rows than the memory of a tile holds at a time, and any cut of them.
TEST_P(EightBitActivationsTest, ARowDoesNotDependOnTheOthers) {
  constexpr int64_t kIn = 272, kOut = 304, kRows = 1500;
  const auto x = Rows(kRows, kIn, 5);
  const auto linear =
      Prepare(CodedWeight(kOut, kIn, 1, 0, 4), std::nullopt, KeptWeights::kFp8Products);
  ASSERT_TRUE(linear.ok()) << linear.status();
  const auto all = Run(**linear, x, kRows, false);
  for (const auto& [first, rows] :
       {std::pair<int64_t, int64_t>{0, 1}, {7, 20}, {15, 64}, {3, 9}, {1499, 1}, {500, 777}}) {
    const auto some =
        Run(**linear,
            std::span(x).subspan(static_cast<size_t>(first * kIn), static_cast<size_t>(rows * kIn)),
            rows, false);
    const auto same = std::span(all).subspan(static_cast<size_t>(first * kOut), some.size());
    EXPECT_TRUE(std::equal(some.begin(), some.end(), same.begin())) << first << ", " << rows;
  }
}

// Decode, and weights with scales for blocks, are as without products of codes by codes.
TEST_P(EightBitActivationsTest, LeavesTheOthersAlone) {
  constexpr int64_t kRows = 20, kIn = 256, kOut = 128;
  const auto x = Rows(kRows, kIn, 2);
  for (const auto& [cols_each, decode] :
       {std::pair<int64_t, bool>{0, true}, {128, true}, {128, false}}) {
    const CodedWeight weight(kOut, kIn, 8, cols_each, 1);
    const auto plain = Prepare(weight);
    const auto products = Prepare(weight, std::nullopt, KeptWeights::kFp8Products);
    ASSERT_TRUE(plain.ok() && products.ok());
    EXPECT_EQ(Run(**products, x, kRows, decode), Run(**plain, x, kRows, decode));
  }
}

TEST_P(EightBitActivationsTest, ARowThatIsNotFiniteSpoilsNoOther) {
  constexpr int64_t kRows = 3, kIn = 64, kOut = 32;
  const auto linear =
      Prepare(CodedWeight(kOut, kIn, 1, 0, 1), std::nullopt, KeptWeights::kFp8Products);
  ASSERT_TRUE(linear.ok()) << linear.status();
  auto x = RandomNormal(kRows * kIn, 2);
  const auto want = Run(**linear, x, kRows, false);
  for (const float bad : {kNan, std::numeric_limits<float>::infinity()}) {
    x[kIn + 5] = bad;
    const auto got = Run(**linear, x, kRows, false);
    for (size_t i = 0; i < got.size(); ++i) {
      if (i / kOut == 1) {
        EXPECT_FALSE(std::isfinite(got[i])) << i;
      } else {
        EXPECT_EQ(got[i], want[i]) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, EightBitActivationsTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

TEST_P(EightBitWeightsTest, RefusesWhatIsNoNumber) {
  CodedWeight weight(40, 24, 1, 0, 1);
  weight.codes[39 * 24 + 23] = 0xff;
  EXPECT_EQ(Prepare(weight).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Prepare(weight, std::nullopt, KeptWeights::kNumbers).status().code(),
            absl::StatusCode::kInvalidArgument);
  for (const float bad : {kNan, std::numeric_limits<float>::infinity()}) {
    std::vector<float> values(6, 1.0f);
    values[4] = bad;
    const auto numbers = data_.UploadMatrix(values, 2, 3, DType::kF32);
    EXPECT_EQ(PrepareRounded(numbers.view).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(EightBitWeightsTest, RefusesScalesThatDoNotFit) {
  const CodedWeight good(40, 200, 8, 128, 1);
  ASSERT_TRUE(Prepare(good).ok());
  for (const float scale : {0.0f, -1.0f, kNan, std::numeric_limits<float>::infinity()}) {
    CodedWeight weight = good;
    weight.scales.values[3] = scale;
    EXPECT_EQ(Prepare(weight).status().code(), absl::StatusCode::kInvalidArgument) << scale;
  }
  for (const auto& [rows_each, cols_each] :
       {std::pair<int64_t, int64_t>{4, 128}, {8, 0}, {0, 128}, {6, 128}, {256, 128}, {8, 64}}) {
    CodedWeight weight = good;
    weight.scales.rows_each = rows_each;
    weight.scales.cols_each = cols_each;
    EXPECT_EQ(Prepare(weight).status().code(), absl::StatusCode::kInvalidArgument) << rows_each;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, EightBitWeightsTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
