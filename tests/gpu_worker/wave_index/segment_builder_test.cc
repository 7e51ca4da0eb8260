#include "gpu_worker/wave_index/segment_builder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "common/kv/segment_layout.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/layer_kv_image.h"

namespace retroinfer {
namespace {

using namespace test_support;

class SegmentBuilderTest : public testing::TestWithParam<BackendParam> {
 protected:
  SegmentBuilderTest() {
    arena_.resize(kArenaPages * kPageBytes, std::byte{0xee});
    auto mapped = backend_->device->MapHost(arena_);
    RI_CHECK(mapped.ok());
    pool_bytes_ = data_.Allocate(16 * MetaPoolView::BlockBytes(geometry_));
    meta_pool_ = {pool_bytes_.bytes(), geometry_};
    blocks_ = data_.Upload(std::vector<MetaBlockId>{3, 9, 1, 14, 0, 2, 5, 7});
    auto builder =
        SegmentBuilder::Create(*backend_->device, *backend_->ops, *backend_->background, meta_pool_,
                               {arena_, *mapped}, {.kmeans_rounds = 3}, {.max_open_segments = 2});
    RI_CHECK(builder.ok());
    builder_ = *std::move(builder);
  }

  SegmentTarget Target(int64_t token_begin, uint32_t num_tokens, PageId first_page) {
    return {.token_begin = token_begin,
            .num_tokens = num_tokens,
            .extent = {.id = 1,
                       .first_page = first_page,
                       .num_pages = SegmentLayout(geometry_, num_tokens).max_pages,
                       .num_tokens = num_tokens},
            .meta_blocks = blocks_.as<const MetaBlockId>().first(num_tokens / 1024)};
  }

  // Waits for a sealed segment.
  void Finish(SegmentBuilder::Ticket ticket) {
    ASSERT_TRUE(builder_->Seal(ticket).ok());
    ASSERT_TRUE(backend_->background->Synchronize().ok());
    ASSERT_TRUE(builder_->PollDone(ticket)->has_value());
  }

  // The keys of one (layer, head) of a segment, as sums over its pages; every page and every place
  // is visited once.
  std::vector<double> SumOfKeys(const SegmentTarget& target, uint32_t layer, uint32_t head,
                                uint32_t* num_tokens) {
    const SegmentLayout layout(geometry_, target.num_tokens);
    const std::byte* extent = arena_.data() + size_t{target.extent.first_page} * kPageBytes;
    const auto* entries = reinterpret_cast<const ClusterEntry*>(extent + layout.clusters_offset) +
                          (layer * geometry_.num_kv_heads + head) * layout.num_clusters;
    std::vector<double> sums(geometry_.head_dim);
    *num_tokens = 0;
    for (uint32_t c = 0; c < layout.num_clusters; ++c) {
      *num_tokens += entries[c].num_tokens;
      for (uint32_t i = 0; i < entries[c].num_tokens; ++i) {
        const uint32_t per_page = geometry_.tokens_per_page();
        const std::byte* at = extent + size_t{entries[c].first_place + i / per_page} * kPageBytes +
                              i % per_page * geometry_.page().vector_bytes;
        const auto key =
            FromBytes(std::span(at, geometry_.page().vector_bytes), geometry_.format.token.element);
        for (size_t j = 0; j < key.size(); ++j) sums[j] += key[j];
      }
    }
    return sums;
  }

  void ExpectHoldsTokens(const SegmentTarget& target, uint32_t layer, const LayerKvImage& kv,
                         int64_t first_row) {
    for (uint32_t head = 0; head < geometry_.num_kv_heads; ++head) {
      uint32_t num_tokens = 0;
      const auto got = SumOfKeys(target, layer, head, &num_tokens);
      EXPECT_EQ(num_tokens, target.num_tokens);
      for (size_t j = 0; j < got.size(); ++j) {
        double want = 0;
        for (uint32_t i = 0; i < target.num_tokens; ++i) want += kv.Key(head, first_row + i)[j];
        ASSERT_NEAR(got[j], want, 1e-6 * target.num_tokens) << "layer " << layer;
      }
    }
  }

  static constexpr size_t kArenaPages = 20'000;
  const KvGeometry geometry_{2, 2, 64, kBf16Kv};
  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
  std::vector<std::byte> arena_;
  DeviceBuffer pool_bytes_;
  MetaPoolView meta_pool_;
  DeviceBuffer blocks_;
  std::unique_ptr<SegmentBuilder> builder_;
};

TEST_P(SegmentBuilderTest, BuildsLayerByLayerFromAPrompt) {
  const size_t count = 2 * 9300 * 64;
  const LayerKvImage first(data_, RandomNormal(count, 1), RandomNormal(count, 2), 2, 64,
                           DType::kBf16);
  const LayerKvImage second(data_, RandomNormal(count, 3), RandomNormal(count, 4), 2, 64,
                            DType::kBf16);
  const SegmentTarget large = Target(4, 8192, 100);
  const SegmentTarget small = Target(8196, 1024, 15'000);
  const auto large_ticket = builder_->Open(large), small_ticket = builder_->Open(small);
  ASSERT_TRUE(large_ticket.ok() && small_ticket.ok());
  EXPECT_EQ(builder_->Open(small).status().code(), absl::StatusCode::kResourceExhausted);
  for (uint32_t layer = 0; layer < 2; ++layer) {
    const LayerKv& kv = layer == 0 ? first.view() : second.view();
    ASSERT_TRUE(builder_->BuildLayer(*large_ticket, layer, kv).ok());
    ASSERT_TRUE(builder_->BuildLayer(*small_ticket, layer, kv).ok());
  }
  EXPECT_FALSE(builder_->PollDone(*large_ticket)->has_value()) << "not sealed";
  Finish(*large_ticket);
  Finish(*small_ticket);
  EXPECT_EQ(builder_->num_built(), 2u);
  EXPECT_EQ(builder_->num_open(), 0);
  for (const SegmentTarget& target : {large, small}) {
    ExpectHoldsTokens(target, 0, first, target.token_begin);
    ExpectHoldsTokens(target, 1, second, target.token_begin);
    SegmentHeader header;
    std::memcpy(&header, arena_.data() + size_t{target.extent.first_page} * kPageBytes,
                sizeof(header));
    EXPECT_EQ(header.magic, kSegmentMagic);
    EXPECT_EQ(header.version, kSegmentVersion);
    EXPECT_EQ(header.num_tokens, target.num_tokens);
    EXPECT_EQ(header.num_clusters, target.num_tokens / 16);
    EXPECT_EQ(header.format, 2u);
    EXPECT_EQ(header.token_begin, static_cast<uint64_t>(target.token_begin));
    EXPECT_LE(header.used_pages, target.extent.num_pages);
    EXPECT_GE(header.used_pages, SegmentLayout(geometry_, target.num_tokens).first_kv_page +
                                     4 * target.num_tokens / geometry_.tokens_per_page());
  }
}

TEST_P(SegmentBuilderTest, BuildsFromDenseBlocks) {
  const DeviceBuffer dense = data_.Allocate(20 * DensePoolView::BlockBytes(geometry_));
  const DensePoolView pool{dense.bytes(), geometry_};
  const std::vector<DenseBlockId> ids = {5, 0, 19, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  const DeviceBuffer device_ids = data_.Upload(ids);
  std::vector<LayerKvImage> layers;
  for (uint32_t layer = 0; layer < 2; ++layer) {
    const size_t count = 2 * 1024 * 64;
    layers.emplace_back(data_, RandomNormal(count, 10 + layer), RandomNormal(count, 20 + layer), 2,
                        64, DType::kBf16);
    ASSERT_TRUE(backend_->ops->attention()
                    .FillDense(*backend_->stream,
                               {.in = layers.back().view(),
                                .first_token = 0,
                                .num_tokens = 1024,
                                .pool = pool,
                                .layer = layer,
                                .block_ids = device_ids.as<const DenseBlockId>().first(ids.size())})
                    .ok());
  }
  ASSERT_TRUE(backend_->stream->Synchronize().ok());
  const SegmentTarget target = Target(4100, 1024, 7);
  const auto ticket = builder_->Open(target);
  ASSERT_TRUE(ticket.ok());
  ASSERT_TRUE(builder_->BuildFromDense(*ticket, pool, ids).ok());
  Finish(*ticket);
  ExpectHoldsTokens(target, 0, layers[0], 0);
  ExpectHoldsTokens(target, 1, layers[1], 0);
}

TEST_P(SegmentBuilderTest, RefusesAnotherNumberOfDenseBlocks) {
  const DeviceBuffer dense = data_.Allocate(20 * DensePoolView::BlockBytes(geometry_));
  const auto ticket = builder_->Open(Target(4100, 1024, 7));
  ASSERT_TRUE(ticket.ok());
  const std::vector<DenseBlockId> ids(15);
  EXPECT_EQ(builder_->BuildFromDense(*ticket, {dense.bytes(), geometry_}, ids).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(builder_->Abandon(*ticket).ok());
}

TEST_P(SegmentBuilderTest, RefusesTargetsThatDoNotFit) {
  SegmentTarget target = Target(4, 1024, 100);
  target.extent.num_pages -= 1;
  EXPECT_EQ(builder_->Open(target).status().code(), absl::StatusCode::kInvalidArgument);
  target = Target(4, 1024, kArenaPages - 10);
  EXPECT_EQ(builder_->Open(target).status().code(), absl::StatusCode::kInvalidArgument);
  target = Target(4, 1024, 100);
  target.num_tokens = 1000;
  EXPECT_EQ(builder_->Open(target).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(SegmentBuilderTest, AnAbandonedSegmentGivesItsTicketBackAndGetsNoHeader) {
  const SegmentTarget target = Target(4, 1024, 100);
  const auto ticket = builder_->Open(target);
  ASSERT_TRUE(ticket.ok());
  ASSERT_TRUE(builder_->Abandon(*ticket).ok());
  EXPECT_EQ(builder_->num_open(), 0);
  EXPECT_EQ(arena_[100 * kPageBytes], std::byte{0xee});
}

// The ticket of a segment that was given up while the background still worked on it goes to the
// next one, of another size.
TEST_P(SegmentBuilderTest, ATicketIsReusedWhileTheBackgroundStillWorksForTheOldSegment) {
  const size_t count = 2 * 8200 * 64;
  const LayerKvImage kv(data_, RandomNormal(count, 1), RandomNormal(count, 2), 2, 64, DType::kBf16);
  const auto abandoned = builder_->Open(Target(4, 1024, 100));
  ASSERT_TRUE(abandoned.ok());
  ASSERT_TRUE(builder_->BuildLayer(*abandoned, 0, kv.view()).ok());
  ASSERT_TRUE(builder_->BuildLayer(*abandoned, 1, kv.view()).ok());
  ASSERT_TRUE(builder_->Seal(*abandoned).ok());
  ASSERT_TRUE(builder_->Abandon(*abandoned).ok());
  const SegmentTarget target = Target(4, 8192, 5000);
  const auto ticket = builder_->Open(target);
  ASSERT_TRUE(ticket.ok());
  ASSERT_EQ(*ticket, *abandoned);
  EXPECT_FALSE(builder_->PollDone(*ticket)->has_value());
  for (uint32_t layer = 0; layer < 2; ++layer) {
    ASSERT_TRUE(builder_->BuildLayer(*ticket, layer, kv.view()).ok());
  }
  Finish(*ticket);
  ExpectHoldsTokens(target, 0, kv, 4);
  ExpectHoldsTokens(target, 1, kv, 4);
}

// 2^32 places of tokens, 16 of them a page of 2 KiB, are 512 GiB.
TEST_P(SegmentBuilderTest, AnArenaThatEntriesCannotCountIsRefused) {
  const KvGeometry packed{2, 2, 64, kInt8PackedKv};
  const DeviceBuffer pool = data_.Allocate(MetaPoolView::BlockBytes(packed));
  const auto create = [&](const KvGeometry& geometry, uint64_t arena_bytes) {
    const DeviceSpan<std::byte> arena(pool.bytes().device_data(), arena_bytes);  // nobody reads it
    return SegmentBuilder::Create(*backend_->device, *backend_->ops, *backend_->background,
                                  {pool.bytes(), geometry}, {{}, arena}, {},
                                  {.max_open_segments = 1})
        .status();
  };
  EXPECT_TRUE(create(packed, uint64_t{512} << 30).ok());
  const absl::Status refused = create(packed, (uint64_t{512} << 30) + kPageBytes);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("smaller --arena-bytes"), std::string::npos) << refused;
  EXPECT_TRUE(create({2, 2, 64, kInt8Kv}, uint64_t{4} << 40).ok());
}

INSTANTIATE_TEST_SUITE_P(Backends, SegmentBuilderTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
