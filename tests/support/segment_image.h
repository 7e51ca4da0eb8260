// A segment in an extent, written by a backend from random keys and values and a random clustering.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "common/kv/segment_layout.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/layer_kv_image.h"
#include "tests/support/meta_pool_image.h"

namespace retroinfer::test_support {

// A segment of `num_tokens` tokens that was written into the extent at page kFirstPage of the arena
// and into the first meta blocks of `pool`.
class SegmentImage {
 public:
  static constexpr PageId kFirstPage = 300;

  SegmentImage(Backend& backend, DeviceData& data, const KvGeometry& geometry, uint32_t num_tokens)
      : geometry_(geometry), num_tokens_(num_tokens), pool_image_(geometry, num_tokens / 1024) {
    const SegmentLayout layout(geometry, num_tokens);
    extent_ = data.Upload(std::vector<std::byte>(layout.max_pages * kPageBytes, std::byte{0xee}));
    pool_ = pool_image_.Upload(data);
    std::vector<MetaBlockId> ids;
    for (uint32_t i = 0; i < num_tokens / 1024; ++i) ids.push_back(static_cast<MetaBlockId>(i));
    blocks_ = data.Upload(ids);
    const size_t heads = geometry.num_kv_heads, m = layout.num_clusters, d = geometry.head_dim;
    const DeviceBuffer next_page = data.Upload(std::vector<uint32_t>{layout.first_kv_page});
    const DeviceBuffer scratch = data.Allocate(8 * heads * (num_tokens + m));
    std::mt19937 random(5);
    for (uint32_t layer = 0; layer < geometry.num_layers; ++layer) {
      layers_.emplace_back(data, RandomNormal(heads * num_tokens * d, 20 + layer),
                           RandomNormal(heads * num_tokens * d, 40 + layer), geometry.num_kv_heads,
                           geometry.head_dim, geometry.format);
      // A large cluster, and some empty ones.
      std::vector<int32_t> assignment(heads * num_tokens), sizes(heads * m);
      for (size_t i = 0; i < assignment.size(); ++i) {
        auto cluster = random() % 4 == 0 ? 3 : static_cast<int32_t>(random() % m);
        if (cluster % 9 == 8) cluster = 0;
        assignment[i] = cluster;
        ++sizes[i / num_tokens * m + static_cast<size_t>(cluster)];
      }
      const DeviceBuffer device_assignment = data.Upload(assignment);
      const DeviceBuffer device_sizes = data.Upload(sizes);
      const DeviceBuffer centroids = data.Upload(RandomNormal(heads * m * d, 60 + layer));
      const DeviceBuffer value_sums = data.Upload(RandomNormal(heads * m * d, 80 + layer));
      const DeviceBuffer radii = data.Upload(RandomRadii(heads * m, layer));
      RI_CHECK(
          backend.ops->index()
              .WriteSegment(*backend.stream, {.kv = layers_.back().view(),
                                              .num_tokens = static_cast<int32_t>(num_tokens),
                                              .num_clusters = static_cast<int32_t>(m),
                                              .assignment = device_assignment.as<const int32_t>(),
                                              .sizes = device_sizes.as<const int32_t>(),
                                              .centroids = centroids.as<const float>(),
                                              .value_sums = value_sums.as<const float>(),
                                              .radii = radii.as<const float>(),
                                              .layer = layer,
                                              .geometry = geometry,
                                              .extent = extent_.bytes(),
                                              .extent_first_page = kFirstPage,
                                              .next_page = next_page.as<uint32_t>().device_data(),
                                              .pool = pool_,
                                              .meta_blocks = meta_blocks(),
                                              .scratch = scratch.bytes()})
              .ok());
      RI_CHECK(backend.stream->Synchronize().ok());
    }
  }

  DeviceSpan<std::byte> extent() const { return extent_.bytes(); }
  const LayerKvImage& layer(uint32_t layer) const { return layers_[layer]; }
  const MetaPoolView& pool() const { return pool_; }
  DeviceSpan<const MetaBlockId> meta_blocks() const {
    return blocks_.as<const MetaBlockId>().first(num_tokens_ / 1024);
  }

 private:
  static std::vector<float> RandomRadii(size_t count, uint64_t seed) {
    std::vector<float> radii = RandomNormal(count, seed);
    for (float& radius : radii) radius = std::abs(radius);
    return radii;
  }

  const KvGeometry geometry_;
  const uint32_t num_tokens_;
  MetaPoolImage pool_image_;
  MetaPoolView pool_;
  DeviceBuffer extent_;
  DeviceBuffer blocks_;
  std::vector<LayerKvImage> layers_;
};

}  // namespace retroinfer::test_support
