#include "gpu_worker/ops/attention/block_choice.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/layer_kv_image.h"

namespace retroinfer {
namespace {

using namespace test_support;

TEST(BlockChoiceTest, OnlyWholeUnitsBehindTheDenseTokensChoose) {
  const BlockChoice choice = {.threshold = 0.9f, .dense_before = 100};
  const auto tokens = [&](int64_t first, int64_t end) {
    const ChoosingTokens found = ChoosingOf(choice, first, end);
    return found.begin < found.end ? std::pair(found.begin, found.end)
                                   : std::pair<int64_t, int64_t>();
  };
  using Pair = std::pair<int64_t, int64_t>;
  EXPECT_EQ(tokens(0, 1000), Pair(132, 964));
  EXPECT_EQ(tokens(0, 195), Pair());
  EXPECT_EQ(tokens(0, 196), Pair(132, 196));
  EXPECT_EQ(tokens(133, 400), Pair(196, 388));
  EXPECT_EQ(tokens(0, 3), Pair());
  const ChoosingTokens none = ChoosingOf({}, 0, 1000);
  EXPECT_GE(none.begin, none.end);
}

struct Case {
  uint32_t head_dim = 64;
  uint32_t kv_heads = 2;
  uint32_t group = 2;
  KvFormat format;
  float threshold = 0.9f;
  int64_t dense_before = 0;
  int64_t tokens = 1200;
  bool has_sinks = false;
};

class SparsePrefillAttentionTest : public testing::TestWithParam<BackendParam> {
 protected:
  LayerKvImage MakeKv(const Case& c) {
    const size_t size = static_cast<size_t>(c.kv_heads * c.tokens) * c.head_dim;
    return LayerKvImage(data_, RandomNormal(size, 11), RandomNormal(size, 12), c.kv_heads,
                        c.head_dim, c.format);
  }
  static std::vector<float> Queries(const Case& c) {
    return RandomNormal(static_cast<size_t>(c.tokens) * RowOf(c), 3);
  }
  static size_t RowOf(const Case& c) { return size_t{c.kv_heads} * c.group * c.head_dim; }

  absl::Status Run(const Case& c, const LayerKv& kv, std::span<const float> queries,
                   int64_t first_token, std::vector<float>* out) {
    const auto cols = static_cast<int64_t>(RowOf(c));
    const auto rows = static_cast<int64_t>(queries.size()) / cols;
    const auto q = data_.Activations(queries, rows, cols);
    const auto made = data_.Poisoned(rows, cols);
    const std::vector<std::byte> poison(
        backend_->ops->attention().PrefillAttentionScratchBytes(rows, first_token + rows,
                                                                int64_t{c.kv_heads} * c.group),
        std::byte{0xff});
    const DeviceBuffer scratch = data_.Upload(poison);
    const DeviceBuffer sinks = data_.Upload(std::vector<float>(size_t{c.kv_heads} * c.group, 1.5f));
    PrefillAttentionArgs args = {
        .queries = q.view,
        .kv = kv,
        .first_token = first_token,
        .scale = 1 / std::sqrt(static_cast<float>(c.head_dim)),
        .choice = {.threshold = c.threshold, .dense_before = c.dense_before},
        .out = made.view,
        .scratch = scratch.bytes()};
    if (c.has_sinks) args.sinks = sinks.as<const float>();
    const absl::Status status =
        backend_->ops->attention().PrefillAttention(*backend_->stream, args);
    *out = data_.Values(made);
    return status;
  }
  std::vector<float> Run(const Case& c, const LayerKv& kv, std::span<const float> queries,
                         int64_t first_token) {
    std::vector<float> out;
    const absl::Status status = Run(c, kv, queries, first_token, &out);
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }
  absl::Status Status(const Case& c, const LayerKv& kv, int64_t first_token) {
    std::vector<float> out;
    return Run(c, kv, Queries(c), first_token, &out);
  }

  // What rows of whole units attend to when the floor alone holds the threshold.
  static bool IsFloor(const Case& c, int64_t row, int64_t token) {
    const ChoosingTokens choosing = ChoosingOf({c.threshold, c.dense_before}, 0, c.tokens);
    if (row < choosing.begin || row >= choosing.end) return true;
    const int64_t unit = kSinkTokens + (row - kSinkTokens) / kQueryUnit * kQueryUnit;
    const int64_t local = std::max<int64_t>(0, unit - kChoiceBlock) / kChoiceBlock * kChoiceBlock;
    return token < kChoiceBlock || token >= local;
  }

  void CheckFloor(const Case& c) {
    const LayerKvImage kv = MakeKv(c);
    const auto q = Queries(c);
    const auto got = Run(c, kv.view(), q, 0);
    std::vector<double> want(got.size());
    const int64_t heads = int64_t{c.kv_heads} * c.group;
    for (int64_t i = 0; i < c.tokens * heads; ++i) {
      const int64_t row = i / heads;
      const auto kv_head = static_cast<uint32_t>(i % heads) / c.group;
      std::vector<double> weights(static_cast<size_t>(row + 1));
      double sum = c.has_sinks ? std::exp(1.5) : 0;
      for (int64_t t = 0; t <= row; ++t) {
        if (!IsFloor(c, row, t)) continue;
        double score = 0;
        for (uint32_t x = 0; x < c.head_dim; ++x) {
          score += double{q[static_cast<size_t>(i) * c.head_dim + x]} * kv.Key(kv_head, t)[x];
        }
        weights[static_cast<size_t>(t)] = std::exp(score / std::sqrt(double{1} * c.head_dim));
        sum += weights[static_cast<size_t>(t)];
      }
      for (int64_t t = 0; t <= row; ++t) {
        const double weight = weights[static_cast<size_t>(t)] / sum;
        for (uint32_t x = 0; weight > 0 && x < c.head_dim; ++x) {
          want[static_cast<size_t>(i) * c.head_dim + x] += weight * kv.Value(kv_head, t)[x];
        }
      }
    }
    EXPECT_LE(RelativeError(got, want), GetParam().matmul_tolerance)
        << "head_dim " << c.head_dim << ", group " << c.group << ", sinks " << c.has_sinks;
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(SparsePrefillAttentionTest, AttendsToTheFloorWhereThatIsEnough) {
  for (const KvFormat& format : KvFormatsOf(*backend_)) {
    CheckFloor({.format = format, .threshold = 0.01f, .tokens = 600});
    CheckFloor({.format = format,
                .threshold = 0.01f,
                .dense_before = 300,
                .tokens = 601,
                .has_sinks = true});
  }
  const KvFormat format = KvFormatsOf(*backend_).front();
  for (const uint32_t head_dim : {64u, 128u}) {
    for (const uint32_t group : {1u, 7u, 16u}) {
      CheckFloor({.head_dim = head_dim,
                  .kv_heads = 1,
                  .group = group,
                  .format = format,
                  .threshold = 0.01f,
                  .tokens = 500});
    }
  }
}

TEST_P(SparsePrefillAttentionTest, ChangesNoBitOfRowsThatChooseNothing) {
  const Case sparse = {
      .format = KvFormatsOf(*backend_).front(), .threshold = 0.6f, .dense_before = 520};
  Case exact = sparse;
  exact.threshold = 0;
  const LayerKvImage kv = MakeKv(sparse);
  const auto q = Queries(sparse);
  const auto got = Run(sparse, kv.view(), q, 0), want = Run(exact, kv.view(), q, 0);
  const ChoosingTokens choosing = ChoosingOf({0.6f, 520}, 0, sparse.tokens);
  ASSERT_EQ(choosing.begin, 580);
  ASSERT_EQ(choosing.end, 1156);
  const auto at = [&](int64_t token) { return token * static_cast<int64_t>(RowOf(sparse)); };
  EXPECT_TRUE(std::equal(got.begin(), got.begin() + at(choosing.begin), want.begin()));
  EXPECT_TRUE(
      std::equal(got.begin() + at(choosing.end), got.end(), want.begin() + at(choosing.end)));
  EXPECT_FALSE(std::equal(got.begin(), got.end(), want.begin()));
}

// A pass may end where a unit does.
TEST_P(SparsePrefillAttentionTest, AResultDoesNotDependOnTheChunk) {
  for (const KvFormat& format : KvFormatsOf(*backend_)) {
    const Case c = {.kv_heads = 1, .group = 7, .format = format, .dense_before = 200};
    const LayerKvImage kv = MakeKv(c);
    const auto q = Queries(c);
    const auto whole = Run(c, kv.view(), q, 0);
    int64_t first = 0;
    for (const int64_t end : {100, 132, 196, 260, 580, 644, 1028, 1200}) {
      const size_t begin = static_cast<size_t>(first) * RowOf(c);
      const auto part =
          Run(c, kv.view(),
              std::span(q).subspan(begin, static_cast<size_t>(end - first) * RowOf(c)), first);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<int64_t>(begin)))
          << "rows " << first << " to " << end;
      first = end;
    }
    ASSERT_EQ(first, c.tokens);
  }
}

// A few far keys that all queries look for are found.
TEST_P(SparsePrefillAttentionTest, FindsWhereTheWeightIs) {
  Case c = {.kv_heads = 1, .group = 1, .format = KvFormatsOf(*backend_).front(), .threshold = 0.6f};
  const size_t d = c.head_dim;
  std::vector<float> q(static_cast<size_t>(c.tokens) * d, 0.0f), keys(q.size(), 0.0f);
  const auto values = RandomNormal(keys.size(), 12);
  for (size_t i = 0; i < q.size(); i += d) q[i] = 8.0f;
  for (size_t token = 400; token < 480; ++token) keys[token * d] = 10.0f;
  const LayerKvImage kv(data_, keys, values, 1, c.head_dim, c.format);
  const auto got = Run(c, kv.view(), q, 0);
  c.threshold = 0;
  const auto exact = Run(c, kv.view(), q, 0);
  // Of the rows behind these keys; the rows before them find nothing to choose by.
  const size_t behind = 580 * d;
  const std::vector<double> want(exact.begin() + 580 * 64, exact.end());
  EXPECT_LE(RelativeError(std::span(got).subspan(behind), want), 0.01);
  EXPECT_NE(got, exact);  // blocks were left out
}

TEST_P(SparsePrefillAttentionTest, RefusesChoicesThatCannotBe) {
  Case c = {.format = KvFormatsOf(*backend_).front(), .tokens = 200};
  const LayerKvImage kv = MakeKv(c);
  const auto refuses = [&] {
    return Status(c, kv.view(), 0).code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(refuses());
  for (const float threshold : {-0.1f, 1.0f, kNan}) {
    c.threshold = threshold;
    EXPECT_TRUE(refuses()) << threshold;
  }
  c.threshold = 0.5f;
  c.dense_before = -1;
  EXPECT_TRUE(refuses());
}

INSTANTIATE_TEST_SUITE_P(Backends, SparsePrefillAttentionTest,
                         testing::ValuesIn(AvailableBackends()), BackendName);

}  // namespace
}  // namespace retroinfer
