#include "gpu_worker/ops/attention/shared_page_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/stored_tokens.h"

namespace retroinfer {
namespace {

using namespace test_support;

// Of weights that are rounded to 8 significant bits, where activations are.
double Tolerance(DType activations) { return activations == DType::kF32 ? 1e-5 : 1.0 / 128; }

// Rows that attend to one list; of one row: by itself.
struct Rows {
  int32_t num_rows = 1;
  int32_t num_tokens = 0;  // of the list of each KV head
  uint64_t seed = 0;       // of its list and its queries
};

class SharedPageAttentionTest : public testing::TestWithParam<BackendParam> {
 protected:
  struct Result {
    std::vector<float> shared;  // [batch, query_heads * head_dim]: through the run's list
    std::vector<double> alone;  // each row has a copy of the list
    std::vector<float> sums;    // of the estimates, behind the call
  };

  // Attends to lists whose pages are full, part-filled, empty, and, where clusters are packed,
  // begin within a page. `estimated`: there is something to be added to.
  Result Attend(const KvGeometry& geometry, int64_t group, const std::vector<Rows>& runs,
                bool estimated) {
    const int64_t kv_heads = geometry.num_kv_heads, dim = geometry.head_dim;
    const int64_t query_heads = kv_heads * group;
    rows_ = 0;
    for (const Rows& run : runs) rows_ += run.num_rows;
    std::vector<RowRun> of_batch;
    std::vector<float> queries;
    pages_.clear();
    refs_.clear();
    for (const Rows& run : runs) {
      if (run.num_rows > 1) {
        of_batch.push_back(
            {static_cast<int32_t>(std::ssize(queries) / (query_heads * dim)), run.num_rows});
      }
      const auto random =
          RandomNormal(static_cast<size_t>(run.num_rows * query_heads * dim), run.seed + 7, 2.0f);
      queries.insert(queries.end(), random.begin(), random.end());
      const auto lists = Lists(geometry, run);
      for (int32_t row = 0; row < run.num_rows; ++row) {
        refs_.insert(refs_.end(), lists.begin(), lists.end());
      }
    }
    of_rows_ = of_batch;
    const std::vector<float> shared = AttendRows(geometry, query_heads, queries, estimated, true);
    const std::vector<float> alone = AttendRows(geometry, query_heads, queries, estimated, false);
    return {.shared = shared, .alone = {alone.begin(), alone.end()}, .sums = sums_};
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
  const DType activations_ = backend_->ops->model().activation_dtype();
  const double tolerance_ = Tolerance(activations_);

 private:
  struct Place {
    size_t offset;
    int32_t num_tokens;
  };
  using List = std::vector<Place>;

  // Of each KV head.
  std::vector<List> Lists(const KvGeometry& geometry, const Rows& run) {
    const size_t per_page = geometry.tokens_per_page();
    const PageLayout layout = geometry.page();
    std::vector<List> lists(geometry.num_kv_heads);
    for (size_t head = 0; head < lists.size(); ++head) {
      // Lists of different length.
      const auto count =
          static_cast<size_t>(run.num_tokens) - (head == 1 ? run.num_tokens / 3u : 0);
      for (size_t done = 0; done < count;) {
        const size_t skipped = geometry.format.packs_clusters ? done % per_page : 0;
        const size_t tokens = std::min({count - done, 1 + 3 * done % per_page, per_page - skipped});
        const auto numbers = RandomNormal(2 * per_page * geometry.head_dim,
                                          run.seed * 1'000'000 + 1000 * head + done);
        auto page = StoredTokens(numbers, geometry.format.token, geometry.head_dim);
        // What is beside the page's tokens is not a number.
        for (const size_t half : {size_t{0}, layout.values_offset}) {
          const auto at = [&](size_t token) {
            return page.begin() + static_cast<std::ptrdiff_t>(half + token * layout.vector_bytes);
          };
          std::fill(at(0), at(skipped), std::byte{0xff});
          std::fill(at(skipped + tokens), at(per_page), std::byte{0xff});
        }
        lists[head].push_back(
            {pages_.size() + skipped * layout.vector_bytes, static_cast<int32_t>(tokens)});
        pages_.insert(pages_.end(), page.begin(), page.end());
        if (done % 5 == 0) lists[head].push_back({0, 0});  // absent
        done += tokens;
      }
    }
    return lists;
  }

  std::vector<float> AttendRows(const KvGeometry& geometry, int64_t query_heads,
                                const std::vector<float>& queries, bool estimated, bool shares) {
    const int64_t dim = geometry.head_dim;
    size_t max_pages = 1;
    for (const List& list : refs_) max_pages = std::max(max_pages, list.size());
    const DeviceBuffer pages = data_.Upload(pages_.empty() ? std::vector<std::byte>(1) : pages_);
    std::vector<PageRef> refs(refs_.size() * max_pages, {nullptr, -1, 0});
    std::vector<int32_t> counts;
    for (size_t i = 0; i < refs_.size(); ++i) {
      const auto row = static_cast<int32_t>(i / geometry.num_kv_heads);
      // Of a run the lists of other rows than the first are nobody's.
      const bool is_first = std::ranges::none_of(of_rows_, [row](const RowRun& run) {
        return row > run.first_row && row < run.first_row + run.num_rows;
      });
      counts.push_back(shares && !is_first ? 0 : static_cast<int32_t>(refs_[i].size()));
      for (int32_t p = 0; p < counts.back(); ++p) {
        const Place& place = refs_[i][static_cast<size_t>(p)];
        const std::byte* page = pages.bytes().device_data() + place.offset;
        refs[i * max_pages + static_cast<size_t>(p)] = {place.num_tokens == 0 ? nullptr : page,
                                                        place.num_tokens, 0};
      }
    }
    const auto num_queries = static_cast<size_t>(rows_ * query_heads);
    std::vector<float> maxima(num_queries, -INFINITY), sums(num_queries, 0.0f);
    std::vector<float> accs(num_queries * static_cast<size_t>(dim), 0.0f);
    if (estimated) {
      for (size_t i = 0; i < num_queries; ++i) maxima[i] = 0.5f * static_cast<float>(i % 5);
      std::ranges::fill(sums, 3.0f);
      accs = RandomNormal(accs.size(), 5, 2.0f);
    }
    const DeviceBuffer max_buffer = data_.Upload(maxima), sum_buffer = data_.Upload(sums),
                       acc_buffer = data_.Upload(accs), ref_buffer = data_.Upload(refs),
                       count_buffer = data_.Upload(counts),
                       runs = data_.Upload(of_rows_.empty() ? std::vector<RowRun>(1) : of_rows_);
    const AttentionPartialView estimate = {max_buffer.as<float>(), sum_buffer.as<float>(),
                                           acc_buffer.as<float>()};
    const auto q = data_.Activations(queries, rows_, query_heads * dim);
    const auto out = data_.Poisoned(rows_, query_heads * dim);
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
    AttentionOps& ops = backend_->ops->attention();
    const auto heads = static_cast<int32_t>(query_heads);
    const DeviceBuffer shared_scratch = data_.Allocate(ops.SharedPageAttentionScratchBytes(
        static_cast<int32_t>(rows_), heads, static_cast<int32_t>(dim)));
    const DeviceSpan<const RowRun> row_runs =
        runs.as<const RowRun>().first(shares ? of_rows_.size() : 0);
    const absl::Status shared =
        ops.SharedPageAttention(*backend_->stream, {.queries = q.view,
                                                    .geometry = geometry,
                                                    .runs = row_runs,
                                                    .pages = ref_buffer.as<const PageRef>(),
                                                    .num_pages = count_buffer.as<const int32_t>(),
                                                    .max_pages = static_cast<int64_t>(max_pages),
                                                    .scale = scale,
                                                    .sums = estimate,
                                                    .scratch = shared_scratch.bytes()});
    EXPECT_TRUE(shared.ok()) << shared;
    if (shares) sums_ = data_.Download<float>(sum_buffer);
    const std::vector<DenseZone> no_zones(static_cast<size_t>(rows_), {nullptr, 0, 0});
    const DeviceBuffer zones = data_.Upload(no_zones);
    const DeviceBuffer pool =
        data_.Upload(std::vector<std::byte>(DensePoolView::BlockBytes(geometry)));
    const DeviceBuffer scratch = data_.Allocate(ops.DecodeAttentionScratchBytes(
        static_cast<int32_t>(rows_), heads, static_cast<int32_t>(dim)));
    const absl::Status status =
        ops.DecodeAttention(*backend_->stream, {.queries = q.view,
                                                .pool = {pool.bytes(), geometry},
                                                .zones = zones.as<const DenseZone>(),
                                                .pages = ref_buffer.as<const PageRef>(),
                                                .num_pages = count_buffer.as<const int32_t>(),
                                                .max_pages = static_cast<int64_t>(max_pages),
                                                .runs = row_runs,
                                                .estimate = estimate,
                                                .scale = scale,
                                                .out = out.view,
                                                .scratch = scratch.bytes()});
    EXPECT_TRUE(status.ok()) << status;
    return data_.Values(out);
  }

  int64_t rows_ = 0;
  std::vector<RowRun> of_rows_;
  std::vector<std::byte> pages_;
  std::vector<List> refs_;  // [batch * kv_heads]
  std::vector<float> sums_;
};

TEST_P(SharedPageAttentionTest, RowsAttendAsWithListsOfTheirOwn) {
  for (const KvFormat& format : KvFormatsOf(*backend_)) {
    for (const uint32_t head_dim : kHeadDims) {
      for (const int64_t group : {1, 3, 4, 7, 16}) {
        for (const bool estimated : {false, true}) {
          const Result result = Attend({2, 2, head_dim, format}, group,
                                       {{.num_rows = 1, .num_tokens = 30, .seed = 1},
                                        {.num_rows = 5, .num_tokens = 150, .seed = 2},
                                        {.num_rows = 1, .num_tokens = 0, .seed = 3},
                                        {.num_rows = 12, .num_tokens = 90, .seed = 4}},
                                       estimated);
          EXPECT_LE(RelativeError(result.shared, result.alone), tolerance_)
              << head_dim << ", group " << group << ", " << format.name << ", " << estimated;
        }
      }
    }
  }
}

// Of every number of rows, and lists from nothing to more than one part has.
TEST_P(SharedPageAttentionTest, RunsAndListsHaveAllLengths) {
  const KvGeometry geometry = {1, 2, 64, kBf16Kv};
  for (const int32_t num_rows : {2, 15, 16, 17, 31, 32, 33, 63, kMaxRowsOfRun}) {
    for (const int32_t num_tokens : {0, 1, 63, 64, 65, 500, 5000}) {
      const Result result =
          Attend(geometry, 4, {{.num_rows = num_rows, .num_tokens = num_tokens, .seed = 9}}, true);
      EXPECT_LE(RelativeError(result.shared, result.alone), tolerance_)
          << num_rows << " rows, " << num_tokens << " tokens";
    }
  }
}

TEST_P(SharedPageAttentionTest, ARowDoesNotDependOnOtherRuns) {
  const KvGeometry geometry = {1, 2, 128, kInt8Kv};
  const Rows run = {.num_rows = 20, .num_tokens = 1500, .seed = 4};
  const Result alone = Attend(geometry, 4, {run}, false);
  const Result among = Attend(geometry, 4,
                              {{.num_rows = 64, .num_tokens = 3000, .seed = 1},
                               run,
                               {.num_rows = 1, .num_tokens = 200, .seed = 2},
                               {.num_rows = 3, .num_tokens = 10, .seed = 3}},
                              false);
  const auto first = among.shared.begin() + static_cast<std::ptrdiff_t>(64 * 8 * 128);
  const std::vector<float> same(first, first + std::ssize(alone.shared));
  EXPECT_EQ(same, alone.shared);
}

TEST_P(SharedPageAttentionTest, RowsOutsideOfRunsStayAsTheyAre) {
  const KvGeometry geometry = {1, 1, 64, kBf16Kv};
  const Result result = Attend(geometry, 2,
                               {{.num_rows = 1, .num_tokens = 100, .seed = 1},
                                {.num_rows = 2, .num_tokens = 100, .seed = 2},
                                {.num_rows = 1, .num_tokens = 100, .seed = 3}},
                               true);
  for (const size_t query : {0, 1, 6, 7}) EXPECT_EQ(result.sums[query], 3.0f);
  for (const size_t query : {2, 3, 4, 5}) EXPECT_NE(result.sums[query], 3.0f);
}

TEST_P(SharedPageAttentionTest, RefusesWhatDoesNotFit) {
  const KvGeometry geometry = {1, 2, 64, kBf16Kv};
  const auto q = data_.Activations(std::vector<float>(2 * 256), 2, 256);
  SharedPageAttentionArgs args = {.queries = q.view, .geometry = geometry, .scale = 1};
  EXPECT_EQ(backend_->ops->attention().SharedPageAttention(*backend_->stream, args).code(),
            absl::StatusCode::kInvalidArgument)
      << "no lists";
  args.scale = 0;
  EXPECT_EQ(backend_->ops->attention().SharedPageAttention(*backend_->stream, args).code(),
            absl::StatusCode::kInvalidArgument)
      << "no scale";
}

INSTANTIATE_TEST_SUITE_P(Backends, SharedPageAttentionTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
