#include "gpu_worker/ops/index/load_segment_index.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/segment_image.h"

namespace retroinfer {
namespace {

using namespace test_support;

class LoadSegmentIndexTest : public testing::TestWithParam<BackendParam> {
 protected:
  std::vector<std::byte> BytesOf(const MetaPoolView& pool) {
    return data_.Download<std::byte>(DeviceSpan<const std::byte>(pool.bytes));
  }
  absl::Status Load(const LoadSegmentIndexArgs& args) {
    const absl::Status status = backend_->ops->index().LoadSegmentIndex(*backend_->stream, args);
    RI_CHECK(backend_->stream->Synchronize().ok());
    return status;
  }

  void ExpectEmptyOutside(const KvGeometry& geometry);

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(LoadSegmentIndexTest, FillsTheMetaBlocksAsTheyWereWhenTheSegmentWasBuilt) {
  std::vector<KvGeometry> geometries;
  for (const KvFormat& format : KvFormatsOf(*backend_)) {
    geometries.push_back({2, 2, 64, format});
    geometries.push_back({1, 3, 128, format});
    geometries.push_back({1, 1, 256, format});
  }
  for (const KvGeometry& geometry : geometries) {
    for (const uint32_t num_tokens : {1024u, 8192u}) {
      const SegmentImage segment(*backend_, data_, geometry, num_tokens);
      MetaPoolImage image(geometry, num_tokens / 1024);
      image.Randomize(3, 0);
      const MetaPoolView pool = image.Upload(data_);
      ASSERT_NE(BytesOf(pool), BytesOf(segment.pool()));
      for (uint32_t layer = 0; layer < geometry.num_layers; ++layer) {
        ASSERT_TRUE(Load({.extent = segment.extent(),
                          .extent_first_page = SegmentImage::kFirstPage,
                          .num_tokens = num_tokens,
                          .layer = layer,
                          .pool = pool,
                          .meta_blocks = segment.meta_blocks()})
                        .ok());
      }
      EXPECT_EQ(BytesOf(pool), BytesOf(segment.pool()));
    }
  }
}

TEST_P(LoadSegmentIndexTest, AnEntryThatPointsOutOfTheExtentIsEmpty) {
  for (const KvFormat& format : {kBf16Kv, kInt8PackedKv}) ExpectEmptyOutside({1, 1, 64, format});
}

void LoadSegmentIndexTest::ExpectEmptyOutside(const KvGeometry& geometry) {
  SCOPED_TRACE(geometry.format.name);
  const uint32_t per_page = geometry.places_per_page();
  const SegmentLayout layout(geometry, 1024);
  const SegmentImage segment(*backend_, data_, geometry, 1024);
  auto bytes = data_.Download<std::byte>(DeviceSpan<const std::byte>(segment.extent()));
  auto* entries = reinterpret_cast<ClusterEntry*>(bytes.data() + layout.clusters_offset);
  entries[0].first_place = layout.max_pages * per_page;
  entries[1].num_tokens = UINT32_MAX;
  entries[2].first_place = (layout.max_pages - 1) * per_page + per_page / 2;
  entries[2].num_tokens = geometry.tokens_per_page() + 1 - per_page / 2;  // ends just outside
  entries[4].first_place = UINT32_MAX;
  const DeviceBuffer extent = data_.Upload(bytes);
  ASSERT_TRUE(Load({.extent = extent.bytes(),
                    .extent_first_page = 7,
                    .num_tokens = 1024,
                    .layer = 0,
                    .pool = segment.pool(),
                    .meta_blocks = segment.meta_blocks()})
                  .ok());
  auto pool_bytes = BytesOf(segment.pool());
  const MetaPoolView host{{pool_bytes.data(), pool_bytes.size()}, geometry};
  EXPECT_EQ(host.Entries(0, 0, 0)[0].num_tokens, 0u);
  EXPECT_EQ(host.Entries(0, 0, 0)[1].num_tokens, 0u);
  EXPECT_EQ(host.Entries(0, 0, 0)[2].num_tokens, 0u);
  EXPECT_EQ(host.Entries(0, 0, 0)[4].num_tokens, 0u);
  EXPECT_EQ(host.Entries(0, 0, 0)[3].num_tokens, entries[3].num_tokens);
  EXPECT_EQ(host.Entries(0, 0, 0)[3].first_place, 7 * per_page + entries[3].first_place);
}

// Codes are found by sums of the sizes before: none may lead out of the segment's.
TEST_P(LoadSegmentIndexTest, ClustersWhoseCodesWouldLieOutsideAreEmpty) {
  const KvGeometry geometry{1, 2, 64, kBf16CodedKv};
  for (const uint32_t num_tokens : {1024u, 8192u}) {
    const SegmentLayout layout(geometry, num_tokens);
    const SegmentImage segment(*backend_, data_, geometry, num_tokens);
    auto bytes = data_.Download<std::byte>(DeviceSpan<const std::byte>(segment.extent()));
    auto* entries = reinterpret_cast<ClusterEntry*>(bytes.data() + layout.clusters_offset);
    entries[2].num_tokens += 5;
    entries[40].num_tokens = UINT32_MAX;
    const DeviceBuffer extent = data_.Upload(bytes);
    ASSERT_TRUE(Load({.extent = extent.bytes(),
                      .extent_first_page = 7,
                      .num_tokens = num_tokens,
                      .layer = 0,
                      .pool = segment.pool(),
                      .meta_blocks = segment.meta_blocks()})
                    .ok());
    auto pool_bytes = BytesOf(segment.pool());
    const MetaPoolView host{{pool_bytes.data(), pool_bytes.size()}, geometry};
    uint32_t live[2] = {0, 0};
    for (uint32_t head = 0; head < 2; ++head) {
      int64_t before = 0;
      for (uint32_t i = 0; i < layout.num_clusters; ++i) {
        const MetaEntry& entry = host.Entries(static_cast<MetaBlockId>(i / 64), 0, head)[i % 64];
        const auto block = static_cast<int32_t>(i / 64);
        const int32_t first = host.FirstCodes(static_cast<MetaBlockId>(block), 0, head)[i % 64];
        if (head == 1) {
          EXPECT_EQ(first + block * 1024, before) << i;
        }
        before += entry.num_tokens;
        if (entry.num_tokens == 0) continue;
        ++live[head];
        const auto blocks = static_cast<int32_t>(num_tokens / 1024);
        EXPECT_GE(CodePlaceOf(block, first, 0).block, 0);
        EXPECT_LT(CodePlaceOf(block, first, entry.num_tokens - 1).block, blocks);
      }
    }
    EXPECT_EQ(live[0], 36u) << "those before the damage";
    EXPECT_GT(live[1], 40u) << "another head is whole";
  }
}

TEST_P(LoadSegmentIndexTest, RefusesWhatDoesNotFit) {
  const KvGeometry geometry{1, 1, 64, kBf16Kv};
  const SegmentImage segment(*backend_, data_, geometry, 1024);
  LoadSegmentIndexArgs args{.extent = segment.extent(),
                            .num_tokens = 2048,
                            .pool = segment.pool(),
                            .meta_blocks = segment.meta_blocks()};
  EXPECT_EQ(Load(args).code(), absl::StatusCode::kInvalidArgument);
  args.num_tokens = 1024;
  EXPECT_TRUE(Load(args).ok());
  args.layer = 1;
  EXPECT_EQ(Load(args).code(), absl::StatusCode::kInvalidArgument);
  args.layer = 0;
  args.extent = segment.extent().first(kPageBytes);
  EXPECT_EQ(Load(args).code(), absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Backends, LoadSegmentIndexTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
