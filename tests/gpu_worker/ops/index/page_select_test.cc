#include "gpu_worker/ops/index/page_select.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "tests/support/segment_image.h"
#include "tests/support/token_code_reference.h"

namespace retroinfer {
namespace {

using namespace test_support;

constexpr uint32_t kKvHeads = 2;
constexpr uint32_t kLayer = 1;

// One sequence of a batch.
struct SequenceCase {
  bool has_index = true;
  std::vector<int32_t> num_candidates;  // of each KV head
  int32_t num_pages = 0;
  uint64_t seed = 1;
};

// What both calls give, by row: a row is a sequence and a KV head.
struct Result {
  std::vector<std::vector<int32_t>> candidates;
  std::vector<std::vector<ChosenPage>> chosen;
  std::vector<int32_t> num_tokens;
  std::vector<float> scores_before, scores;  // [batch, query_heads, max_clusters]
  std::vector<float> queries;                // as activations are
};

class PageSelectTest : public testing::TestWithParam<BackendParam> {
 protected:
  void MakeSegment(const KvFormat& format, uint32_t head_dim, uint32_t num_tokens = 8192) {
    geometry_ = {2, kKvHeads, head_dim, format};
    segment_ = std::make_unique<SegmentImage>(*backend_, data_, geometry_, num_tokens);
    pool_bytes_ = data_.Download<std::byte>(DeviceSpan<const std::byte>(segment_->pool().bytes));
  }
  MetaPoolView host() { return {{pool_bytes_.data(), pool_bytes_.size()}, geometry_}; }
  int32_t num_clusters() const {
    return static_cast<int32_t>(segment_->meta_blocks().size() * kClustersPerMetaBlock);
  }
  const MetaEntry& Entry(uint32_t head, int32_t cluster) {
    return host().Entries(static_cast<MetaBlockId>(cluster / 64), kLayer, head)[cluster % 64];
  }

  // Live clusters of a KV head, in an order that the seed gives.
  std::vector<int32_t> Candidates(uint32_t head, int32_t count, uint64_t seed) {
    std::vector<int32_t> live;
    for (int32_t i = 0; i < num_clusters(); ++i) {
      if (Entry(head, i).num_tokens > 0) live.push_back(i);
    }
    std::mt19937_64 random(seed + head);
    std::shuffle(live.begin(), live.end(), random);
    live.resize(std::min(live.size(), static_cast<size_t>(count)));
    return live;
  }

  Result Run(const std::vector<SequenceCase>& batch, uint32_t group, float strength = 1.0f,
             int64_t more_candidates = 0) {
    const int64_t query_heads = int64_t{kKvHeads} * group;
    const int64_t max_clusters = num_clusters() + 64;
    const auto num_rows = batch.size() * kKvHeads;
    int64_t max_candidates = 64 + more_candidates, max_chosen = 1;
    std::vector<float> host_queries;
    std::vector<SelectionBudget> budgets;
    std::vector<MetaIndexView> views;
    Result result;
    for (const SequenceCase& sequence : batch) {
      const auto queries = RandomNormal(static_cast<size_t>(query_heads) * geometry_.head_dim,
                                        sequence.seed, strength);
      host_queries.insert(host_queries.end(), queries.begin(), queries.end());
      const auto scores =
          RandomNormal(static_cast<size_t>(query_heads * max_clusters), sequence.seed + 50);
      result.scores_before.insert(result.scores_before.end(), scores.begin(), scores.end());
      budgets.push_back({.num_clusters = num_clusters(),
                         .num_retrieved = 0,
                         .num_estimated = 0,
                         .ranking = GroupRanking::kMaxOfSoftmax,
                         .num_pages = sequence.num_pages});
      views.push_back(
          {segment_->meta_blocks().device_data(), sequence.has_index ? num_clusters() / 64 : 0});
      max_chosen = std::max<int64_t>(max_chosen, sequence.num_pages);
      for (uint32_t head = 0; head < kKvHeads; ++head) {
        result.candidates.push_back(
            sequence.has_index ? Candidates(head, sequence.num_candidates[head], sequence.seed)
                               : std::vector<int32_t>{});
        max_candidates =
            std::max(max_candidates, static_cast<int64_t>(result.candidates.back().size()));
      }
    }
    std::vector<int32_t> candidates(num_rows * static_cast<size_t>(max_candidates), -1), counts;
    for (size_t row = 0; row < num_rows; ++row) {
      std::ranges::copy(result.candidates[row],
                        candidates.begin() + static_cast<int64_t>(row) * max_candidates);
      counts.push_back(static_cast<int32_t>(result.candidates[row].size()));
    }
    result.queries = data_.Rounded(host_queries);
    const auto queries = data_.Activations(host_queries, static_cast<int64_t>(batch.size()),
                                           query_heads * static_cast<int64_t>(geometry_.head_dim));
    // Any choice of clusters: each may leave its last page part-filled.
    const int64_t per_page = geometry_.tokens_per_page();
    const int64_t max_pages = (num_clusters() * (16 + per_page - 1) / per_page + 63) / 64 * 64;
    const auto poisoned = [&](size_t count) {
      return data_.Upload(std::vector<float>(count, kNan));
    };
    const size_t masses = num_rows * group * static_cast<size_t>(max_pages);
    const size_t pages = num_rows * static_cast<size_t>(max_pages);
    const DeviceBuffer device_scores = data_.Upload(result.scores_before),
                       device_candidates = data_.Upload(candidates),
                       device_counts = data_.Upload(counts), device_budgets = data_.Upload(budgets),
                       device_views = data_.Upload(views), device_masses = poisoned(masses),
                       device_rests = poisoned(masses), device_pages = poisoned(2 * pages),
                       first_pages = poisoned(candidates.size()), num_pages = poisoned(num_rows),
                       chosen = poisoned(2 * num_rows * static_cast<size_t>(max_chosen)),
                       num_chosen = poisoned(num_rows), num_tokens = poisoned(num_rows);
    const PageSelectArgs args{.queries = queries.view,
                              .pool = segment_->pool(),
                              .layer = kLayer,
                              .indexes = device_views.as<const MetaIndexView>().first(batch.size()),
                              .scale = 1.0f / std::sqrt(static_cast<float>(geometry_.head_dim)),
                              .scores = device_scores.as<float>(),
                              .max_clusters = max_clusters,
                              .candidates = device_candidates.as<const int32_t>(),
                              .num_candidates = device_counts.as<const int32_t>(),
                              .max_candidates = max_candidates,
                              .budgets = device_budgets.as<const SelectionBudget>(),
                              .max_pages = max_pages,
                              .max_chosen = max_chosen,
                              .chosen = chosen.as<ChosenPage>(),
                              .num_chosen = num_chosen.as<int32_t>(),
                              .num_tokens = num_tokens.as<int32_t>(),
                              .scratch = {.masses = device_masses.as<float>(),
                                          .rests = device_rests.as<float>(),
                                          .pages = device_pages.as<ChosenPage>(),
                                          .first_pages = first_pages.as<int32_t>(),
                                          .num_pages = num_pages.as<int32_t>()}};
    absl::Status status = backend_->ops->index().PageSelect(*backend_->stream, args);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(std::memcmp(data_.Download<float>(device_scores).data(), result.scores_before.data(),
                          result.scores_before.size() * 4),
              0)
        << "scores stay until CandidateRest";
    status = backend_->ops->index().CandidateRest(*backend_->stream, args);
    EXPECT_TRUE(status.ok()) << status;
    result.num_tokens = data_.Download<int32_t>(num_tokens);
    result.scores = data_.Download<float>(device_scores);
    const auto got_counts = data_.Download<int32_t>(num_chosen);
    const auto got = data_.Download<ChosenPage>(chosen);
    for (size_t row = 0; row < num_rows; ++row) {
      const auto first = got.begin() + static_cast<int64_t>(row) * max_chosen;
      EXPECT_LE(got_counts[row], max_chosen);
      result.chosen.emplace_back(first, first + got_counts[row]);
    }
    return result;
  }

  // Logits of a cluster's tokens for one query head in doubles, and half the variances of them.
  struct TokenLogits {
    std::vector<double> logits, half_variances;
  };
  // `turned`: the query as codes have it (TurnedVector()), which is as long.
  TokenLogits LogitsOf(uint32_t head, int32_t cluster, const std::vector<double>& turned,
                       double score) {
    const TokenCodeLayout layout(geometry_.format, geometry_.head_dim);
    const double d = static_cast<double>(turned.size());
    const double length =
        std::sqrt(std::inner_product(turned.begin(), turned.end(), turned.begin(), 0.0));
    const auto block = static_cast<MetaBlockId>(cluster / 64);
    TokenLogits result;
    for (uint32_t i = 0; i < Entry(head, cluster).num_tokens; ++i) {
      const CodePlace place =
          CodePlaceOf(cluster / 64, host().FirstCodes(block, kLayer, head)[cluster % 64], i);
      const std::byte* const codes =
          host().Codes(static_cast<MetaBlockId>(place.block), kLayer, head);
      TokenCodeFactors factors;
      std::memcpy(&factors, codes + layout.factors_offset + place.in_block * sizeof(factors),
                  sizeof(factors));
      const auto* const code =
          reinterpret_cast<const uint8_t*>(codes) + place.in_block * layout.code_bytes;
      double product = 0;
      for (size_t j = 0; j < turned.size(); ++j) product += turned[j] * LevelOf(code, j);
      result.logits.push_back(score + FromF16(factors.scale) * product / std::sqrt(d));
      result.half_variances.push_back(std::pow(length * FromF16(factors.error) / d, 2) / 2);
    }
    return result;
  }

  void CheckRow(const Result& result, const SequenceCase& sequence, size_t row, uint32_t group,
                double tolerance);

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
  KvGeometry geometry_;
  std::unique_ptr<SegmentImage> segment_;
  std::vector<std::byte> pool_bytes_;
};

// Chosen are the pages with the best ranks, and the scores of candidates say what is left.
void PageSelectTest::CheckRow(const Result& result, const SequenceCase& sequence, size_t row,
                              uint32_t group, double tolerance) {
  const auto head = static_cast<uint32_t>(row % kKvHeads);
  const uint32_t per_page = geometry_.tokens_per_page();
  const auto max_clusters = static_cast<size_t>(num_clusters()) + 64;
  const auto& candidates = result.candidates[row];
  std::map<PageId, size_t> place_of;  // pages of all candidates in order
  std::vector<ChosenPage> pages;
  int32_t num_tokens = 0;
  for (const int32_t cluster : candidates) {
    const MetaEntry& entry = Entry(head, cluster);
    num_tokens += static_cast<int32_t>(entry.num_tokens);
    for (uint32_t first = 0; first < entry.num_tokens; first += per_page) {
      place_of[entry.first_place + first / per_page] = pages.size();
      pages.push_back({entry.first_place + first / per_page,
                       static_cast<uint16_t>(std::min(per_page, entry.num_tokens - first)),
                       static_cast<uint16_t>(first / per_page)});
    }
  }
  EXPECT_EQ(result.num_tokens[row], num_tokens);
  std::vector<bool> is_chosen(pages.size());
  size_t next = 0;
  for (const ChosenPage& page : result.chosen[row]) {
    ASSERT_TRUE(place_of.contains(page.page));
    const size_t place = place_of[page.page];
    EXPECT_GE(place, next) << "in the order of the candidates, each once";
    next = place + 1;
    is_chosen[place] = true;
    EXPECT_EQ(page.num_tokens, pages[place].num_tokens);
    EXPECT_EQ(page.place, pages[place].place);
  }
  EXPECT_EQ(result.chosen[row].size(),
            std::min(pages.size(), static_cast<size_t>(sequence.num_pages)));
  std::vector<double> ranks(pages.size(), -INFINITY);
  for (uint32_t g = 0; g < group; ++g) {
    const size_t query_row = row * group + g;
    const float* const query = result.queries.data() + query_row * geometry_.head_dim;
    const std::vector<double> turned =
        TurnedVector(std::vector<double>(query, query + geometry_.head_dim));
    const float* const before = result.scores_before.data() + query_row * max_clusters;
    const float* const after = result.scores.data() + query_row * max_clusters;
    std::vector<double> masses(pages.size());
    double all = 0;
    size_t place = 0;
    std::set<int32_t> others;
    for (int32_t i = 0; i < num_clusters(); ++i) others.insert(i);
    for (const int32_t cluster : candidates) {
      others.erase(cluster);
      const TokenLogits tokens = LogitsOf(head, cluster, turned, before[cluster]);
      double rest = 0;
      for (size_t i = 0; i < tokens.logits.size(); ++i) {
        const size_t page = place + i / per_page;
        masses[page] += std::exp(tokens.logits[i]);
        all += std::exp(tokens.logits[i]);
        if (!is_chosen[page]) rest += std::exp(tokens.logits[i] - tokens.half_variances[i]);
      }
      place += geometry_.pages_of(static_cast<uint32_t>(tokens.logits.size()));
      if (rest == 0) {
        EXPECT_EQ(after[cluster], -INFINITY);
      } else {
        EXPECT_NEAR(after[cluster], std::log(rest / static_cast<double>(tokens.logits.size())),
                    tolerance);
      }
    }
    for (const int32_t cluster : others) ASSERT_EQ(after[cluster], before[cluster]);
    for (size_t i = 0; i < pages.size(); ++i) ranks[i] = std::max(ranks[i], masses[i] / all);
  }
  double worst_chosen = INFINITY, best_other = 0;
  for (size_t i = 0; i < pages.size(); ++i) {
    if (is_chosen[i]) {
      worst_chosen = std::min(worst_chosen, ranks[i]);
    } else {
      best_other = std::max(best_other, ranks[i]);
    }
  }
  EXPECT_GE(worst_chosen, best_other * std::exp(-2 * tolerance));
}

// Where queries are bf16 the reference has them rounded, too; codes are exact. Turned queries are
// f16 on a GPU: 2^-11 of a channel, at logits of a few.
constexpr double kTolerance = 3e-3;

TEST_P(PageSelectTest, ChoosesTheBestPagesAndTellsTheRest) {
  for (const KvFormat& format : KvFormatsOf(*backend_)) {
    if (format.token_code_bits == 0) continue;
    for (const uint32_t head_dim : kHeadDims) {
      MakeSegment(format, head_dim);
      for (const uint32_t group : {1u, 3u, 4u, 7u, 8u, 10u, 16u}) {
        SCOPED_TRACE(testing::Message() << format.name << ", " << head_dim << ", " << group);
        const std::vector<SequenceCase> batch = {{true, {130, 61}, 100, 1},
                                                 {false, {0, 0}, 100, 2},
                                                 {true, {33, 0}, 7, 3},
                                                 {true, {2, 64}, 300, 4}};
        const Result result = Run(batch, group);
        for (size_t row = 0; row < batch.size() * kKvHeads; ++row) {
          SCOPED_TRACE(row);
          CheckRow(result, batch[row / kKvHeads], row, group, kTolerance);
        }
      }
    }
  }
}

TEST_P(PageSelectTest, AllPagesLeaveNothingAndNoneLeavesAll) {
  MakeSegment(kBf16CodedKv, 128);
  const std::vector<SequenceCase> batch = {{true, {512, 512}, 10'000, 1}, {true, {512, 512}, 0, 1}};
  const Result result = Run(batch, 4);
  for (size_t row = 0; row < 4; ++row) CheckRow(result, batch[row / 2], row, 4, kTolerance);
  EXPECT_GT(result.chosen[0].size(), 2048u) << "part-filled pages, too";
  EXPECT_TRUE(result.chosen[2].empty());
}

TEST_P(PageSelectTest, SharpDistributionsNeitherOverflowNorVanish) {
  MakeSegment(kInt8CodedKv, 128);
  const std::vector<SequenceCase> batch = {{true, {200, 100}, 50, 9}};
  const Result result = Run(batch, 2, 40.0f);
  for (size_t row = 0; row < 2; ++row) CheckRow(result, batch[0], row, 2, 0.1);
}

TEST_P(PageSelectTest, ARowDoesNotDependOnTheBatch) {
  MakeSegment(kBf16CodedKv, 128);
  const SequenceCase sequence{true, {130, 61}, 100, 1};
  const Result alone = Run({sequence}, 4);
  // Others have more candidates, and rows are longer.
  const Result together =
      Run({sequence, {true, {500, 512}, 700, 5}, {false, {0, 0}, 1, 6}}, 4, 1.0f, 4096);
  const auto bytes = [](const auto& list) { return list.size() * sizeof(list[0]); };
  for (size_t row = 0; row < kKvHeads; ++row) {
    ASSERT_EQ(together.chosen[row].size(), alone.chosen[row].size());
    EXPECT_EQ(std::memcmp(together.chosen[row].data(), alone.chosen[row].data(),
                          bytes(alone.chosen[row])),
              0);
    EXPECT_EQ(together.num_tokens[row], alone.num_tokens[row]);
  }
  EXPECT_EQ(std::memcmp(together.scores.data(), alone.scores.data(), bytes(alone.scores)), 0);
}

// Equal pages: the first ones win.
TEST_P(PageSelectTest, TiesGoToTheFirst) {
  MakeSegment(kBf16CodedKv, 64, 1024);
  std::ranges::fill(pool_bytes_, std::byte{0});
  for (uint32_t head = 0; head < kKvHeads; ++head) {
    for (int32_t i = 0; i < 64; ++i) {
      host().Entries(0, kLayer, head)[i] = {static_cast<PageId>(100 + 2 * i), 16, 0};
      host().FirstCodes(0, kLayer, head)[i] = 16 * i;
    }
  }
  ASSERT_TRUE(
      backend_->device
          ->Upload(*backend_->stream, std::as_bytes(std::span(pool_bytes_)), segment_->pool().bytes)
          .ok());
  Result result = Run({{true, {64, 64}, 20, 1}}, 1, 0.0f);
  // Scores still differ: pages of one cluster are equal, so both of a cluster come, but for one.
  std::map<PageId, int> pages_of;
  for (const ChosenPage& page : result.chosen[0]) ++pages_of[page.page / 2];
  EXPECT_EQ(pages_of.size(), 10u);
  result = Run({{true, {64, 64}, 21, 1}}, 1, 0.0f);
  int alone = 0;
  for (const ChosenPage& page : result.chosen[0]) {
    const auto same = std::ranges::count_if(
        result.chosen[0], [&](const ChosenPage& other) { return other.page / 2 == page.page / 2; });
    if (same == 2) continue;
    ++alone;
    EXPECT_EQ(page.place, 0);
  }
  EXPECT_EQ(alone, 1);
}

TEST_P(PageSelectTest, RefusesWhatDoesNotFit) {
  MakeSegment(kBf16CodedKv, 64, 1024);
  const auto queries = data_.Activations(std::vector<float>(2 * 64), 1, 2 * 64);
  PageSelectArgs args{.queries = queries.view, .pool = segment_->pool(), .layer = 2};
  const auto refused = [&](const char* why) {
    for (const absl::Status& status :
         {backend_->ops->index().PageSelect(*backend_->stream, args),
          backend_->ops->index().CandidateRest(*backend_->stream, args)}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr(why));
    }
  };
  refused("layer");
  args.layer = 1;
  refused("indexes");
  args.max_pages = 7;
  refused("max_pages");
  args.queries = data_.Activations(std::vector<float>(3 * 64), 1, 3 * 64).view;
  refused("query heads");
  MetaPoolImage other({2, kKvHeads, 64, kBf16Kv}, 1);
  args.pool = other.Upload(data_);
  refused("codes of 2 bits");
}

INSTANTIATE_TEST_SUITE_P(Backends, PageSelectTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
