#include "kv_store_service/mapping/segment_image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

#include "common/hash/sha256.h"
#include "tests/kv_store_service/random_seed.h"
#include "tests/kv_store_service/segment_writer.h"

namespace retroinfer::kvstore {
namespace {

using testing::HasSubstr;

class SegmentImageTest : public testing::Test {
 protected:
  SegmentImageTest() : layout_(kTinyGeometry, 1024), bytes_(layout_.max_pages * kPageBytes) {
    used_pages_ = WriteSegment(bytes_, kTinyGeometry, 4, 1024);
  }

  absl::StatusOr<SegmentImage> Read() { return ReadSegmentImage(bytes_, kTinyGeometry, 4, 1024); }
  SegmentHeader& header() { return *reinterpret_cast<SegmentHeader*>(bytes_.data()); }
  ClusterEntry* clusters() {
    return reinterpret_cast<ClusterEntry*>(bytes_.data() + layout_.clusters_offset);
  }
  void ExpectRefused(const std::string& message) {
    const auto image = Read();
    EXPECT_EQ(image.status().code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(image.status().message()), HasSubstr(message));
  }

  SegmentLayout layout_;
  std::vector<std::byte> bytes_;
  uint32_t used_pages_;
};

// Digests of what was written before formats had a description of their own: folders on disks have
// such bytes.
TEST(SegmentBytesTest, ImagesOfTheFirstFormatsStayAsTheyWere) {
  struct Case {
    KvGeometry geometry;
    uint32_t num_tokens;
    const char* digest;
  };
  for (const Case& c : {Case{{2, 2, 64, kBf16Kv},
                             1024,
                             "8c8403b75aa4195fe01b7ce4ad59d5cfd0426079414d6bcb74e30c8b4eeb38e4"},
                        Case{{1, 3, 128, kBf16Kv},
                             8192,
                             "759e8db8a028f69a40a2b6d0ca9b40e6ef171156cc906c3a9f9d7d08739f456a"},
                        Case{{2, 1, 128, kF32Kv},
                             2048,
                             "1bc938070fd8df2ac2e1ba64c73e1f3046a979ff590a1c5934a9f9435bd0fa91"}}) {
    const SegmentLayout layout(c.geometry, c.num_tokens);
    std::vector<std::byte> bytes(layout.max_pages * size_t{2048});
    WriteSegment(bytes, c.geometry, 4, c.num_tokens);
    common::Sha256 digest("image");
    digest.Add(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    EXPECT_EQ(digest.Finish().ToHex(), c.digest) << c.geometry.format.name;
  }
}

TEST(SegmentBytesTest, ImagesOfEachFormatAreReadAndAreNoOthers) {
  for (const KvFormat& format : kKvFormats) {
    SCOPED_TRACE(format.name);
    const KvGeometry geometry{2, 2, 128, format};
    const SegmentLayout layout(geometry, 2048);
    std::vector<std::byte> bytes(layout.max_pages * layout.page_bytes);
    const uint32_t used_pages = WriteSegment(bytes, geometry, 4, 2048);
    const auto image = ReadSegmentImage(bytes, geometry, 4, 2048);
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_EQ(image->used_pages, used_pages);
    for (const KvFormat& other : kKvFormats) {
      const auto refused = ReadSegmentImage(bytes, {2, 2, 128, other}, 4, 2048);
      EXPECT_EQ(refused.ok(), other.id == format.id) << other.name;
    }
  }
}

TEST(SegmentBytesTest, ImagesWithATailAreReadAndAreNoOthers) {
  const KvGeometry geometry{2, 2, 64, kBf16Kv, 3, 100};
  const SegmentLayout layout(geometry, 1024);
  std::vector<std::byte> bytes(layout.max_pages * layout.page_bytes);
  const uint32_t used_pages = WriteSegment(bytes, geometry, 4, 1024);
  const auto image = ReadSegmentImage(bytes, geometry, 4, 1024);
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(image->used_pages, used_pages);
  for (const KvGeometry& other :
       {KvGeometry{2, 2, 64, kBf16Kv}, KvGeometry{2, 2, 64, kBf16Kv, 3, 101},
        KvGeometry{2, 2, 64, kBf16Kv, 2, 100}, KvGeometry{5, 2, 64, kBf16Kv}}) {
    EXPECT_FALSE(ReadSegmentImage(bytes, other, 4, 1024).ok());
  }
}

TEST_F(SegmentImageTest, ReadsWhatWasWritten) {
  const auto image = Read();
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(image->used_pages, used_pages_);
}

TEST_F(SegmentImageTest, RefusesEveryWrongHeaderField) {
  const SegmentHeader good = header();
  const auto damaged = [&](const char* field, const std::function<void(SegmentHeader&)>& damage) {
    header() = good;
    damage(header());
    ExpectRefused(field);
  };
  damaged("magic", [](SegmentHeader& h) { h.magic ^= 1; });
  damaged("version", [](SegmentHeader& h) { ++h.version; });
  damaged("num_tokens", [](SegmentHeader& h) { h.num_tokens = 2048; });
  damaged("num_clusters", [](SegmentHeader& h) { h.num_clusters = 65; });
  damaged("num_layers", [](SegmentHeader& h) { h.num_layers = 3; });
  damaged("num_kv_heads", [](SegmentHeader& h) { h.num_kv_heads = 1; });
  damaged("head_dim", [](SegmentHeader& h) { h.head_dim = 128; });
  damaged("KV format is 1 (f32), needs 2 (bf16)", [](SegmentHeader& h) { h.format = 1; });
  damaged("KV format is 99 (unknown)", [](SegmentHeader& h) { h.format = 99; });
  damaged("token_begin", [](SegmentHeader& h) { h.token_begin = 1028; });
  damaged("num_window_layers", [](SegmentHeader& h) { h.num_window_layers = 1; });
  damaged("window_tokens", [](SegmentHeader& h) { h.window_tokens = 1; });
  damaged("used_pages", [](SegmentHeader& h) { h.used_pages = 1; });
  damaged("used_pages", [&](SegmentHeader& h) { h.used_pages = layout_.max_pages + 1; });
  damaged("used_pages", [](SegmentHeader& h) { h.used_pages = UINT32_MAX; });
  damaged("has pages", [](SegmentHeader& h) { --h.used_pages; });
}

TEST_F(SegmentImageTest, RefusesClustersThatDoNotPartitionTheTokens) {
  clusters()[5].num_tokens -= 1;
  ExpectRefused("sum of the clusters' tokens is 1023, needs 1024 (layer 0, head 0)");
  clusters()[5].num_tokens += 2;
  ExpectRefused("sum of the clusters' tokens is 1025");
  clusters()[5].num_tokens = UINT32_MAX;
  ExpectRefused("cluster 5 has 4294967295 tokens");
}

TEST_F(SegmentImageTest, RefusesPagesOutsideTheSegment) {
  clusters()[70].first_place = layout_.first_kv_page - 1;
  ExpectRefused("(layer 0, head 1)");
  clusters()[70].first_place = used_pages_ - 1;
  ExpectRefused("cluster 6 has pages");
  clusters()[70].first_place = UINT32_MAX;
  ExpectRefused("cluster 6 has pages");
}

TEST_F(SegmentImageTest, RefusesPagesOfTwoClusters) {
  clusters()[200].first_place = clusters()[3].first_place + 1;
  ExpectRefused("belongs to another cluster too");
}

TEST_F(SegmentImageTest, RefusesAnOrderThatIsNoPermutation) {
  auto* order = reinterpret_cast<TokenOrder*>(bytes_.data() + layout_.order_offset);
  order[3 * 1024 + 7] = order[3 * 1024 + 6];
  ExpectRefused("place 7 of the order table has token 1017, which another place has too (layer 1");
  order[3 * 1024 + 7] = 1024;
  ExpectRefused("has token 1024, which the segment does not have (layer 1, head 1)");
}

TEST_F(SegmentImageTest, RefusesAnExtentThatIsTooSmall) {
  EXPECT_FALSE(ReadSegmentImage(std::span(bytes_).first(kPageBytes), kTinyGeometry, 4, 1024).ok());
  EXPECT_FALSE(ReadSegmentImage({}, kTinyGeometry, 4, 1024).ok());
}

TEST_F(SegmentImageTest, SurvivesRandomDamage) {
  std::mt19937_64 random(TestSeed());
  const std::vector<std::byte> good = bytes_;
  const size_t end = layout_.centroids_offset;
  for (int i = 0; i < 3'000; ++i) {
    bytes_ = good;
    for (uint64_t n = 1 + random() % 4; n > 0; --n) {
      size_t at = random() % 2 == 0
                      ? random() % sizeof(SegmentHeader)
                      : layout_.clusters_offset + random() % (end - layout_.clusters_offset);
      bytes_[at] = static_cast<std::byte>(random());
    }
    const auto image = Read();
    if (!image.ok()) {
      EXPECT_EQ(image.status().code(), absl::StatusCode::kInvalidArgument);
    }
  }
}

TEST(BlockImageTest, ABlockIsItsHeaderAndPages) {
  for (const KvFormat& format : kKvFormats) {
    SCOPED_TRACE(format.name);
    const KvGeometry geometry{2, 2, 128, format};
    const uint32_t num_pages = BlockLayout(geometry).num_pages;
    EXPECT_EQ(MaxImagePages(geometry, 1), num_pages);
    EXPECT_EQ(MaxImagePages(geometry, 64), num_pages);
    std::vector<std::byte> bytes(num_pages * geometry.page_bytes());
    EXPECT_EQ(WriteBlock(bytes, geometry, 4 + 64, 7), num_pages);
    const auto image = ReadSegmentImage(bytes, geometry, 4 + 64, 7);
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_EQ(image->used_pages, num_pages);
  }
}

TEST(BlockImageTest, RefusesWhatIsNotTheBlockThatWasAnnounced) {
  const uint32_t num_pages = BlockLayout(kTinyGeometry).num_pages;
  std::vector<std::byte> bytes(num_pages * kPageBytes);
  BlockHeader& header = *reinterpret_cast<BlockHeader*>(bytes.data());
  const auto message = [&](uint32_t tokens = 64, size_t num_bytes = 0) {
    const auto extent = num_bytes == 0 ? std::span(bytes) : std::span(bytes).first(num_bytes);
    const auto image = ReadSegmentImage(extent, kTinyGeometry, 68, tokens);
    EXPECT_EQ(image.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(image.status().message());
  };
  EXPECT_THAT(message(), HasSubstr("magic"));
  WriteBlock(bytes, kTinyGeometry, 68, 64);
  EXPECT_THAT(message(63), HasSubstr("num_tokens is 64, needs 63"));
  EXPECT_THAT(message(64, bytes.size() - kPageBytes), HasSubstr("pages"));
  const BlockHeader good = header;
  const auto with = [&](auto BlockHeader::*field) {
    header = good;
    header.*field ^= 1;
    return message();
  };
  EXPECT_THAT(with(&BlockHeader::magic), HasSubstr("magic"));
  EXPECT_THAT(with(&BlockHeader::version), HasSubstr("version"));
  EXPECT_THAT(with(&BlockHeader::num_layers), HasSubstr("num_layers"));
  EXPECT_THAT(with(&BlockHeader::num_kv_heads), HasSubstr("num_kv_heads"));
  EXPECT_THAT(with(&BlockHeader::head_dim), HasSubstr("head_dim"));
  EXPECT_THAT(with(&BlockHeader::format), HasSubstr("format"));
  EXPECT_THAT(with(&BlockHeader::num_tokens), HasSubstr("num_tokens"));
  EXPECT_THAT(with(&BlockHeader::token_begin), HasSubstr("token_begin"));
  // A segment is no block and the other way round.
  header = good;
  std::vector<std::byte> segment(SegmentLayout(kTinyGeometry, 1024).max_pages * kPageBytes);
  WriteBlock(segment, kTinyGeometry, 4, 64);
  EXPECT_FALSE(ReadSegmentImage(segment, kTinyGeometry, 4, 1024).ok());
  WriteSegment(segment, kTinyGeometry, 4, 1024);
  EXPECT_FALSE(ReadSegmentImage(segment, kTinyGeometry, 4, 64).ok());
}

}  // namespace
}  // namespace retroinfer::kvstore
