#include "gpu_worker/ops/attention/decode_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/stored_tokens.h"

namespace retroinfer {
namespace {

using namespace test_support;

// f32 arithmetic on whatever the pages hold; where activations are bf16, the result is rounded to 8
// significant bits.
double Tolerance(DType activations) { return activations == DType::kF32 ? 1e-5 : 1.0 / 256; }

struct Token {
  std::vector<float> key;
  std::vector<float> value;
};

// A page on the host, its unused places NaN.
std::vector<std::byte> MakePage(const KvGeometry& geometry, std::span<const Token> tokens) {
  const size_t places = geometry.tokens_per_page();
  std::vector<float> elements(2 * places * geometry.head_dim, kNan);
  for (size_t t = 0; t < tokens.size(); ++t) {
    std::copy(tokens[t].key.begin(), tokens[t].key.end(),
              elements.begin() + static_cast<int64_t>(t * geometry.head_dim));
    std::copy(tokens[t].value.begin(), tokens[t].value.end(),
              elements.begin() + static_cast<int64_t>((places + t) * geometry.head_dim));
  }
  return StoredTokens(elements, geometry.format.token, geometry.head_dim);
}

struct Sequence {
  int32_t sink = 0;
  int32_t window = 0;
  int32_t paged = 0;      // tokens in the execution buffer, for each KV head
  int32_t estimated = 0;  // 1: with an estimate
};

class DecodeAttentionTest : public testing::TestWithParam<BackendParam> {
 protected:
  static constexpr uint32_t kLayer = 1;

  // Random tokens of one (sequence, KV head): the same for the same seed.
  std::vector<Token> Tokens(const KvGeometry& geometry, uint64_t seed, size_t count) {
    std::vector<Token> tokens(count);
    for (size_t i = 0; i < count; ++i) {
      for (auto [offset, out] : {std::pair{0, &tokens[i].key}, {1, &tokens[i].value}}) {
        const auto random =
            RandomNormal(geometry.head_dim, seed * 100'000 + 2 * i + static_cast<uint64_t>(offset),
                         deviation_of_token_(i));
        *out = RoundedTokens(random, geometry.format.token, geometry.head_dim);
      }
      change_token_(seed, i, tokens[i]);
    }
    return tokens;
  }

  // The reference for one query head over its tokens and estimate. Returns the sum over tokens.
  // Tokens [sink, sink + hidden) are not attended; `sink_weight` has no value.
  static double Attend(const std::vector<Token>& tokens, size_t sink, size_t hidden,
                       double sink_weight, const float* query, double scale, double estimate_max,
                       double estimate_sum, const float* estimate_acc, std::vector<double>& want) {
    const size_t dim = tokens.empty() ? 0 : tokens[0].key.size();
    std::vector<double> acc(dim);
    double sum = sink_weight;
    for (size_t t = 0; t < tokens.size(); ++t) {
      if (t >= sink && t < sink + hidden) continue;
      const Token& token = tokens[t];
      double score = 0;
      for (size_t i = 0; i < dim; ++i) score += double{query[i]} * token.key[i];
      const double weight = std::exp(scale * score);
      sum += weight;
      for (size_t i = 0; i < dim; ++i) acc[i] += weight * token.value[i];
    }
    const double exact = sum;
    if (estimate_sum > 0) {
      sum += std::exp(estimate_max) * estimate_sum;
      for (size_t i = 0; i < dim; ++i) acc[i] += std::exp(estimate_max) * estimate_acc[i];
    }
    for (size_t i = 0; i < dim; ++i) want.push_back(acc[i] / sum);
    return exact;
  }

  // From next to nothing to most of the mass.
  static float SinkOf(int64_t head) { return 5.0f * static_cast<float>(head % 4) - 6.0f; }

  struct Result {
    std::vector<float> got;
    std::vector<double> want;
    // Of what is left out: [batch, query_heads].
    std::vector<float> got_shares;
    std::vector<double> want_shares;

    double LargestErrorOfShares() const {
      double largest = 0;
      for (size_t i = 0; i < want_shares.size(); ++i) {
        largest = std::max(largest, std::abs(double{got_shares[i]} - want_shares[i]));
      }
      return largest;
    }
  };

  // Runs a batch; sequence i's contents depend on seeds[i] alone.
  Result Run(const KvGeometry& geometry, int64_t group, const std::vector<Sequence>& batch,
             const std::vector<uint64_t>& seeds);

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
  // Of the calls of Run().
  int32_t window_ = 0;
  bool has_sinks_ = false;
  std::function<float(size_t)> deviation_of_token_ = [](size_t) { return 1.0f; };
  // Of seed 16 * that of the sequence + the KV head.
  std::function<void(uint64_t seed, size_t i, Token&)> change_token_ = [](auto...) {};
  std::function<float(size_t)> factor_of_query_element_ = [](size_t) { return 1.0f; };
  const DType activations_ = backend_->ops->model().activation_dtype();
  const double tolerance_ = Tolerance(activations_);
};

// What a batch looks like in device memory.
struct Image {
  std::vector<std::byte> pool;
  std::vector<std::vector<DenseBlockId>> blocks;
  std::vector<std::byte> pages;
  std::vector<std::vector<std::pair<size_t, int32_t>>> lists;  // per head: page, tokens
};

void AddDense(const KvGeometry& geometry, uint32_t layer, const std::vector<Token>& tokens,
              uint32_t head, std::span<const DenseBlockId> blocks, size_t sink,
              std::vector<std::byte>& pool) {
  const size_t per_page = geometry.tokens_per_page();
  size_t done = 0;
  for (size_t b = 0; b < blocks.size(); ++b) {
    const size_t count = b == 0 ? sink : std::min<size_t>(kDenseBlockTokens, tokens.size() - done);
    for (size_t place = 0; place < count; place += per_page) {
      const auto page = MakePage(
          geometry, std::span(tokens).subspan(done + place, std::min(per_page, count - place)));
      const DensePoolView view = {{pool.data(), pool.size()}, geometry};
      std::copy(page.begin(), page.end(),
                view.Run(blocks[b], layer, head) + place / per_page * kPageBytes);
    }
    done += count;
  }
}

// The first tokens of a page behind `skipped` others; those, and all behind, are not numbers.
std::vector<std::byte> AmongOthers(const KvGeometry& geometry, const std::vector<std::byte>& page,
                                   size_t skipped, size_t count) {
  const PageLayout layout = geometry.page();
  std::vector<std::byte> others(page.size(), std::byte{0xff});
  for (const size_t first : {size_t{0}, layout.values_offset}) {
    const auto from = page.begin() + static_cast<std::ptrdiff_t>(first);
    std::copy(from, from + static_cast<std::ptrdiff_t>(count * layout.vector_bytes),
              others.begin() + static_cast<std::ptrdiff_t>(first + skipped * layout.vector_bytes));
  }
  return others;
}

DecodeAttentionTest::Result DecodeAttentionTest::Run(const KvGeometry& geometry, int64_t group,
                                                     const std::vector<Sequence>& batch,
                                                     const std::vector<uint64_t>& seeds) {
  const int64_t kv_heads = geometry.num_kv_heads, dim = geometry.head_dim;
  const int64_t query_heads = kv_heads * group;
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
  Image image;
  DenseBlockId next_block = 2;
  for (const Sequence& s : batch) {
    std::vector<DenseBlockId> ids(static_cast<size_t>(1 + (s.window + 63) / 64));
    std::iota(ids.rbegin(), ids.rend(), next_block);
    next_block += static_cast<DenseBlockId>(ids.size());
    image.blocks.push_back(ids);
  }
  image.pool.assign(static_cast<size_t>(next_block) * DensePoolView::BlockBytes(geometry),
                    std::byte{0xff});
  std::vector<float> queries, maxima, sums, accs, left_out_maxima, left_out_sums;
  Result result;
  for (size_t i = 0; i < batch.size(); ++i) {
    const Sequence& s = batch[i];
    auto random = RandomNormal(static_cast<size_t>(query_heads * dim), seeds[i] + 7);
    for (size_t e = 0; e < random.size(); ++e) random[e] *= factor_of_query_element_(e);
    const auto q = FromBytes(ToBytes(random, activations_), activations_);
    queries.insert(queries.end(), q.begin(), q.end());
    const auto acc = RandomNormal(static_cast<size_t>(query_heads * dim), seeds[i] + 8, 3.0f);
    accs.insert(accs.end(), acc.begin(), acc.end());
    for (int64_t h = 0; h < kv_heads; ++h) {
      const auto dense_count = static_cast<size_t>(s.sink + s.window);
      auto tokens = Tokens(geometry, seeds[i] * 16 + static_cast<uint64_t>(h),
                           dense_count + static_cast<size_t>(s.paged));
      const std::vector<Token> dense(tokens.begin(),
                                     tokens.begin() + static_cast<int64_t>(dense_count));
      AddDense(geometry, kLayer, dense, static_cast<uint32_t>(h), image.blocks[i],
               static_cast<size_t>(s.sink), image.pool);
      auto& list = image.lists.emplace_back();
      // Pages of differing fill, as clusters leave them.
      for (size_t done = dense_count; done < tokens.size();) {
        const size_t per_page = geometry.tokens_per_page();
        const size_t skipped = geometry.format.packs_clusters ? done % per_page : 0;
        const size_t count =
            std::min({tokens.size() - done, 1 + 3 * done % per_page, per_page - skipped});
        list.emplace_back(image.pages.size() + skipped * geometry.page().vector_bytes,
                          static_cast<int32_t>(count));
        auto page = MakePage(geometry, std::span(tokens).subspan(done, count));
        if (geometry.format.packs_clusters) page = AmongOthers(geometry, page, skipped, count);
        image.pages.insert(image.pages.end(), page.begin(), page.end());
        done += count;
      }
      for (int64_t g = 0; g < group; ++g) {
        const int64_t head = h * group + g;
        maxima.push_back(s.estimated ? 0.25f * static_cast<float>(g) : -INFINITY);
        sums.push_back(s.estimated ? 5.0f : 0.0f);
        if (!s.estimated) std::fill_n(accs.end() - (query_heads - head) * dim, dim, 0.0f);
        const double exact = Attend(
            tokens, static_cast<size_t>(s.sink),
            window_ == 0 ? 0 : static_cast<size_t>(std::max(0, s.window - window_)),
            has_sinks_ ? std::exp(double{SinkOf(head)}) : 0, q.data() + head * dim, scale,
            maxima.back(), sums.back(), &*(accs.end() - (query_heads - head) * dim), result.want);
        // Nothing, little, and most of the mass is left out.
        left_out_maxima.push_back(g % 3 == 0 ? -INFINITY : 20.0f * static_cast<float>(g % 3 - 1));
        left_out_sums.push_back(g % 3 == 0 ? 0 : 9.0f);
        const double left_out = std::exp(double{left_out_maxima.back()}) * left_out_sums.back();
        result.want_shares.push_back(left_out / (exact + left_out));
      }
    }
  }
  const DeviceBuffer pool = data_.Upload(image.pool);
  const DeviceBuffer pages = data_.Upload(image.pages);
  std::vector<DeviceBuffer> block_lists;
  std::vector<DenseZone> zones;
  size_t max_pages = 1;
  for (const auto& list : image.lists) max_pages = std::max(max_pages, list.size());
  std::vector<PageRef> refs(image.lists.size() * max_pages, {nullptr, -1, 0});
  std::vector<int32_t> counts;
  for (size_t i = 0; i < batch.size(); ++i) {
    block_lists.push_back(data_.Upload(image.blocks[i]));
    zones.push_back({block_lists.back().as<const DenseBlockId>().device_data(), batch[i].sink,
                     batch[i].window});
  }
  for (size_t l = 0; l < image.lists.size(); ++l) {
    counts.push_back(static_cast<int32_t>(image.lists[l].size()));
    for (size_t p = 0; p < image.lists[l].size(); ++p) {
      refs[l * max_pages + p] = {pages.bytes().device_data() + image.lists[l][p].first,
                                 image.lists[l][p].second, 0};
    }
  }
  const bool has_pages = std::any_of(batch.begin(), batch.end(), [](auto& s) { return s.paged; });
  const bool has_estimate =
      std::any_of(batch.begin(), batch.end(), [](auto& s) { return s.estimated; });
  const auto rows = static_cast<int64_t>(batch.size());
  const auto q = data_.Activations(queries, rows, query_heads * dim);
  const auto out = data_.Poisoned(rows, query_heads * dim);
  const DeviceBuffer zone_buffer = data_.Upload(zones), ref_buffer = data_.Upload(refs),
                     count_buffer = data_.Upload(counts), max_buffer = data_.Upload(maxima),
                     sum_buffer = data_.Upload(sums), acc_buffer = data_.Upload(accs),
                     left_out_max = data_.Upload(left_out_maxima),
                     left_out_sum = data_.Upload(left_out_sums),
                     shares = data_.Upload(std::vector<float>(left_out_sums.size(), kNan));
  const DeviceBuffer scratch =
      data_.Allocate(backend_->ops->attention().DecodeAttentionScratchBytes(
          static_cast<int32_t>(rows), static_cast<int32_t>(query_heads),
          static_cast<int32_t>(dim)));
  DecodeAttentionArgs args = {.queries = q.view,
                              .pool = {pool.bytes(), geometry},
                              .layer = kLayer,
                              .zones = zone_buffer.as<const DenseZone>(),
                              .pages = {},
                              .num_pages = {},
                              .max_pages = 0,
                              .estimate = {},
                              .unseen = {left_out_max.as<float>(), left_out_sum.as<float>()},
                              .unseen_share = shares.as<float>(),
                              .scale = static_cast<float>(scale),
                              .out = out.view,
                              .scratch = scratch.bytes()};
  if (has_pages) {
    args.pages = ref_buffer.as<const PageRef>();
    args.num_pages = count_buffer.as<const int32_t>();
    args.max_pages = static_cast<int64_t>(max_pages);
  }
  std::vector<float> sinks;
  for (int64_t head = 0; head < query_heads; ++head) sinks.push_back(SinkOf(head));
  const DeviceBuffer sink_buffer = data_.Upload(sinks);
  args.window = window_;
  if (has_sinks_) args.sinks = sink_buffer.as<const float>();
  if (has_estimate) {
    args.estimate = {max_buffer.as<float>(), sum_buffer.as<float>(), acc_buffer.as<float>()};
  }
  const absl::Status status = backend_->ops->attention().DecodeAttention(*backend_->stream, args);
  EXPECT_TRUE(status.ok()) << status;
  result.got = data_.Values(out);
  result.got_shares = data_.Download<float>(shares);
  return result;
}

TEST_P(DecodeAttentionTest, OneTokenIsItsValue) {
  const KvGeometry geometry = {2, 1, 64, kF32Kv};
  const Result result = Run(geometry, 2, {{.sink = 1}}, {1});
  const auto token = Tokens(geometry, 16, 1)[0];
  for (size_t i = 0; i < 128; ++i) {
    EXPECT_NEAR(result.got[i], token.value[i % 64], tolerance_ * std::abs(token.value[i % 64]));
  }
}

TEST_P(DecodeAttentionTest, FollowsDoublesForDenseZonesOfAllSizes) {
  const KvGeometry geometry = {2, 2, 64, kBf16Kv};
  for (const int32_t window : {0, 1, 31, 32, 33, 63, 64, 65, 300, 1155}) {
    const Result result = Run(geometry, 4, {{.sink = 4, .window = window}}, {3});
    EXPECT_LE(RelativeError(result.got, result.want), tolerance_) << window;
    EXPECT_LE(result.LargestErrorOfShares(), 1e-5) << window;
  }
}

TEST_P(DecodeAttentionTest, FollowsDoublesForAllShapesOfHeads) {
  for (const KvFormat& format : KvFormatsOf(*backend_)) {
    for (const uint32_t head_dim : kHeadDims) {
      for (const int64_t group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 16}) {
        const Result result =
            Run({2, 2, head_dim, format}, group,
                {{.sink = 4, .window = 70, .paged = 45, .estimated = 1}, {.sink = 3}}, {5, 6});
        EXPECT_LE(RelativeError(result.got, result.want), tolerance_)
            << head_dim << ", group " << group << ", " << format.name;
        // Of sums of scores that are rounded to f32, or whose queries are rounded to 15 bits.
        EXPECT_LE(result.LargestErrorOfShares(), 1e-5)
            << head_dim << ", group " << group << ", " << format.name;
      }
    }
  }
}

TEST_P(DecodeAttentionTest, FollowsDoublesForWindowsOfAllSizes) {
  for (const KvFormat& format : KvFormatsOf(*backend_)) {
    for (const uint32_t head_dim : kHeadDims) {
      for (const int32_t window : {1, 2, 15, 16, 17, 63, 64, 65, 200, 5000}) {
        window_ = window;
        const Result result = Run({2, 2, head_dim, format}, 4,
                                  {{.sink = 0, .window = 70},
                                   {.sink = 4, .window = 333},
                                   {.sink = 0, .window = 1},
                                   {.sink = 0, .window = 64}},
                                  {5, 6, 7, 8});
        EXPECT_LE(RelativeError(result.got, result.want), tolerance_)
            << window << ", " << head_dim << ", " << format.name;
      }
    }
  }
}

// Alone, beside an estimate, and together with a window.
TEST_P(DecodeAttentionTest, ASinkTakesPartInEachHeadsSoftmax) {
  has_sinks_ = true;
  for (const int32_t window : {0, 100}) {
    window_ = window;
    const Result result = Run({2, 2, 128, kBf16Kv}, 4,
                              {{.sink = 4, .window = 500, .paged = 600, .estimated = 1},
                               {.sink = 2},
                               {.sink = 0, .window = 300}},
                              {1, 2, 3});
    EXPECT_LE(RelativeError(result.got, result.want), tolerance_) << window;
    EXPECT_LE(result.LargestErrorOfShares(), 1e-5) << window;
  }
}

TEST_P(DecodeAttentionTest, AWindowOfEverythingChangesNoBit) {
  const std::vector<Sequence> batch = {{.sink = 4, .window = 700}, {.sink = 4, .window = 30}};
  const auto all = Run({2, 2, 128, kBf16Kv}, 4, batch, {1, 2}).got;
  window_ = 700;
  EXPECT_EQ(Run({2, 2, 128, kBf16Kv}, 4, batch, {1, 2}).got, all);
}

TEST_P(DecodeAttentionTest, MergesRaggedPartsOfABatch) {
  for (const KvFormat& format : {kBf16Kv, kInt8Kv, kBf16PackedKv, kInt8PackedKv}) {
    const Result result = Run({2, 2, 128, format}, 4,
                              {{.sink = 4, .window = 500, .paged = 600, .estimated = 1},
                               {.sink = 2},
                               {.sink = 4, .window = 10, .paged = 1},
                               {.sink = 4, .window = 129, .paged = 0, .estimated = 1}},
                              {1, 2, 3, 4});
    EXPECT_LE(RelativeError(result.got, result.want), tolerance_) << format.name;
  }
}

// Each token has scales of its own, which must not be mixed up.
TEST_P(DecodeAttentionTest, TokensOfVerySmallAndVeryLargeValues) {
  for (const uint32_t head_dim : kHeadDims) {
    deviation_of_token_ = [](size_t i) {
      return std::ldexp(1.0f, static_cast<int>(i * 7 % 23) - 18);
    };
    const Result result =
        Run({2, 2, head_dim, kInt8Kv}, 4, {{.sink = 4, .window = 200, .paged = 150}}, {9});
    EXPECT_LE(RelativeError(result.got, result.want), tolerance_) << head_dim;
  }
}

// A few elements of a query are far larger than the rest, as models have them, and heads differ.
TEST_P(DecodeAttentionTest, QueriesWithFewLargeElements) {
  for (const KvFormat& format : KvFormatsOf(*backend_)) {
    for (const int64_t group : {4, 7}) {
      for (const float large : {1.0f / 1024, 16.0f}) {
        factor_of_query_element_ = [large](size_t i) {
          return std::ldexp(i % 61 == 5 ? large : 1.0f, static_cast<int>(i / 128 % 3) - 2);
        };
        const Result result =
            Run({2, 2, 128, format}, group, {{.sink = 4, .window = 300, .paged = 90}}, {9});
        EXPECT_LE(RelativeError(result.got, result.want), tolerance_)
            << format.name << ", group " << group << ", " << large;
      }
    }
  }
}

// Other heads and sequences have their numbers. The CPU gives a key that is no number no weight
// where other tokens have one.
TEST_P(DecodeAttentionTest, AKeyOrAValueThatIsNoNumberMakesItsHeadNone) {
  for (const KvFormat& format : {kBf16Kv, kInt8Kv}) {
    for (const bool is_key : {true, false}) {
      if (is_key && GetParam().name != "Cuda") continue;
      for (const int64_t group : {4, 7}) {
        change_token_ = [is_key](uint64_t seed, size_t i, Token& token) {
          if (seed != 5 * 16 + 1 || i != 37) return;
          std::ranges::fill(is_key ? token.key : token.value, kNan);
        };
        const Result result =
            Run({2, 2, 128, format}, group,
                {{.sink = 4, .window = 200}, {.sink = 4, .window = 90, .paged = 20}}, {5, 6});
        size_t num_nans = 0;
        for (size_t i = 0; i < result.got.size(); ++i) {
          const bool is_nan = std::isnan(result.want[i]);
          EXPECT_EQ(std::isnan(result.got[i]), is_nan)
              << format.name << ", " << is_key << ", " << i;
          num_nans += is_nan ? 1 : 0;
        }
        EXPECT_EQ(num_nans, static_cast<size_t>(group * 128));
      }
    }
  }
}

// Clusters that begin and end within pages, beside tokens of others that must not be seen.
TEST_P(DecodeAttentionTest, SeesOnlyTheTokensThatAPageIsNamedFor) {
  for (const KvFormat& format : {kBf16PackedKv, kInt8PackedKv}) {
    for (const uint32_t head_dim : kHeadDims) {
      const Result result = Run({2, 2, head_dim, format}, 4,
                                {{.sink = 4, .window = 100, .paged = 700}, {.paged = 333}}, {5, 6});
      EXPECT_LE(RelativeError(result.got, result.want), tolerance_)
          << format.name << ", " << head_dim;
    }
  }
}

TEST_P(DecodeAttentionTest, ASequenceDoesNotDependOnTheBatch) {
  const KvGeometry geometry = {2, 2, 128, kBf16Kv};
  const std::vector<Sequence> batch = {{.sink = 4, .window = 700, .paged = 300, .estimated = 1},
                                       {.sink = 4, .window = 33, .paged = 5},
                                       {.sink = 1, .paged = 2, .estimated = 1}};
  const Result all = Run(geometry, 3, batch, {11, 12, 13});
  const size_t row = all.got.size() / 3;
  for (size_t i = 0; i < 3; ++i) {
    const Result alone = Run(geometry, 3, {batch[i]}, {11 + i});
    EXPECT_TRUE(std::equal(alone.got.begin(), alone.got.end(),
                           all.got.begin() + static_cast<int64_t>(i * row)))
        << i;
  }
}

// Batches of all sizes, which a backend may divide among its processors in ways of their own.
TEST_P(DecodeAttentionTest, ASequenceDoesNotDependOnTheSizeOfTheBatch) {
  for (const auto& [format, group] :
       {std::pair{kBf16Kv, int64_t{4}}, {kInt8Kv, int64_t{4}}, {kInt8Kv, int64_t{8}}}) {
    const KvGeometry geometry = {2, 2, 128, format};
    std::vector<Sequence> batch = {{.sink = 4, .window = 700, .paged = 300, .estimated = 1},
                                   {.sink = 4, .window = 701, .paged = 290, .estimated = 1}};
    std::vector<uint64_t> seeds = {21, 22};
    const std::vector<float> two = Run(geometry, group, batch, seeds).got;
    const std::vector<float> one = Run(geometry, group, {batch[0]}, {21}).got;
    EXPECT_TRUE(std::equal(one.begin(), one.end(), two.begin())) << format.name << ", " << group;
    for (const size_t size : {9u, 40u, 70u}) {
      while (batch.size() < size) {
        batch.push_back({.sink = 4, .window = static_cast<int32_t>(batch.size() % 7), .paged = 9});
        seeds.push_back(20 + batch.size());
      }
      const std::vector<float> many = Run(geometry, group, batch, seeds).got;
      EXPECT_TRUE(std::equal(two.begin(), two.end(), many.begin()))
          << size << ", " << format.name << ", " << group;
    }
  }
}

TEST_P(DecodeAttentionTest, TakesAnEmptyBatch) {
  EXPECT_TRUE(Run({2, 1, 64, kBf16Kv}, 1, {}, {}).got.empty());
}

TEST_P(DecodeAttentionTest, RefusesTooLittleScratchAndTooLargeGroups) {
  const KvGeometry geometry = {1, 1, 64, kBf16Kv};
  const DeviceBuffer pool = data_.Allocate(DensePoolView::BlockBytes(geometry));
  const DeviceBuffer zones = data_.Upload(std::vector<DenseZone>{{nullptr, 0, 0}});
  const auto narrow = data_.Poisoned(1, 64), wide = data_.Poisoned(1, 64 * 17);
  const DeviceBuffer small = data_.Allocate(64);
  const DeviceBuffer large =
      data_.Allocate(backend_->ops->attention().DecodeAttentionScratchBytes(1, 17, 64));
  for (const auto& [matrix, scratch] : {std::pair{&narrow, &small}, {&wide, &large}}) {
    const DecodeAttentionArgs args = {.queries = matrix->view,
                                      .pool = {pool.bytes(), geometry},
                                      .layer = 0,
                                      .zones = zones.as<const DenseZone>(),
                                      .pages = {},
                                      .num_pages = {},
                                      .max_pages = 0,
                                      .estimate = {},
                                      .scale = 1,
                                      .out = matrix->view,
                                      .scratch = scratch->bytes()};
    EXPECT_EQ(backend_->ops->attention().DecodeAttention(*backend_->stream, args).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, DecodeAttentionTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
