#include "gpu_worker/ops/model/grouped_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "gpu_worker/ops/model/int4.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using namespace test_support;

// In what the matrices of experts are kept.
enum class Kept { kBf16, kF32, kFp8, kFp8Blocks, kInt4, kInt4Words };
constexpr Kept kAllKept[] = {Kept::kBf16,      Kept::kF32,  Kept::kFp8,
                             Kept::kFp8Blocks, Kept::kInt4, Kept::kInt4Words};

struct Size {
  int64_t rows, in, features, experts, per_row;
};

class GroupedLinearTest : public testing::TestWithParam<BackendParam> {
 protected:
  struct Routes {
    DeviceBuffer experts, weights, plan;
    ExpertRoutes routes;
  };

  // Numbers, or codes of the form, of `parts` parts of `features` features.
  std::unique_ptr<PreparedLinear> Prepare(Kept kept, int64_t parts, int64_t features, int64_t in,
                                          uint64_t seed) {
    const int64_t rows = parts * features;
    LinearWeights weights;
    weights.num_parts = parts;
    DeviceBuffer codes;
    DeviceData::Matrix numbers;
    if (kept == Kept::kFp8Blocks || kept == Kept::kInt4Words) {
      const WeightForm form = kept == Kept::kInt4Words ? Int4Weights(32, true) : kFp8Weights;
      std::mt19937_64 generator(seed);
      std::vector<std::byte> bytes(form.Bytes(rows, in));
      // No code of e4m3 is NaN without its highest bits.
      for (std::byte& byte : bytes) {
        byte = static_cast<std::byte>(generator() & (kept == Kept::kInt4Words ? 0xff : 0xbf));
      }
      codes = data_.Upload(bytes);
      weights.weight = WeightView::Dense(codes.bytes(), form, rows, in);
      weights.scales.rows_each = kept == Kept::kInt4Words ? 1 : 8;
      weights.scales.cols_each = kept == Kept::kInt4Words ? 32 : WeightScales::kBlock;
      const int64_t count = weights.scales.num_rows(rows) * weights.scales.num_cols(in);
      for (int64_t i = 0; i < count; ++i) {
        weights.scales.values.push_back(0.02f + 0.001f * static_cast<float>(generator() % 16));
        if (kept == Kept::kInt4Words) {
          weights.scales.zeros.push_back(static_cast<float>(generator() % 17));
        }
      }
    } else {
      numbers = data_.UploadMatrix(RandomNormal(static_cast<size_t>(rows * in), seed, 0.1f), rows,
                                   in, kept == Kept::kF32 ? DType::kF32 : DType::kBf16);
      weights.weight = AsWeights(numbers.view);
      if (kept == Kept::kFp8) weights.keep = KeptWeights::kFp8;
      if (kept == Kept::kInt4) weights.keep = KeptWeights::kInt4;
    }
    DeviceData::Matrix bias;
    if (biased_) {
      bias = data_.UploadMatrix(RandomNormal(static_cast<size_t>(rows), seed + 100, 2.0f), 1, rows,
                                DType::kBf16);
      weights.bias = AsWeights(bias.view);
    }
    auto linear = backend_->ops->model().PrepareLinear(weights);
    EXPECT_TRUE(linear.ok()) << linear.status();
    biases_[linear->get()] =
        biased_ ? data_.Values(bias) : std::vector<float>(static_cast<size_t>(rows));
    return *std::move(linear);
  }

  // What linear multiplies: [out_features][in_features].
  std::vector<float> NumbersOf(const PreparedLinear& linear) {
    const int64_t in = linear.in_features();
    std::vector<float> identity(static_cast<size_t>(in * in));
    for (int64_t i = 0; i < in; ++i) identity[static_cast<size_t>(i * in + i)] = 1;
    const auto x = data_.Activations(identity, in, in);
    const auto y =
        data_.UploadMatrix(std::vector<float>(static_cast<size_t>(in * linear.out_features())), in,
                           linear.out_features(), DType::kF32);
    EXPECT_TRUE(backend_->ops->model()
                    .Linear(*backend_->stream,
                            {.linear = &linear, .in = x.view, .out = y.view, .decode = true})
                    .ok());
    const auto columns = data_.Values(y);
    std::vector<float> numbers(columns.size());
    for (int64_t row = 0; row < linear.out_features(); ++row) {
      for (int64_t i = 0; i < in; ++i) {
        numbers[static_cast<size_t>(row * in + i)] =
            columns[static_cast<size_t>(i * linear.out_features() + row)] -
            biases_.at(&linear)[static_cast<size_t>(row)];
      }
    }
    return numbers;
  }

  Routes Route(std::span<const float> scores, const Size& size, bool decode) {
    const auto in = data_.UploadMatrix(scores, size.rows, size.experts, DType::kF32);
    const auto pairs = static_cast<size_t>(size.rows * size.per_row);
    Routes routes;
    routes.experts = data_.Upload(std::vector<int32_t>(pairs, -1));
    routes.weights = data_.Upload(std::vector<float>(pairs, kNan));
    routes.plan = data_.Upload(std::vector<int32_t>(
        static_cast<size_t>(RoutePlan::MostWords(size.experts, size.per_row, size.rows)), -1));
    routes.routes = {.num_experts = size.experts,
                     .per_row = size.per_row,
                     .experts = routes.experts.as<int32_t>(),
                     .weights = routes.weights.as<float>(),
                     .plan = routes.plan.as<int32_t>()};
    EXPECT_TRUE(backend_->ops->model()
                    .RouteExperts(*backend_->stream, {.scores = in.view,
                                                      .weights_sum_to_one = true,
                                                      .decode = decode,
                                                      .routes = routes.routes})
                    .ok());
    return routes;
  }

  struct Results {
    std::vector<float> gated, out;
  };
  // The network of experts of some rows, whose residual is `x`, if there is no residual_.
  Results Run(const PreparedLinear& gate_up, const PreparedLinear& down, std::span<const float> x,
              std::span<const float> scores, const Size& size, bool decode) {
    const Routes routes = Route(scores, size, decode);
    const int64_t pairs = size.rows * size.per_row;
    const auto in = data_.Activations(x, size.rows, size.in);
    const auto gated = data_.Poisoned(pairs, size.features);
    const auto products = data_.Poisoned(pairs, size.in);
    const auto out = data_.Activations(residual_.empty() ? x : residual_, size.rows, size.in);
    ModelOps& ops = backend_->ops->model();
    absl::Status status = ops.GroupedGatedLinear(*backend_->stream, {.linear = &gate_up,
                                                                     .in = in.view,
                                                                     .routes = routes.routes,
                                                                     .out = gated.view,
                                                                     .decode = decode,
                                                                     .activation = activation_});
    EXPECT_TRUE(status.ok()) << status;
    status = ops.GroupedLinear(*backend_->stream, {.linear = &down,
                                                   .in = gated.view,
                                                   .routes = routes.routes,
                                                   .products = products.view,
                                                   .out = out.view,
                                                   .decode = decode,
                                                   .accumulate = accumulate_});
    EXPECT_TRUE(status.ok()) << status;
    experts_ = data_.Download<int32_t>(routes.experts);
    weights_ = data_.Download<float>(routes.weights);
    return {data_.Values(gated), data_.Values(out)};
  }

  static double Dot(std::span<const float> a, std::span<const float> b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
    return sum;
  }

  double Gated(double gate, double up) const {
    if (activation_ == GatedActivation::kClampedSwiglu) {
      gate = std::min(gate, 7.0);
      return gate / (1 + std::exp(-1.702 * gate)) * (std::clamp(up, -7.0, 7.0) + 1);
    }
    return gate / (1 + std::exp(-gate)) * up;
  }

  void CheckAgainstDoubles(Kept kept, const Size& size, bool decode) {
    const auto gate_up = Prepare(kept, 2 * size.experts, size.features, size.in, 1);
    const auto down = Prepare(kept, size.experts, size.in, size.features, 2);
    const auto x = data_.Rounded(RandomNormal(static_cast<size_t>(size.rows * size.in), 3));
    const auto scores = RandomNormal(static_cast<size_t>(size.rows * size.experts), 4);
    const Results got = Run(*gate_up, *down, x, scores, size, decode);
    const std::vector<float> of_gate_up = NumbersOf(*gate_up);
    const std::vector<float> of_down = NumbersOf(*down);
    const std::vector<float>& gate_up_bias = biases_.at(gate_up.get());
    const std::vector<float>& down_bias = biases_.at(down.get());
    const auto row_of = [](std::span<const float> matrix, int64_t row, int64_t cols) {
      return matrix.subspan(static_cast<size_t>(row * cols), static_cast<size_t>(cols));
    };
    std::vector<double> gated;
    std::vector<double> out(x.begin(), x.end());
    for (int64_t pair = 0; pair < size.rows * size.per_row; ++pair) {
      const int64_t row = pair / size.per_row;
      const int64_t expert = experts_[static_cast<size_t>(pair)];
      const auto in = row_of(x, row, size.in);
      for (int64_t f = 0; f < size.features; ++f) {
        const int64_t first = expert * 2 * size.features + f;
        const auto product = [&](int64_t feature) {
          return Dot(in, row_of(of_gate_up, feature, size.in)) +
                 gate_up_bias[static_cast<size_t>(feature)];
        };
        gated.push_back(Gated(product(first), product(first + size.features)));
      }
      // What the first product gave is what the second one gets.
      const auto of_pair = row_of(got.gated, pair, size.features);
      for (int64_t i = 0; i < size.in; ++i) {
        out[static_cast<size_t>(row * size.in + i)] +=
            weights_[static_cast<size_t>(pair)] *
            (Dot(of_pair, row_of(of_down, expert * size.in + i, size.features)) +
             down_bias[static_cast<size_t>(expert * size.in + i)]);
      }
    }
    const double tolerance = 2 * GetParam().matmul_tolerance;
    EXPECT_LE(RelativeError(got.gated, gated), tolerance)
        << size.rows << " rows, " << size.in << " x " << size.features << ", " << size.experts
        << " experts, kept " << static_cast<int>(kept) << (decode ? ", decode" : "");
    EXPECT_LE(RelativeError(got.out, out), tolerance)
        << size.rows << " rows, " << size.in << " x " << size.features << ", " << size.experts
        << " experts, kept " << static_cast<int>(kept) << (decode ? ", decode" : "");
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
  bool biased_ = false;
  std::vector<float> residual_;
  bool accumulate_ = true;
  GatedActivation activation_ = GatedActivation::kSilu;
  std::map<const PreparedLinear*, std::vector<float>> biases_;
  std::vector<int32_t> experts_;  // of the last run
  std::vector<float> weights_;
};

TEST_P(GroupedLinearTest, FollowsDoublesForAllSizesAndForms) {
  for (const Kept kept : kAllKept) {
    const bool of_tiles = kept == Kept::kInt4 || kept == Kept::kInt4Words;
    for (const Size& size :
         {Size{1, 64, 32, 8, 2}, Size{2, 48, 16, 1, 1}, Size{5, 272, 48, 16, 8},
          Size{64, 128, 80, 12, 3}, Size{70, 144, 64, 8, 4}, Size{150, 160, 144, 6, 2}}) {
      for (const bool decode : {false, true}) CheckAgainstDoubles(kept, size, decode);
    }
    if (of_tiles) continue;
    // Parts that end within a tile.
    for (const Size& size : {Size{3, 40, 24, 4, 4}, Size{33, 72, 136, 5, 2}}) {
      for (const bool decode : {false, true}) CheckAgainstDoubles(kept, size, decode);
    }
  }
}

// As gpt-oss has it.
TEST_P(GroupedLinearTest, FollowsDoublesWithBiasesAndClampedSwiglu) {
  biased_ = true;
  activation_ = GatedActivation::kClampedSwiglu;
  for (const Kept kept : kAllKept) {
    for (const Size& size :
         {Size{1, 64, 32, 8, 2}, Size{5, 272, 48, 16, 8}, Size{70, 144, 64, 8, 4}}) {
      for (const bool decode : {false, true}) CheckAgainstDoubles(kept, size, decode);
    }
  }
  CheckAgainstDoubles(Kept::kBf16, {3, 32, 2320, 3, 2}, true);  // k in several slices
}

// What adding leaves of zeros, whatever lay there.
TEST_P(GroupedLinearTest, MayOverwrite) {
  for (const bool decode : {false, true}) {
    constexpr Size kSize = {70, 144, 64, 8, 4};
    const auto gate_up = Prepare(Kept::kBf16, 2 * kSize.experts, kSize.features, kSize.in, 1);
    const auto down = Prepare(Kept::kBf16, kSize.experts, kSize.in, kSize.features, 2);
    const auto x = RandomNormal(kSize.rows * kSize.in, 3);
    const auto scores = RandomNormal(kSize.rows * kSize.experts, 4);
    residual_ = std::vector<float>(x.size());
    const Results added = Run(*gate_up, *down, x, scores, kSize, decode);
    residual_ = std::vector<float>(x.size(), test_support::kNan);
    accumulate_ = false;
    const Results written = Run(*gate_up, *down, x, scores, kSize, decode);
    accumulate_ = true;
    EXPECT_TRUE(written.out == added.out);
  }
}

// Of rows that all take the same experts, and of k in several slices.
TEST_P(GroupedLinearTest, FollowsDoublesWhereOneExpertHasAllRows) {
  for (const Kept kept : {Kept::kBf16, Kept::kFp8, Kept::kInt4}) {
    for (const bool decode : {false, true}) {
      CheckAgainstDoubles(kept, {200, 64, 32, 2, 2}, decode);
      CheckAgainstDoubles(kept, {3, 32, 2320, 3, 2}, decode);
      CheckAgainstDoubles(kept, {20, 32, 1040, 16, 16}, decode);
    }
  }
}

TEST_P(GroupedLinearTest, ARowDoesNotDependOnTheOthers) {
  constexpr Size kAll = {130, 1168, 48, 16, 4};
  const auto x = RandomNormal(kAll.rows * kAll.in, 5);
  const auto scores = RandomNormal(kAll.rows * kAll.experts, 6);
  for (const Kept kept : {Kept::kBf16, Kept::kFp8, Kept::kFp8Blocks, Kept::kInt4}) {
    const auto gate_up = Prepare(kept, 2 * kAll.experts, kAll.features, kAll.in, 1);
    const auto down = Prepare(kept, kAll.experts, kAll.in, kAll.features, 2);
    for (const bool decode : {false, true}) {
      const Results all = Run(*gate_up, *down, x, scores, kAll, decode);
      for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 1},
                                        {7, 20},
                                        {63, 2},
                                        {15, 64},
                                        {3, 9},
                                        {129, 1},
                                        {50, 80}}) {
        Size size = kAll;
        size.rows = rows;
        const auto part = [&](std::span<const float> values, int64_t cols) {
          return values.subspan(static_cast<size_t>(first * cols),
                                static_cast<size_t>(rows * cols));
        };
        const Results some =
            Run(*gate_up, *down, part(x, kAll.in), part(scores, kAll.experts), size, decode);
        const auto same = part(all.out, kAll.in);
        EXPECT_TRUE(std::equal(some.out.begin(), some.out.end(), same.begin()))
            << first << ", " << rows << ", kept " << static_cast<int>(kept)
            << (decode ? ", decode" : "");
      }
    }
  }
}

// A step is recorded once, and run with whatever experts its rows take then.
TEST_P(GroupedLinearTest, ARecordedStepTakesOtherExperts) {
  constexpr Size kSize = {5, 64, 32, 16, 2};
  const auto gate_up = Prepare(Kept::kFp8, 2 * kSize.experts, kSize.features, kSize.in, 1);
  const auto down = Prepare(Kept::kFp8, kSize.experts, kSize.in, kSize.features, 2);
  const auto x = data_.Rounded(RandomNormal(kSize.rows * kSize.in, 3));
  Routes routes = Route(std::vector<float>(kSize.rows * kSize.experts), kSize, true);
  const auto in = data_.Activations(x, kSize.rows, kSize.in);
  const auto out = data_.Activations(x, kSize.rows, kSize.in);
  const auto scores = data_.UploadMatrix(std::vector<float>(kSize.rows * kSize.experts), kSize.rows,
                                         kSize.experts, DType::kF32);
  const auto gated = data_.Poisoned(kSize.rows * kSize.per_row, kSize.features);
  const auto products = data_.Poisoned(kSize.rows * kSize.per_row, kSize.in);
  ModelOps& ops = backend_->ops->model();
  Stream& stream = *backend_->stream;
  const auto step = [&] {
    absl::Status status = ops.RouteExperts(stream, {.scores = scores.view,
                                                    .weights_sum_to_one = true,
                                                    .decode = true,
                                                    .routes = routes.routes});
    status.Update(ops.GroupedGatedLinear(stream, {.linear = gate_up.get(),
                                                  .in = in.view,
                                                  .routes = routes.routes,
                                                  .out = gated.view,
                                                  .decode = true}));
    status.Update(ops.GroupedLinear(stream, {.linear = down.get(),
                                             .in = gated.view,
                                             .routes = routes.routes,
                                             .products = products.view,
                                             .out = out.view,
                                             .decode = true}));
    return status;
  };
  std::unique_ptr<Graph> graph;  // null where work is enqueued piece by piece
  if (backend_->device->can_capture()) {
    auto captured = backend_->device->Capture(stream, step);
    ASSERT_TRUE(captured.ok()) << captured.status();
    graph = *std::move(captured);
  }
  for (const uint64_t seed : {7, 8, 9}) {
    const auto of_turn = RandomNormal(kSize.rows * kSize.experts, seed);
    const Results want = Run(*gate_up, *down, x, of_turn, kSize, true);
    const auto upload = [&](const DeviceData::Matrix& matrix, std::span<const float> values) {
      ASSERT_TRUE(
          backend_->device
              ->Upload(*backend_->stream, ToBytes(values, matrix.view.dtype), matrix.buffer.bytes())
              .ok());
      ASSERT_TRUE(backend_->stream->Synchronize().ok());
    };
    upload(scores, of_turn);
    upload(out, x);
    const absl::Status status = graph ? backend_->device->Launch(stream, *graph) : step();
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(data_.Values(out), want.out) << seed;
  }
}

TEST_P(GroupedLinearTest, RefusesWhatDoesNotFit) {
  constexpr Size kSize = {2, 32, 16, 4, 2};
  const auto gate_up = Prepare(Kept::kBf16, 2 * kSize.experts, kSize.features, kSize.in, 1);
  const auto down = Prepare(Kept::kBf16, kSize.experts, kSize.in, kSize.features, 2);
  const Routes routes = Route(RandomNormal(kSize.rows * kSize.experts, 1), kSize, true);
  const auto in = data_.Poisoned(2, 32), out = data_.Poisoned(2, 32);
  const auto gated = data_.Poisoned(4, 16), products = data_.Poisoned(4, 32);
  ModelOps& ops = backend_->ops->model();
  const GroupedGatedLinearArgs first = {.linear = gate_up.get(),
                                        .in = in.view,
                                        .routes = routes.routes,
                                        .out = gated.view,
                                        .decode = true};
  const GroupedLinearArgs second = {.linear = down.get(),
                                    .in = gated.view,
                                    .routes = routes.routes,
                                    .products = products.view,
                                    .out = out.view,
                                    .decode = true};
  const auto first_refused = [&](const auto& spoil) {
    GroupedGatedLinearArgs args = first;
    spoil(args);
    return ops.GroupedGatedLinear(*backend_->stream, args).code() ==
           absl::StatusCode::kInvalidArgument;
  };
  const auto second_refused = [&](const auto& spoil) {
    GroupedLinearArgs args = second;
    spoil(args);
    return ops.GroupedLinear(*backend_->stream, args).code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(first_refused([](auto&) {}));
  EXPECT_FALSE(second_refused([](auto&) {}));
  EXPECT_TRUE(first_refused([](auto& args) { args.linear = nullptr; }));
  EXPECT_TRUE(first_refused([&](auto& args) { args.linear = down.get(); }));
  EXPECT_TRUE(second_refused([&](auto& args) { args.linear = gate_up.get(); }));
  EXPECT_TRUE(first_refused([](auto& args) { args.in = args.in.Columns(0, 16); }));
  EXPECT_TRUE(first_refused([](auto& args) { args.out = args.out.Rows(0, 2); }));
  EXPECT_TRUE(second_refused([](auto& args) { args.in = args.in.Rows(0, 2); }));
  EXPECT_TRUE(second_refused([](auto& args) { args.products = args.products.Rows(0, 2); }));
  EXPECT_TRUE(second_refused([](auto& args) { args.routes.per_row = 1; }));
  EXPECT_TRUE(second_refused([](auto& args) { args.routes.plan = {}; }));
  LinearWeights odd{.weight = AsWeights(out.view), .bias = {}};
  odd.num_parts = 3;
  EXPECT_EQ(ops.PrepareLinear(odd).status().code(), absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Backends, GroupedLinearTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
