// A segment is the same whoever writes it: one process for all KV heads, or several, each for its
// own (common/kv/kv_head_range.h). Pages may lie elsewhere, and what is read is what was written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "common/kv/kv_head_range.h"
#include "common/kv/segment_layout.h"
#include "gpu_worker/wave_index/segment_builder.h"
#include "kv_store_service/mapping/segment_image.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/layer_kv_image.h"

namespace retroinfer {
namespace {

using namespace test_support;

constexpr uint32_t kLayers = 2, kDim = 64, kTokens = 2048, kMetaBlocks = kTokens / 1024;
constexpr size_t kArenaPages = 14'000;

using Bytes = std::vector<std::byte>;

// What one rank builds with: pool, builder and the KV of its heads.
struct Rank {
  KvGeometry geometry;
  KvHeadRange heads;
  DeviceBuffer pool_bytes;
  MetaPoolView pool;
  std::vector<LayerKvImage> layers;
  std::unique_ptr<SegmentBuilder> builder;
};

class SegmentHeadsTest : public testing::TestWithParam<BackendParam> {
 protected:
  SegmentHeadsTest() {
    const std::vector<MetaBlockId> ids = {1, 0};
    blocks_ = data_.Upload(ids);
  }
  ~SegmentHeadsTest() override { backend_->device->UnmapHost(arena_); }

  // Begins with an arena of old bytes for segments of this geometry.
  void Begin(const KvGeometry& geometry) {
    geometry_ = geometry;
    layout_ = std::make_unique<SegmentLayout>(geometry, kTokens);
    RI_CHECK(second() + layout_->max_pages < kArenaPages);
    std::ranges::fill(arena_, std::byte{0xee});
    keys_.clear();
    values_.clear();
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const size_t count = geometry.num_kv_heads * size_t{kTokens + 4} * kDim;
      keys_.push_back(RandomNormal(count, 10 + layer));
      values_.push_back(RandomNormal(count, 20 + layer));
    }
  }
  Extent ExtentAt(PageId first_page) const {
    return {
        .id = 1, .first_page = first_page, .num_pages = layout_->max_pages, .num_tokens = kTokens};
  }
  PageId first() const { return 3; }
  PageId second() const { return 5 + layout_->max_pages; }

  DeviceSpan<const MetaBlockId> blocks() const {
    return blocks_.as<const MetaBlockId>().first(kMetaBlocks);
  }
  Rank MakeRank(const KvHeadRange& heads) {
    Rank rank{.heads = heads};
    rank.geometry = geometry_;
    rank.geometry.num_kv_heads = heads.count;
    rank.pool_bytes = data_.Allocate(kMetaBlocks * MetaPoolView::BlockBytes(rank.geometry));
    rank.pool = {rank.pool_bytes.bytes(), rank.geometry};
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const size_t head = size_t{kTokens + 4} * kDim;
      const auto of = [&](const std::vector<float>& all) {
        return std::span(all).subspan(heads.first * head, heads.count * head);
      };
      rank.layers.emplace_back(data_, of(keys_[layer]), of(values_[layer]), heads.count, kDim,
                               geometry_.format);
    }
    rank.builder = *SegmentBuilder::Create(
        *backend_->device, *backend_->ops, *backend_->background, rank.pool, {arena_, mapped_},
        {.kmeans_rounds = 3},
        {.max_segment_tokens = kTokens, .max_open_segments = 1, .heads = heads});
    return rank;
  }
  // All ranks build the segment into the extent, layer by layer in turns.
  void Build(std::vector<Rank>& ranks, PageId first_page) {
    std::vector<SegmentBuilder::Ticket> tickets;
    for (Rank& rank : ranks) {
      tickets.push_back(*rank.builder->Open({.token_begin = 4,
                                             .num_tokens = kTokens,
                                             .extent = ExtentAt(first_page),
                                             .meta_blocks = blocks()}));
    }
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (size_t i = 0; i < ranks.size(); ++i) {
        ASSERT_TRUE(
            ranks[i].builder->BuildLayer(tickets[i], layer, ranks[i].layers[layer].view()).ok());
      }
    }
    for (size_t i = 0; i < ranks.size(); ++i) {
      ASSERT_TRUE(ranks[i].builder->Seal(tickets[i]).ok());
      ASSERT_TRUE(backend_->background->Synchronize().ok());
      const std::optional<BuiltSegment> built = *ranks[i].builder->PollDone(tickets[i]);
      ASSERT_TRUE(built.has_value());
      const KvRegion region = layout_->RegionOf(ranks[i].heads);
      EXPECT_EQ(built->first_kv_page, region.begin);
      EXPECT_LE(built->used_pages, region.end);
    }
  }

  std::span<const std::byte> Image(PageId first_page) const {
    return std::span(arena_).subspan(first_page * geometry_.page_bytes(),
                                     layout_->max_pages * geometry_.page_bytes());
  }
  ClusterEntry EntryOf(PageId first_page, size_t run, uint32_t cluster) const {
    ClusterEntry entry;
    std::memcpy(&entry,
                Image(first_page).data() + layout_->clusters_offset +
                    (run * layout_->num_clusters + cluster) * sizeof(entry),
                sizeof(entry));
    return entry;
  }
  // The keys and values of a cluster whose first place counts from `memory`.
  Bytes TokensOf(std::span<const std::byte> memory, uint32_t first_place,
                 uint32_t num_tokens) const {
    const PageLayout page = geometry_.page();
    const ClusterPlace place(first_place, geometry_.places_per_page());
    Bytes tokens;
    for (uint32_t i = 0; i < num_tokens; ++i) {
      const uint32_t at = place.skipped + i;
      const auto key = memory.subspan(size_t{place.first_page + at / page.tokens} * page.bytes +
                                      at % page.tokens * page.vector_bytes);
      for (const auto vector :
           {key.first(page.vector_bytes), key.subspan(page.values_offset, page.vector_bytes)}) {
        tokens.insert(tokens.end(), vector.begin(), vector.end());
      }
    }
    return tokens;
  }

  // Both segments have the same clusters with the same bytes.
  void ExpectSame(PageId one, PageId other) {
    for (size_t run = 0; run < size_t{kLayers} * geometry_.num_kv_heads; ++run) {
      const auto part = [&](PageId extent, size_t offset, size_t bytes) {
        const auto span = Image(extent).subspan(offset + run * bytes, bytes);
        return Bytes(span.begin(), span.end());
      };
      const SegmentLayout& at = *layout_;
      for (const auto& [offset, bytes] :
           {std::pair(at.centroids_offset, at.centroids_bytes),
            std::pair(at.value_sums_offset, at.value_sums_bytes),
            std::pair(at.order_offset, size_t{kTokens} * sizeof(TokenOrder)),
            std::pair(at.codes_offset, at.codes_bytes)}) {
        EXPECT_EQ(part(one, offset, bytes), part(other, offset, bytes)) << run << ", " << offset;
      }
      for (uint32_t cluster = 0; cluster < at.num_clusters; ++cluster) {
        const ClusterEntry a = EntryOf(one, run, cluster), b = EntryOf(other, run, cluster);
        ASSERT_EQ(a.num_tokens, b.num_tokens);
        EXPECT_EQ(a.radius, b.radius);
        ASSERT_EQ(TokensOf(Image(one), a.first_place, a.num_tokens),
                  TokensOf(Image(other), b.first_place, b.num_tokens))
            << run << ", " << cluster;
      }
    }
  }
  // Pages of no cluster, between the index and the end of the extent, are zero.
  void ExpectRestIsZero(PageId first_page) {
    std::vector<bool> taken(layout_->max_pages);
    for (size_t run = 0; run < size_t{kLayers} * geometry_.num_kv_heads; ++run) {
      for (uint32_t cluster = 0; cluster < layout_->num_clusters; ++cluster) {
        const ClusterEntry entry = EntryOf(first_page, run, cluster);
        const ClusterPlace place(entry.first_place, geometry_.places_per_page());
        const uint64_t pages = place.NumPages(entry.num_tokens, geometry_.tokens_per_page());
        for (uint64_t i = 0; i < pages; ++i) taken[place.first_page + i] = true;
      }
    }
    uint32_t num_free = 0;
    for (uint32_t page = layout_->first_kv_page; page < layout_->max_pages; ++page) {
      if (taken[page]) continue;
      ++num_free;
      const auto bytes =
          Image(first_page).subspan(page * geometry_.page_bytes(), geometry_.page_bytes());
      ASSERT_TRUE(std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; }))
          << "page " << page;
    }
    EXPECT_EQ(num_free > 0, !geometry_.format.packs_clusters) << "the test has nothing to look at";
  }

  // The rank reads the segment in the extent: its index, the pages that the index points to, and
  // its layers. `own`: the rank has built it, so that its pool has the same bytes.
  void ExpectReads(const Rank& rank, PageId first_page, bool own) {
    const DeviceBuffer loaded_bytes = data_.Upload(Bytes(rank.pool.bytes.size(), std::byte{0x77}));
    const MetaPoolView loaded{loaded_bytes.bytes(), rank.geometry};
    const size_t page_bytes = geometry_.page_bytes();
    const auto extent = mapped_.subspan(first_page * page_bytes, layout_->max_pages * page_bytes);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      ASSERT_TRUE(backend_->ops->index()
                      .LoadSegmentIndex(*backend_->stream, {.extent = extent,
                                                            .extent_first_page = first_page,
                                                            .num_tokens = kTokens,
                                                            .layer = layer,
                                                            .pool = loaded,
                                                            .heads = rank.heads,
                                                            .meta_blocks = blocks()})
                      .ok());
      ExpectLayer(rank, extent, layer);
    }
    Bytes want = data_.Download<std::byte>(DeviceSpan<const std::byte>(rank.pool.bytes));
    Bytes got = data_.Download<std::byte>(DeviceSpan<const std::byte>(loaded.bytes));
    if (own) {
      EXPECT_EQ(got, want);
    }
    const MetaPoolView wanted{{want.data(), want.size()}, rank.geometry};
    const MetaPoolView read{{got.data(), got.size()}, rank.geometry};
    for (MetaBlockId block = 0; block < MetaBlockId{kMetaBlocks}; ++block) {
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        for (uint32_t head = 0; head < rank.geometry.num_kv_heads; ++head) {
          for (uint32_t i = 0; i < kClustersPerMetaBlock; ++i) {
            const MetaEntry a = wanted.Entries(block, layer, head)[i];
            const MetaEntry b = read.Entries(block, layer, head)[i];
            ASSERT_EQ(a.num_tokens, b.num_tokens);
            ASSERT_EQ(TokensOf(arena_, a.first_place, a.num_tokens),
                      TokensOf(arena_, b.first_place, b.num_tokens));
          }
        }
      }
    }
  }
  void ExpectLayer(const Rank& rank, DeviceSpan<const std::byte> extent, uint32_t layer) {
    const LayerKv& want = rank.layers[layer].view();
    const size_t bytes = rank.geometry.num_kv_heads * static_cast<size_t>(want.capacity) *
                         rank.geometry.prompt_vector_bytes();
    const DeviceBuffer keys = data_.Upload(data_.Download<std::byte>(
        DeviceSpan<const std::byte>(want.values, bytes)));  // anything but the keys
    const DeviceBuffer values =
        data_.Upload(data_.Download<std::byte>(DeviceSpan<const std::byte>(want.keys, bytes)));
    LayerKv out = want;
    out.keys = keys.bytes().device_data();
    out.values = values.bytes().device_data();
    ASSERT_TRUE(backend_->ops->index()
                    .ReadSegmentLayer(*backend_->stream, {.extent = extent,
                                                          .geometry = rank.geometry,
                                                          .heads = rank.heads,
                                                          .num_tokens = kTokens,
                                                          .layer = layer,
                                                          .out = out,
                                                          .first_token = 4})
                    .ok());
    ASSERT_TRUE(backend_->stream->Synchronize().ok());
    const size_t row = rank.geometry.prompt_vector_bytes();
    const size_t head_bytes = static_cast<size_t>(want.capacity) * row;
    for (const auto& [got_rows, want_rows] :
         {std::pair(out.keys, want.keys), std::pair(out.values, want.values)}) {
      const Bytes got = data_.Download<std::byte>(DeviceSpan<const std::byte>(got_rows, bytes));
      const Bytes wanted = data_.Download<std::byte>(DeviceSpan<const std::byte>(want_rows, bytes));
      for (size_t head = 0; head < rank.geometry.num_kv_heads; ++head) {
        const size_t begin = head * head_bytes + 4 * row;  // the rows of the segment
        ASSERT_EQ(std::memcmp(&got[begin], &wanted[begin], kTokens * row), 0) << head;
      }
    }
  }

  // Of a segment that one process writes, and one that a process for each range does.
  void ExpectWhatOneWrites(const KvFormat& format, const std::vector<KvHeadRange>& ranges);

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
  KvGeometry geometry_;
  std::unique_ptr<SegmentLayout> layout_;
  Bytes arena_ = Bytes(kArenaPages * kPageBytes);
  DeviceSpan<std::byte> mapped_ = *backend_->device->MapHost(arena_);
  DeviceBuffer blocks_;
  std::vector<std::vector<float>> keys_, values_;  // by layer: [heads][kTokens + 4][kDim]
};

void SegmentHeadsTest::ExpectWhatOneWrites(const KvFormat& format,
                                           const std::vector<KvHeadRange>& ranges) {
  SCOPED_TRACE(testing::Message() << format.name << ", " << ranges.size() << " writers for "
                                  << ranges[0].total << " heads");
  Begin({kLayers, ranges[0].total, kDim, format});
  std::vector<Rank> one, several;
  one.push_back(MakeRank({0, geometry_.num_kv_heads, geometry_.num_kv_heads}));
  for (const KvHeadRange& heads : ranges) several.push_back(MakeRank(heads));
  ASSERT_NO_FATAL_FAILURE(Build(one, first()));
  ASSERT_NO_FATAL_FAILURE(Build(several, second()));
  for (const PageId extent : {first(), second()}) {
    const auto image = kvstore::ReadSegmentImage(Image(extent), geometry_, 4, kTokens);
    ASSERT_TRUE(image.ok()) << image.status();
    if (extent == second() || format.packs_clusters) {
      EXPECT_EQ(image->used_pages, layout_->max_pages);
    } else {
      EXPECT_LT(image->used_pages, layout_->max_pages) << "one writer leaves no holes";
    }
  }
  ASSERT_NO_FATAL_FAILURE(ExpectSame(first(), second()));
  ExpectRestIsZero(second());
  for (const PageId extent : {first(), second()}) {
    ExpectReads(one[0], extent, extent == first());
    for (const Rank& rank : several) ExpectReads(rank, extent, extent == second());
  }
  for (const size_t page : {size_t{0}, size_t{second()} + layout_->max_pages}) {
    EXPECT_EQ(arena_[page * kPageBytes], std::byte{0xee}) << "outside";
  }
}

TEST_P(SegmentHeadsTest, TwoWritersWriteWhatOneWritesInEveryFormat) {
  for (const KvFormat& format : KvFormatsOf(*backend_)) {
    ExpectWhatOneWrites(format, {{0, 2, 4}, {2, 2, 4}});
  }
}

TEST_P(SegmentHeadsTest, ManyWritersWriteWhatOneWrites) {
  const KvFormat format = KvFormatsOf(*backend_).front();
  ExpectWhatOneWrites(format, {{0, 1, 4}, {1, 1, 4}, {2, 1, 4}, {3, 1, 4}});
  // More writers than heads.
  ExpectWhatOneWrites(format, {{0, 1, 2}, {0, 1, 2}, {1, 1, 2}, {1, 1, 2}});
}

// The old numbers of no range at all.
TEST_P(SegmentHeadsTest, NoRangeStandsForAllHeads) {
  Begin({kLayers, 2, kDim, kBf16Kv});
  std::vector<Rank> plain, named;
  plain.push_back(MakeRank({0, 2, 2}));
  plain[0].builder = *SegmentBuilder::Create(
      *backend_->device, *backend_->ops, *backend_->background, plain[0].pool, {arena_, mapped_},
      {.kmeans_rounds = 3}, {.max_segment_tokens = kTokens, .max_open_segments = 1});
  named.push_back(MakeRank({0, 2, 2}));
  ASSERT_NO_FATAL_FAILURE(Build(plain, first()));
  ASSERT_NO_FATAL_FAILURE(Build(named, second()));
  EXPECT_TRUE(std::ranges::equal(Image(first()), Image(second())));
}

TEST_P(SegmentHeadsTest, RangesThatMemoryDoesNotHaveAreRefused) {
  Begin({kLayers, 2, kDim, kBf16Kv});
  const Rank rank = MakeRank({0, 2, 2});
  for (const KvHeadRange& heads : {KvHeadRange{0, 1, 2}, KvHeadRange{1, 2, 2}, KvHeadRange{0, 2, 1},
                                   KvHeadRange{1, 0, 0}, KvHeadRange{UINT32_MAX, 2, 4}}) {
    EXPECT_EQ(
        SegmentBuilder::Create(*backend_->device, *backend_->ops, *backend_->background, rank.pool,
                               {arena_, mapped_}, {}, {.max_open_segments = 1, .heads = heads})
            .status()
            .code(),
        absl::StatusCode::kInvalidArgument);
    EXPECT_FALSE(backend_->ops->index()
                     .LoadSegmentIndex(*backend_->stream, {.extent = mapped_,
                                                           .num_tokens = kTokens,
                                                           .layer = 0,
                                                           .pool = rank.pool,
                                                           .heads = heads,
                                                           .meta_blocks = blocks()})
                     .ok());
    EXPECT_FALSE(backend_->ops->index()
                     .ReadSegmentLayer(*backend_->stream, {.extent = mapped_,
                                                           .geometry = rank.geometry,
                                                           .heads = heads,
                                                           .num_tokens = kTokens,
                                                           .layer = 0,
                                                           .out = rank.layers[0].view()})
                     .ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, SegmentHeadsTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
