#include "gpu_worker/ops/attention/prefill_attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/layer_kv_image.h"

namespace retroinfer {
namespace {

using namespace test_support;

struct Case {
  uint32_t head_dim;
  uint32_t kv_heads;
  uint32_t group;
  DType dtype;
  int64_t first_token;
  int64_t num_queries;
  AttentionWindow window = {};
  bool has_sinks = false;
  double scale = 0;  // 0: 1 / sqrt(head_dim)

  double Scale() const { return scale > 0 ? scale : 1 / std::sqrt(double{1} * head_dim); }
};

class PrefillAttentionTest : public testing::TestWithParam<BackendParam> {
 protected:
  // KV of `tokens` tokens; places behind them, up to `capacity`, are NaN: nothing may read them.
  LayerKvImage MakeKv(const Case& c, int64_t tokens, int64_t capacity) {
    std::vector<float> keys, values;
    for (uint32_t head = 0; head < c.kv_heads; ++head) {
      for (auto [seed, out] : {std::pair{10 + head, &keys}, {20 + head, &values}}) {
        const auto random = RandomNormal(static_cast<size_t>(tokens) * c.head_dim, seed);
        out->insert(out->end(), random.begin(), random.end());
        out->insert(out->end(), static_cast<size_t>(capacity - tokens) * c.head_dim, kNan);
      }
    }
    return LayerKvImage(data_, keys, values, c.kv_heads, c.head_dim, c.dtype);
  }

  // The same without `left_out` tokens behind those that are always seen.
  LayerKvImage MakeForgetful(const Case& c, const LayerKvImage& kv, int64_t left_out) {
    std::vector<float> keys, values;
    for (uint32_t head = 0; head < c.kv_heads; ++head) {
      for (int64_t t = 0; t < c.num_queries - left_out; ++t) {
        const int64_t from = t < c.window.always_seen ? t : t + left_out;
        keys.insert(keys.end(), kv.Key(head, from), kv.Key(head, from) + c.head_dim);
        values.insert(values.end(), kv.Value(head, from), kv.Value(head, from) + c.head_dim);
      }
    }
    return LayerKvImage(data_, keys, values, c.kv_heads, c.head_dim, c.dtype);
  }

  std::vector<float> Run(const Case& c, const LayerKv& kv, std::span<const float> queries,
                         int64_t first_token) {
    const int64_t cols = int64_t{c.kv_heads} * c.group * c.head_dim;
    const auto rows = static_cast<int64_t>(queries.size()) / cols;
    const auto q = data_.Activations(queries, rows, cols);
    const auto out = data_.Poisoned(rows, cols);
    const DeviceBuffer sinks = data_.Upload(Sinks(c));
    PrefillAttentionArgs args = {.queries = q.view,
                                 .kv = kv,
                                 .first_token = first_token,
                                 .scale = static_cast<float>(c.Scale()),
                                 .window = c.window,
                                 .out = out.view};
    if (c.has_sinks) args.sinks = sinks.as<const float>();
    const absl::Status status =
        backend_->ops->attention().PrefillAttention(*backend_->stream, args);
    EXPECT_TRUE(status.ok()) << status;
    return data_.Values(out);
  }

  // From next to nothing to all of the mass.
  static std::vector<float> Sinks(const Case& c) {
    std::vector<float> sinks;
    for (uint32_t head = 0; head < c.kv_heads * c.group; ++head) {
      sinks.push_back(6.0f * static_cast<float>(head % 5) - 9.0f);
    }
    return sinks;
  }

  static bool Sees(const AttentionWindow& window, int64_t row, int64_t token) {
    if (token > row) return false;
    if (window.tokens == 0 || token < window.always_seen) return true;
    const auto group = [&](int64_t at) { return (at - window.always_seen) / window.step; };
    return row >= window.always_seen && group(token) > group(row) - window.tokens / window.step;
  }

  void CheckAgainstDoubles(const Case& c) {
    const int64_t tokens = c.first_token + c.num_queries;
    const auto kv = MakeKv(c, tokens, tokens + 37);
    const int64_t heads = int64_t{c.kv_heads} * c.group;
    const auto q = RandomNormal(static_cast<size_t>(c.num_queries * heads) * c.head_dim, 3);
    const auto got = Run(c, kv.view(), q, c.first_token);
    std::vector<double> want(got.size());
    for (int64_t row = 0; row < c.num_queries * heads; ++row) {
      const auto kv_head = static_cast<uint32_t>(row % heads) / c.group;
      const float* query = q.data() + row * c.head_dim;
      std::vector<double> weights;
      double sum = c.has_sinks ? std::exp(double{Sinks(c)[static_cast<size_t>(row % heads)]}) : 0;
      for (int64_t t = 0; t <= c.first_token + row / heads; ++t) {
        double score = 0;
        for (uint32_t i = 0; i < c.head_dim; ++i) score += double{query[i]} * kv.Key(kv_head, t)[i];
        const bool is_seen = Sees(c.window, c.first_token + row / heads, t);
        weights.push_back(is_seen ? std::exp(score * c.Scale()) : 0);
        sum += weights.back();
      }
      for (size_t t = 0; t < weights.size(); ++t) {
        const float* value = kv.Value(kv_head, static_cast<int64_t>(t));
        for (uint32_t i = 0; i < c.head_dim; ++i) {
          want[static_cast<size_t>(row) * c.head_dim + i] += weights[t] / sum * value[i];
        }
      }
    }
    EXPECT_LE(RelativeError(got, want), GetParam().matmul_tolerance)
        << "head_dim " << c.head_dim << ", group " << c.group << ", " << DTypeName(c.dtype)
        << ", first " << c.first_token << ", queries " << c.num_queries << ", window "
        << c.window.tokens << " in steps of " << c.window.step << " behind " << c.window.always_seen
        << ", sinks " << c.has_sinks;
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(PrefillAttentionTest, FirstTokenSeesItselfOnly) {
  const Case c = {64, 1, 2, DType::kF32, 0, 1};
  const auto kv = MakeKv(c, 1, 1);
  const auto got = Run(c, kv.view(), RandomNormal(128, 1), 0);
  // One rounding of the output.
  const float relative =
      backend_->ops->model().activation_dtype() == DType::kF32 ? 1e-6f : 1.0f / 256;
  for (size_t i = 0; i < 128; ++i) {
    const float want = kv.Value(0, 0)[i % 64];
    EXPECT_NEAR(got[i], want, 1e-6f + relative * std::abs(want));
  }
}

TEST_P(PrefillAttentionTest, FollowsDoublesForAllSizes) {
  for (const KvFormat& format : KvFormatsOf(*backend_)) {
    const DType dtype = format.prompt;
    for (const int64_t queries : {1, 31, 32, 33, 150}) {
      for (const int64_t first : {0, 1, 127, 128, 300}) {
        CheckAgainstDoubles({64, 1, 2, dtype, first, queries});
      }
    }
  }
}

TEST_P(PrefillAttentionTest, FollowsDoublesForAllShapesOfHeads) {
  for (const uint32_t head_dim : kHeadDims) {
    for (const uint32_t group : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 10u, 16u}) {
      CheckAgainstDoubles({head_dim, 2, group, DType::kBf16, 60, 45});
    }
    CheckAgainstDoubles({head_dim, 3, 3, DType::kF32, 200, 70});
  }
}

TEST_P(PrefillAttentionTest, AResultDoesNotDependOnTheChunk) {
  for (const KvFormat& format : KvFormatsOf(*backend_)) {
    const DType dtype = format.prompt;
    const Case c = {128, 2, 3, dtype, 0, 400};
    const auto kv = MakeKv(c, c.num_queries, c.num_queries);
    const size_t cols = size_t{6} * c.head_dim;
    const auto q = RandomNormal(static_cast<size_t>(c.num_queries) * cols, 5);
    const auto whole = Run(c, kv.view(), q, 0);
    int64_t first = 0;
    for (const int64_t rows : {1, 7, 56, 64, 100, 128, 44}) {
      const size_t begin = static_cast<size_t>(first) * cols;
      const auto part =
          Run(c, kv.view(), std::span(q).subspan(begin, static_cast<size_t>(rows) * cols), first);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<int64_t>(begin)))
          << "rows " << first << " to " << first + rows;
      first += rows;
    }
    ASSERT_EQ(first, c.num_queries);
  }
}

// Windows within a block of keys, of many blocks, and of more than there are tokens.
TEST_P(PrefillAttentionTest, FollowsDoublesForAllWindows) {
  for (const KvFormat& format : KvFormatsOf(*backend_)) {
    for (const int64_t tokens : {1, 2, 31, 64, 127, 128, 129, 300, 1000}) {
      for (const int64_t first : {0, 1, 300}) {
        CheckAgainstDoubles({64, 1, 2, format.prompt, first, 150, {.tokens = tokens}});
      }
    }
  }
  for (const uint32_t head_dim : kHeadDims) {
    CheckAgainstDoubles({head_dim, 2, 3, DType::kBf16, 700, 200, {.tokens = 128}, true});
  }
}

// The mask of policy streaming: whole blocks behind a few tokens that are always seen.
TEST_P(PrefillAttentionTest, FollowsDoublesForWindowsInSteps) {
  for (const KvFormat& format : KvFormatsOf(*backend_)) {
    for (const int64_t tokens : {64, 128, 192, 640}) {
      for (const int64_t first : {0, 3, 4, 67, 68, 300}) {
        CheckAgainstDoubles({64,
                             2,
                             1,
                             format.prompt,
                             first,
                             250,
                             {.tokens = tokens, .step = 64, .always_seen = 4}});
      }
    }
  }
  CheckAgainstDoubles(
      {128, 1, 2, DType::kBf16, 0, 300, {.tokens = 40, .step = 5, .always_seen = 32}, true});
}

TEST_P(PrefillAttentionTest, FollowsDoublesForSinksAndScales) {
  for (const uint32_t head_dim : kHeadDims) {
    CheckAgainstDoubles({head_dim, 2, 5, DType::kBf16, 60, 145, {}, true});
    CheckAgainstDoubles({head_dim, 1, 8, DType::kF32, 0, 33, {}, true, 0.3});
    CheckAgainstDoubles({head_dim, 2, 2, DType::kBf16, 10, 40, {}, false, 0.02});
  }
}

TEST_P(PrefillAttentionTest, AWindowOfEverythingChangesNoBit) {
  const Case c = {64, 2, 2, DType::kBf16, 0, 300};
  const auto kv = MakeKv(c, 300, 300);
  const auto q = RandomNormal(size_t{300} * 4 * 64, 5);
  Case windowed = c;
  windowed.window.tokens = 300;
  EXPECT_EQ(Run(c, kv.view(), q, 0), Run(windowed, kv.view(), q, 0));
}

// Nor, with a window, on how many rows before it the KV leaves out, as long as these are whole
// blocks of 128 (what always is seen stays in front).
TEST_P(PrefillAttentionTest, AWindowedResultDependsNeitherOnTheChunkNorOnForgottenRows) {
  for (const AttentionWindow& window :
       {AttentionWindow{.tokens = 100},
        AttentionWindow{.tokens = 192, .step = 64, .always_seen = 4}}) {
    for (const KvFormat& format : KvFormatsOf(*backend_)) {
      Case c = {128, 2, 3, format.prompt, 0, 700, window, true};
      const auto kv = MakeKv(c, c.num_queries, c.num_queries);
      const size_t cols = size_t{6} * c.head_dim;
      const auto q = RandomNormal(static_cast<size_t>(c.num_queries) * cols, 5);
      const auto whole = Run(c, kv.view(), q, 0);
      int64_t first = 0;
      for (const int64_t rows : {1, 7, 56, 64, 100, 128, 44, 300}) {
        const size_t begin = static_cast<size_t>(first) * cols;
        const auto part =
            Run(c, kv.view(), std::span(q).subspan(begin, static_cast<size_t>(rows) * cols), first);
        EXPECT_TRUE(
            std::equal(part.begin(), part.end(), whole.begin() + static_cast<int64_t>(begin)))
            << "rows " << first << " to " << first + rows << ", window " << window.tokens;
        first += rows;
      }
      ASSERT_EQ(first, c.num_queries);
      const auto shorter = MakeForgetful(c, kv, 256);
      const size_t begin = 500 * cols;
      const auto rest = Run(c, shorter.view(), std::span(q).subspan(begin), 500 - 256);
      EXPECT_TRUE(std::equal(rest.begin(), rest.end(), whole.begin() + static_cast<int64_t>(begin)))
          << "window " << window.tokens;
    }
  }
}

TEST_P(PrefillAttentionTest, RefusesWindowsSinksAndScalesThatCannotBe) {
  const Case c = {64, 1, 2, DType::kF32, 0, 0};
  const auto kv = MakeKv(c, 4, 4);
  const auto q = data_.Poisoned(2, 128);
  const DeviceBuffer sink = data_.Upload(std::vector<float>(1, 0.0f));
  const PrefillAttentionArgs good = {
      .queries = q.view, .kv = kv.view(), .first_token = 2, .scale = 1, .out = q.view};
  const auto refuses = [&](auto change) {
    PrefillAttentionArgs args = good;
    change(args);
    return backend_->ops->attention().PrefillAttention(*backend_->stream, args).code() ==
           absl::StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(refuses([](auto&) {}));
  EXPECT_TRUE(refuses([](auto& args) { args.scale = 0; }));
  EXPECT_TRUE(refuses([](auto& args) { args.scale = INFINITY; }));
  EXPECT_TRUE(refuses([](auto& args) { args.window.tokens = -1; }));
  EXPECT_TRUE(refuses([](auto& args) { args.window.step = 0; }));
  EXPECT_TRUE(refuses([](auto& args) { args.window = {.tokens = 100, .step = 64}; }));
  EXPECT_TRUE(refuses([](auto& args) { args.window.always_seen = kMaxAlwaysSeen + 1; }));
  EXPECT_TRUE(refuses([&](auto& args) { args.sinks = sink.as<const float>(); }));
}

TEST_P(PrefillAttentionTest, OneLargeScoreTakesAllTheWeight) {
  const Case c = {64, 1, 1, DType::kF32, 0, 200};
  std::vector<float> keys(200 * 64, 0.0f);
  const auto values = RandomNormal(200 * 64, 8);
  keys[150 * 64] = 1.0f;
  const LayerKvImage kv(data_, keys, values, 1, 64, DType::kF32);
  std::vector<float> q(200 * 64, 0.0f);
  q[199 * 64] = 5000.0f;
  q[198 * 64] = -5000.0f;
  const auto got = Run(c, kv.view(), q, 0);
  std::vector<double> rest(64);
  for (int64_t t = 0; t < 199; ++t) {
    for (size_t i = 0; i < 64; ++i) {
      if (t != 150) rest[i] += kv.Value(0, t)[i] / 198.0;
    }
  }
  const double relative = backend_->ops->model().activation_dtype() == DType::kF32 ? 0 : 1.0 / 256;
  for (size_t i = 0; i < 64; ++i) {
    const double value = kv.Value(0, 150)[i];
    EXPECT_NEAR(got[199 * 64 + i], value, 1e-5 + relative * std::abs(value));
    EXPECT_NEAR(got[198 * 64 + i], rest[i], 1e-5 + relative * std::abs(rest[i]));
  }
}

TEST_P(PrefillAttentionTest, TakesNoQueries) {
  const Case c = {64, 1, 1, DType::kF32, 0, 0};
  const auto kv = MakeKv(c, 4, 4);
  EXPECT_TRUE(Run(c, kv.view(), {}, 4).empty());
}

TEST_P(PrefillAttentionTest, RefusesTokensBeyondTheKv) {
  const Case c = {64, 1, 1, DType::kF32, 0, 0};
  const auto kv = MakeKv(c, 4, 4);
  const auto q = data_.Poisoned(2, 64);
  EXPECT_EQ(
      backend_->ops->attention()
          .PrefillAttention(
              *backend_->stream,
              {.queries = q.view, .kv = kv.view(), .first_token = 3, .scale = 1, .out = q.view})
          .code(),
      absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Backends, PrefillAttentionTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
