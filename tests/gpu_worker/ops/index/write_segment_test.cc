#include "gpu_worker/ops/index/write_segment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/layer_kv_image.h"
#include "tests/support/meta_pool_image.h"
#include "tests/support/stored_vectors.h"
#include "tests/support/token_code_reference.h"

namespace retroinfer {
namespace {

using namespace test_support;

// Slots for the first pages of a segment, in no order; fewer than two layers have.
class FilledSlots {
 public:
  explicit FilledSlots(DeviceData& data) : data_(data) {
    std::vector<SlotId> list(kNumFilled);
    for (uint32_t i = 0; i < kNumFilled; ++i) list[i] = SlotOf(i);
    list_ = data_.Upload(list);
  }

  SlotFill fill() const {
    return {.slots = slots_.bytes(),
            .list = {head_.as<SlotListHead>().device_data(), list_.as<SlotId>()}};
  }

  // The slots hold the first pages of `pages`, and nothing was written to the others.
  void Check(const std::byte* pages, uint32_t num_pages) {
    const auto slots = data_.Download<std::byte>(slots_);
    std::vector<bool> is_filled(kNumSlots);
    for (uint32_t i = 0; i < std::min(num_pages, kNumFilled); ++i) {
      is_filled[SlotOf(i)] = true;
      const std::byte* const page = pages + i * kPageBytes;
      ASSERT_TRUE(std::equal(page, page + kPageBytes, slots.data() + SlotOf(i) * kPageBytes)) << i;
    }
    for (uint32_t slot = 0; slot < kNumSlots; ++slot) {
      if (is_filled[slot]) continue;
      const std::byte* const bytes = slots.data() + slot * kPageBytes;
      EXPECT_EQ(std::count(bytes, bytes + kPageBytes, kUntouched), int64_t{kPageBytes});
    }
  }

 private:
  static constexpr uint32_t kNumFilled = 1000, kNumSlots = 1200;
  static constexpr std::byte kUntouched{0xdd};
  static SlotId SlotOf(uint32_t index) { return index * 7 % kNumSlots; }

  DeviceData& data_;
  DeviceBuffer slots_ = data_.Upload(std::vector<std::byte>(kNumSlots * kPageBytes, kUntouched));
  DeviceBuffer list_;
  DeviceBuffer head_ = data_.Upload(std::vector<SlotListHead>{{.num_slots = kNumFilled}});
};

class WriteSegmentTest : public testing::TestWithParam<BackendParam> {
 protected:
  static constexpr int32_t kTokens = 1024;
  static constexpr int32_t kClusters = 64;
  static constexpr int64_t kFirstToken = 100;
  static constexpr PageId kExtentFirstPage = 5000;

  // Cluster 0 takes a third of the tokens, every seventh cluster none.
  static std::vector<int32_t> Assignment(uint32_t heads) {
    std::mt19937 random(3);
    std::vector<int32_t> assignment(heads * kTokens);
    for (int32_t& cluster : assignment) {
      cluster = random() % 3 == 0 ? 0 : static_cast<int32_t>(random() % kClusters);
      if (cluster % 7 == 6) cluster = 1;
    }
    return assignment;
  }

  // Vectors that a format with scales may stumble over.
  static void PlantHardVectors(size_t d, std::vector<float>& vectors) {
    const auto vector = [&](size_t i) { return std::span(vectors).subspan(i * d, d); };
    const auto multiply = [](std::span<float> numbers, float factor) {
      for (float& number : numbers) number *= factor;
    };
    std::ranges::fill(vector(0), 0.0f);
    vector(1)[7] = INFINITY;
    vector(2)[d - 1] = kNan;
    multiply(vector(3), 1e-7f);   // a scale below the normal numbers of f16
    multiply(vector(4), 1e-10f);  // and below them all
    multiply(vector(5), 1e7f);    // more than the largest scale times 127
    vector(6)[0] = -1000;         // alone
    for (size_t i = 0; i < d; ++i) vector(70)[i] = static_cast<float>(i % 254) / 2 - 63.5f;  // ties
    vector(70)[0] = 127;
  }

  void WriteTwoLayersAndCheck(const KvFormat& format, uint32_t head_dim);

  // What a segment was written from and to.
  struct Written {
    KvGeometry geometry;
    std::vector<int32_t> assignment;
    std::vector<float> centroids;
    std::vector<float> value_sums;
    std::vector<float> radii;  // [heads, m]
    std::vector<std::byte> extent;
    std::vector<std::byte> meta_pool;
    std::set<uint32_t> taken;  // places of tokens seen so far
  };
  static void CheckHead(Written& written, uint32_t layer, uint32_t head, const LayerKvImage& kv);
  static void CheckCodes(Written& written, uint32_t layer, uint32_t head, const LayerKvImage& kv);

  // Compares one cluster's pages with its tokens, in any order, and marks their places as taken.
  static void CheckPages(const LayerKvImage& kv, uint32_t head, std::vector<int64_t> tokens,
                         const std::byte* extent, const ClusterEntry& entry,
                         const KvGeometry& geometry, std::set<uint32_t>& taken) {
    ASSERT_EQ(entry.num_tokens, tokens.size());
    const uint32_t per_page = geometry.tokens_per_page();
    const size_t d = geometry.head_dim;
    const ClusterPlace place(entry.first_place, geometry.places_per_page());
    for (uint32_t p = 0; p < place.NumPages(entry.num_tokens, per_page); ++p) {
      const auto page =
          TokenNumbers(std::span(extent + size_t{place.first_page + p} * kPageBytes, kPageBytes),
                       geometry.format.token, geometry.head_dim);
      const uint32_t end = place.FirstIn(p) + place.NumIn(p, entry.num_tokens, per_page);
      for (uint32_t i = place.FirstIn(p); i < per_page; ++i) {
        if (i >= end && geometry.format.packs_clusters) break;
        ASSERT_TRUE(taken.insert((place.first_page + p) * per_page + i).second)
            << "two clusters share a place";
        const std::span<const float> key(page.data() + i * d, d);
        const std::span<const float> value(page.data() + (per_page + i) * d, d);
        if (i >= end) {
          EXPECT_EQ(std::count(key.begin(), key.end(), 0.0f), static_cast<int64_t>(d));
          EXPECT_EQ(std::count(value.begin(), value.end(), 0.0f), static_cast<int64_t>(d));
          continue;
        }
        const auto token = std::find_if(tokens.begin(), tokens.end(), [&](int64_t t) {
          return std::equal(key.begin(), key.end(), kv.Key(head, t)) &&
                 std::equal(value.begin(), value.end(), kv.Value(head, t));
        });
        ASSERT_NE(token, tokens.end()) << "a token of another cluster, or twice";
        tokens.erase(token);
      }
    }
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

// Pages, entries, centroids and value sums of one (layer, head), in the extent and the meta pool.
void WriteSegmentTest::CheckHead(Written& written, uint32_t layer, uint32_t head,
                                 const LayerKvImage& kv) {
  const KvGeometry& geometry = written.geometry;
  const SegmentLayout layout(geometry, kTokens);
  const size_t m = kClusters, d = geometry.head_dim;
  const size_t run = layer * geometry.num_kv_heads + head;
  const MetaPoolView meta{{written.meta_pool.data(), written.meta_pool.size()}, geometry};
  const std::byte* extent = written.extent.data();
  const auto* entries =
      reinterpret_cast<const ClusterEntry*>(extent + layout.clusters_offset) + run * m;
  const auto* order =
      reinterpret_cast<const TokenOrder*>(extent + layout.order_offset) + run * kTokens;
  for (size_t c = 0; c < m; ++c) {
    std::vector<int64_t> tokens;
    for (int64_t i = 0; i < kTokens; ++i) {
      if (written.assignment[static_cast<size_t>(head * kTokens + i)] == static_cast<int32_t>(c)) {
        tokens.push_back(kFirstToken + i);
      }
    }
    CheckPages(kv, head, tokens, extent, entries[c], geometry, written.taken);
    // The order table: the cluster's tokens, as their pages have them.
    const ClusterPlace place(entries[c].first_place, geometry.places_per_page());
    for (uint32_t i = 0; i < entries[c].num_tokens; ++i) {
      const int64_t token = kFirstToken + *order++;
      const uint32_t at = place.skipped + i;
      const std::byte* key =
          extent + size_t{place.first_page + at / geometry.tokens_per_page()} * kPageBytes +
          at % geometry.tokens_per_page() * geometry.page().vector_bytes;
      const auto got = TokenNumbers(std::span(key, geometry.page().vector_bytes),
                                    geometry.format.token, geometry.head_dim);
      EXPECT_TRUE(std::equal(got.begin(), got.end(), kv.Key(head, token)));
    }
    const MetaEntry& entry = meta.Entries(2, layer, head)[c];
    EXPECT_EQ(entry.num_tokens, entries[c].num_tokens);
    if (entry.num_tokens > 0) {
      EXPECT_EQ(entry.first_place,
                kExtentFirstPage * geometry.places_per_page() + entries[c].first_place);
      EXPECT_EQ(entry.radius, written.radii[head * m + c]);
      EXPECT_EQ(entries[c].radius, written.radii[head * m + c]);
    }
  }
  const auto same = [](const std::vector<std::byte>& want, const std::byte* got) {
    return std::equal(want.begin(), want.end(), got);
  };
  const auto want_c = StoredVectors(std::span(written.centroids).subspan(head * m * d, m * d),
                                    geometry.format.centroid, geometry.head_dim);
  const auto want_v = StoredVectors(std::span(written.value_sums).subspan(head * m * d, m * d),
                                    geometry.format.value_sum, geometry.head_dim);
  EXPECT_TRUE(same(want_c, extent + layout.centroids_offset + run * layout.centroids_bytes));
  EXPECT_TRUE(same(want_v, extent + layout.value_sums_offset + run * layout.value_sums_bytes));
  EXPECT_TRUE(same(want_c, meta.Centroids(2, layer, head)));
  EXPECT_TRUE(same(want_v, meta.ValueSums(2, layer, head)));
}

// Codes of one (layer, head): against the residuals to the stored centroids.
void WriteSegmentTest::CheckCodes(Written& written, uint32_t layer, uint32_t head,
                                  const LayerKvImage& kv) {
  const KvGeometry& geometry = written.geometry;
  const SegmentLayout layout(geometry, kTokens);
  const TokenCodeLayout codes(geometry.format, geometry.head_dim);
  const size_t run = layer * geometry.num_kv_heads + head, d = geometry.head_dim;
  const MetaPoolView meta{{written.meta_pool.data(), written.meta_pool.size()}, geometry};
  const std::byte* const extent = written.extent.data();
  const std::byte* const image = extent + layout.codes_offset + run * layout.codes_bytes;
  ASSERT_EQ(layout.codes_bytes, codes.bytes);
  EXPECT_TRUE(std::equal(image, image + codes.bytes, meta.Codes(2, layer, head)));
  const auto* const order =
      reinterpret_cast<const TokenOrder*>(extent + layout.order_offset) + run * kTokens;
  int32_t at = 0;
  for (uint32_t cluster = 0; cluster < kClusters; ++cluster) {
    EXPECT_EQ(meta.FirstCodes(2, layer, head)[cluster], at);
    const auto end = at + static_cast<int32_t>(meta.Entries(2, layer, head)[cluster].num_tokens);
    for (; at < end; ++at) {
      SCOPED_TRACE(testing::Message() << cluster << ", " << at);
      std::vector<double> residual(d);
      for (size_t i = 0; i < d; ++i) {
        residual[i] = kv.Key(head, kFirstToken + order[at])[i] -
                      StoredNumber(meta.Centroids(2, layer, head), geometry.format.centroid,
                                   geometry.head_dim, cluster * d + i);
      }
      ExpectCodeOf(
          residual,
          reinterpret_cast<const uint8_t*>(image) + static_cast<size_t>(at) * codes.code_bytes,
          reinterpret_cast<const TokenCodeFactors*>(image + codes.factors_offset)[at]);
    }
  }
  EXPECT_EQ(at, kTokens);
}

void WriteSegmentTest::WriteTwoLayersAndCheck(const KvFormat& format, uint32_t head_dim) {
  const KvGeometry geometry{2, 2, head_dim, format};
  const SegmentLayout layout(geometry, kTokens);
  const size_t heads = 2, d = head_dim, m = kClusters;
  const auto assignment = Assignment(2);
  std::vector<int32_t> sizes(heads * m);
  for (size_t i = 0; i < assignment.size(); ++i) {
    ++sizes[i / kTokens * m + static_cast<size_t>(assignment[i])];
  }
  auto centroids = RandomNormal(heads * m * d, 11), value_sums = RandomNormal(heads * m * d, 12);
  const auto radii = RandomNormal(heads * m, 13);
  if (format.centroid.has_scales()) PlantHardVectors(d, centroids);
  if (format.value_sum.has_scales()) PlantHardVectors(d, value_sums);
  const DeviceBuffer extent =
      data_.Upload(std::vector<std::byte>(layout.max_pages * kPageBytes, std::byte{0xee}));
  const DeviceBuffer next_page = data_.Upload(std::vector<uint32_t>{layout.first_kv_page});
  const DeviceBuffer device_assignment = data_.Upload(assignment),
                     device_sizes = data_.Upload(sizes);
  const DeviceBuffer device_centroids = data_.Upload(centroids),
                     device_sums = data_.Upload(value_sums), device_radii = data_.Upload(radii);
  const DeviceBuffer blocks = data_.Upload(std::vector<MetaBlockId>{2});
  const DeviceBuffer scratch = data_.Allocate(8 * heads * (kTokens + m));
  FilledSlots slots(data_);
  MetaPoolImage pool(geometry, 3);
  const MetaPoolView pool_view = pool.Upload(data_);
  Written written{.geometry = geometry,
                  .assignment = assignment,
                  .centroids = centroids,
                  .value_sums = value_sums,
                  .radii = radii};
  for (uint32_t layer = 0; layer < 2; ++layer) {
    const size_t count = heads * 1200 * d;
    const LayerKvImage kv(data_, RandomNormal(count, 20 + layer), RandomNormal(count, 30 + layer),
                          2, head_dim, format);
    ASSERT_TRUE(backend_->ops->index()
                    .WriteSegment(*backend_->background,
                                  {.kv = kv.view(),
                                   .first_token = kFirstToken,
                                   .num_tokens = kTokens,
                                   .num_clusters = kClusters,
                                   .assignment = device_assignment.as<const int32_t>(),
                                   .sizes = device_sizes.as<const int32_t>(),
                                   .centroids = device_centroids.as<const float>(),
                                   .value_sums = device_sums.as<const float>(),
                                   .radii = device_radii.as<const float>(),
                                   .layer = layer,
                                   .geometry = geometry,
                                   .extent = extent.bytes(),
                                   .extent_first_page = kExtentFirstPage,
                                   .next_page = next_page.as<uint32_t>().device_data(),
                                   .pool = pool_view,
                                   .meta_blocks = blocks.as<const MetaBlockId>().first(1),
                                   .fill = slots.fill(),
                                   .scratch = scratch.bytes()})
                    .ok());
    ASSERT_TRUE(backend_->background->Synchronize().ok());
    written.extent = data_.Download<std::byte>(extent);
    written.meta_pool = data_.Download<std::byte>(DeviceSpan<const std::byte>(pool_view.bytes));
    for (uint32_t head = 0; head < 2; ++head) {
      CheckHead(written, layer, head, kv);
      if (format.token_code_bits != 0) CheckCodes(written, layer, head, kv);
    }
    // No holes: the pages taken so far are exactly those before next_page.
    EXPECT_EQ(*written.taken.begin(), layout.first_kv_page * geometry.tokens_per_page());
    EXPECT_EQ(data_.Download<uint32_t>(next_page)[0],
              layout.first_kv_page + written.taken.size() / geometry.tokens_per_page());
  }
  slots.Check(written.extent.data() + size_t{layout.first_kv_page} * kPageBytes,
              static_cast<uint32_t>(written.taken.size() / geometry.tokens_per_page()));
}

TEST_P(WriteSegmentTest, PagesHoldTheTokensOfTheirClusters) {
  for (const KvFormat& format : KvFormatsOf(*backend_)) {
    for (const uint32_t head_dim : kHeadDims) {
      SCOPED_TRACE(testing::Message() << format.name << head_dim);
      WriteTwoLayersAndCheck(format, head_dim);
    }
  }
}

TEST_P(WriteSegmentTest, RefusesAnExtentThatIsTooSmall) {
  const KvGeometry geometry{1, 1, 64, kBf16Kv};
  const auto zeros = std::vector<float>(1024 * 64);
  const LayerKvImage kv(data_, zeros, zeros, 1, 64, DType::kBf16);
  MetaPoolImage pool(geometry, 1);
  const DeviceBuffer extent = data_.Allocate(100 * kPageBytes);
  WriteSegmentArgs args;
  args.kv = kv.view();
  args.num_tokens = kTokens;
  args.num_clusters = kClusters;
  args.geometry = geometry;
  args.extent = extent.bytes();
  args.pool = pool.Upload(data_);
  EXPECT_EQ(backend_->ops->index().WriteSegment(*backend_->background, args).code(),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Backends, WriteSegmentTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
