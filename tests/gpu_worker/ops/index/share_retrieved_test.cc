#include "gpu_worker/ops/index/share_retrieved.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using namespace test_support;

class ShareRetrievedTest : public testing::TestWithParam<BackendParam> {
 protected:
  struct Lists {
    std::vector<std::vector<int32_t>> retrieved, estimated;  // [batch * kv_heads]
  };

  // Disjoint lists of clusters, in no order.
  static Lists Random(int32_t batch, int32_t kv_heads, int32_t clusters, int32_t num_retrieved,
                      int32_t num_estimated, uint64_t seed) {
    std::mt19937_64 random(seed);
    Lists lists;
    std::vector<int32_t> order(static_cast<size_t>(clusters));
    std::iota(order.begin(), order.end(), 0);
    for (int32_t i = 0; i < batch * kv_heads; ++i) {
      std::ranges::shuffle(order, random);
      const int32_t retrieved = i % 7 == 3 ? 0 : num_retrieved - i % 3;
      const auto end = order.begin() + retrieved;
      lists.retrieved.emplace_back(order.begin(), end);
      lists.estimated.emplace_back(end, end + num_estimated);
    }
    return lists;
  }

  // As the header says it, but for the order of shared clusters, which is by number.
  static Lists Want(Lists lists, const std::vector<RowRun>& runs, int32_t kv_heads) {
    for (const RowRun& run : runs) {
      for (int32_t head = 0; head < kv_heads; ++head) {
        std::set<int32_t> shared;
        const auto list_of = [&](int32_t row) {
          return static_cast<size_t>((run.first_row + row) * kv_heads + head);
        };
        for (int32_t row = 0; row < run.num_rows; ++row) {
          std::vector<int32_t>& own = lists.retrieved[list_of(row)];
          shared.insert(own.begin(), own.end());
          own.clear();
        }
        lists.retrieved[list_of(0)].assign(shared.begin(), shared.end());
        for (int32_t row = 0; row < run.num_rows; ++row) {
          std::erase_if(lists.estimated[list_of(row)],
                        [&](int32_t cluster) { return shared.contains(cluster); });
        }
      }
    }
    return lists;
  }

  Lists Share(const Lists& lists, const std::vector<RowRun>& runs, int32_t batch, int32_t kv_heads,
              int32_t clusters) {
    constexpr int32_t kNobody = -7;
    const auto length = static_cast<size_t>(clusters);
    const auto flat = [&](const std::vector<std::vector<int32_t>>& all) {
      std::vector<int32_t> rows(all.size() * length, kNobody);
      for (size_t i = 0; i < all.size(); ++i) {
        std::ranges::copy(all[i], rows.begin() + static_cast<std::ptrdiff_t>(i * length));
      }
      return rows;
    };
    const auto counts = [](const std::vector<std::vector<int32_t>>& all) {
      std::vector<int32_t> sizes;
      for (const auto& one : all) sizes.push_back(static_cast<int32_t>(one.size()));
      return sizes;
    };
    const DeviceBuffer retrieved = data_.Upload(flat(lists.retrieved)),
                       estimated = data_.Upload(flat(lists.estimated)),
                       num_retrieved = data_.Upload(counts(lists.retrieved)),
                       num_estimated = data_.Upload(counts(lists.estimated)),
                       run_buffer = data_.Upload(runs),
                       scratch = data_.Allocate(
                           ShareRetrievedScratchBytes(runs.size(), kv_heads, clusters));
    const absl::Status status = backend_->ops->index().ShareRetrieved(
        *backend_->stream, {.runs = run_buffer.as<const RowRun>(),
                            .batch = batch,
                            .num_kv_heads = kv_heads,
                            .max_clusters = clusters,
                            .max_retrieved = clusters,
                            .retrieved = retrieved.as<int32_t>(),
                            .num_retrieved = num_retrieved.as<int32_t>(),
                            .max_estimated = clusters,
                            .estimated = estimated.as<int32_t>(),
                            .num_estimated = num_estimated.as<int32_t>(),
                            .scratch = scratch.bytes()});
    EXPECT_TRUE(status.ok()) << status;
    const auto read = [&](const DeviceBuffer& list_buffer, const DeviceBuffer& count_buffer) {
      const auto rows = data_.Download<int32_t>(list_buffer);
      const auto sizes = data_.Download<int32_t>(count_buffer);
      std::vector<std::vector<int32_t>> all;
      for (size_t i = 0; i < sizes.size(); ++i) {
        const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(i * length);
        all.emplace_back(begin, begin + sizes[i]);
      }
      return all;
    };
    return {read(retrieved, num_retrieved), read(estimated, num_estimated)};
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(ShareRetrievedTest, ARunHasWhatAnyOfItsRowsRetrieves) {
  struct Case {
    int32_t batch, clusters, num_retrieved, num_estimated;
    std::vector<RowRun> runs;
  };
  const std::vector<Case> cases = {
      {4, 64, 5, 20, {{1, 2}}},
      {70, 1024, 36, 240, {{0, 64}, {66, 4}}},
      {9, 7680, 268, 1781, {{3, 1}, {4, 5}}},
      {8, 131072, 400, 30000, {{0, 8}}},     // a row of bits of 16 KiB
      {3, 512 * 1024, 400, 1000, {{1, 2}}},  // of 64 KiB
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.clusters);
    constexpr int32_t kKvHeads = 3;
    const Lists lists = Random(one.batch, kKvHeads, one.clusters, one.num_retrieved,
                               one.num_estimated, static_cast<uint64_t>(one.clusters));
    const Lists got = Share(lists, one.runs, one.batch, kKvHeads, one.clusters);
    const Lists want = Want(lists, one.runs, kKvHeads);
    EXPECT_EQ(got.retrieved, want.retrieved);
    EXPECT_EQ(got.estimated, want.estimated);
  }
}

TEST_P(ShareRetrievedTest, RefusesWhatDoesNotFit) {
  const DeviceBuffer runs = data_.Upload(std::vector<RowRun>{{0, 2}});
  const absl::Status status = backend_->ops->index().ShareRetrieved(
      *backend_->stream,
      {.runs = runs.as<const RowRun>(), .batch = 2, .num_kv_heads = 1, .max_clusters = 64});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

INSTANTIATE_TEST_SUITE_P(Backends, ShareRetrievedTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
