#include "gpu_worker/ops/index/read_segment_layer.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/segment_image.h"

namespace retroinfer {
namespace {

using namespace test_support;

class ReadSegmentLayerTest : public testing::TestWithParam<BackendParam> {
 protected:
  static constexpr int64_t kFirstToken = 4;

  // Rows of a layer that begin as 0xee.
  LayerKv Rows(const KvGeometry& geometry, int64_t capacity) {
    const size_t bytes =
        geometry.num_kv_heads * static_cast<size_t>(capacity) * geometry.prompt_vector_bytes();
    keys_ = data_.Upload(std::vector<std::byte>(bytes, std::byte{0xee}));
    values_ = data_.Upload(std::vector<std::byte>(bytes, std::byte{0xee}));
    return {.keys = keys_.bytes().device_data(),
            .values = values_.bytes().device_data(),
            .num_kv_heads = geometry.num_kv_heads,
            .head_dim = geometry.head_dim,
            .capacity = capacity,
            .dtype = geometry.format.prompt,
            .rounds_to_eight_bits = geometry.format.token == kEightBitTokens};
  }
  absl::Status Read(const ReadSegmentLayerArgs& args) {
    const absl::Status status = backend_->ops->index().ReadSegmentLayer(*backend_->stream, args);
    RI_CHECK(backend_->stream->Synchronize().ok());
    return status;
  }
  // Compares the rows with the tokens that the segment was made from.
  void CheckRows(const KvGeometry& geometry, const LayerKvImage& want, int64_t num_tokens,
                 int64_t capacity) {
    const auto keys = FromBytes(data_.Download<std::byte>(keys_), geometry.format.prompt);
    const auto values = FromBytes(data_.Download<std::byte>(values_), geometry.format.prompt);
    const size_t d = geometry.head_dim;
    for (uint32_t head = 0; head < geometry.num_kv_heads; ++head) {
      for (int64_t token = 0; token < num_tokens; ++token) {
        const size_t row = static_cast<size_t>(head * capacity + kFirstToken + token) * d;
        ASSERT_TRUE(std::equal(want.Key(head, token), want.Key(head, token) + d, &keys[row]));
        ASSERT_TRUE(std::equal(want.Value(head, token), want.Value(head, token) + d, &values[row]));
      }
    }
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
  DeviceBuffer keys_;
  DeviceBuffer values_;
};

TEST_P(ReadSegmentLayerTest, PutsTheTokensBackBitByBit) {
  std::vector<KvGeometry> geometries;
  for (const KvFormat& format : KvFormatsOf(*backend_)) {
    geometries.push_back({2, 2, 64, format});
    geometries.push_back({1, 3, 128, format});
    geometries.push_back({1, 1, 256, format});
  }
  for (const KvGeometry& geometry : geometries) {
    for (const uint32_t num_tokens : {1024u, 8192u}) {
      SCOPED_TRACE(testing::Message()
                   << geometry.format.name << geometry.head_dim << ", " << num_tokens << " tokens");
      const SegmentImage segment(*backend_, data_, geometry, num_tokens);
      const int64_t capacity = num_tokens + 10;
      for (uint32_t layer = 0; layer < geometry.num_layers; ++layer) {
        const LayerKv rows = Rows(geometry, capacity);
        ASSERT_TRUE(Read({.extent = segment.extent(),
                          .geometry = geometry,
                          .num_tokens = num_tokens,
                          .layer = layer,
                          .out = rows,
                          .first_token = kFirstToken})
                        .ok());
        CheckRows(geometry, segment.layer(layer), num_tokens, capacity);
        // The rows around the segment are as they were.
        const auto raw = data_.Download<std::byte>(keys_);
        EXPECT_EQ(raw.front(), std::byte{0xee});
        EXPECT_EQ(raw.back(), std::byte{0xee});
      }
    }
  }
}

TEST_P(ReadSegmentLayerTest, ADamagedImageIsNotFollowedOutOfItsBounds) {
  const KvGeometry geometry{1, 1, 64, kBf16Kv};
  const SegmentLayout layout(geometry, 1024);
  const SegmentImage segment(*backend_, data_, geometry, 1024);
  const auto whole = data_.Download<std::byte>(DeviceSpan<const std::byte>(segment.extent()));
  const auto read = [&](const std::vector<std::byte>& bytes) {
    const DeviceBuffer extent = data_.Upload(bytes);
    const LayerKv rows = Rows(geometry, 1024 + 10);
    EXPECT_TRUE(Read({.extent = extent.bytes(),
                      .geometry = geometry,
                      .num_tokens = 1024,
                      .layer = 0,
                      .out = rows,
                      .first_token = kFirstToken})
                    .ok());
    EXPECT_EQ(data_.Download<std::byte>(keys_).back(), std::byte{0xee});
  };
  for (const uint32_t word : {0u, 1u}) {  // first_place, num_tokens
    std::vector<std::byte> bytes = whole;
    std::memset(bytes.data() + layout.clusters_offset + 4 * word, 0xff, 4);
    read(bytes);
  }
  std::vector<std::byte> bytes = whole;
  std::memset(bytes.data() + layout.order_offset, 0xff, 2 * 1024);
  read(bytes);
}

TEST_P(ReadSegmentLayerTest, RefusesRowsAndExtentsThatAreTooFew) {
  const KvGeometry geometry{1, 1, 64, kBf16Kv};
  const SegmentImage segment(*backend_, data_, geometry, 1024);
  ReadSegmentLayerArgs args{.extent = segment.extent(),
                            .geometry = geometry,
                            .num_tokens = 1024,
                            .layer = 0,
                            .out = Rows(geometry, 1024),
                            .first_token = 1};
  EXPECT_EQ(Read(args).code(), absl::StatusCode::kInvalidArgument);
  args.first_token = 0;
  EXPECT_TRUE(Read(args).ok());
  args.layer = 1;
  EXPECT_EQ(Read(args).code(), absl::StatusCode::kInvalidArgument);
  args.layer = 0;
  args.extent = segment.extent().first(kPageBytes);
  EXPECT_EQ(Read(args).code(), absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Backends, ReadSegmentLayerTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
