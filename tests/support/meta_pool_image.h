// A pool of meta blocks with random contents, on the host and on a backend.
#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "gpu_worker/ops/meta_pool.h"
#include "tests/support/device_data.h"
#include "tests/support/stored_vectors.h"

namespace retroinfer::test_support {

// Fill it through `host()`, then Upload(). Both views have the same layout.
class MetaPoolImage {
 public:
  MetaPoolImage(const KvGeometry& geometry, size_t num_blocks)
      : geometry_(geometry), bytes_(num_blocks * MetaPoolView::BlockBytes(geometry)) {}

  MetaPoolView host() { return {DeviceSpan<std::byte>(bytes_.data(), bytes_.size()), geometry_}; }
  MetaPoolView Upload(DeviceData& data) {
    buffer_ = data.Upload(bytes_);
    return {buffer_.bytes(), geometry_};
  }

  // Random vectors; every `empty_every`-th cluster (0: none) is empty, the others have 1 to 40
  // tokens.
  void Randomize(uint64_t seed, uint32_t empty_every) {
    const size_t count = kClustersPerMetaBlock * geometry_.head_dim;
    std::mt19937_64 random(seed);
    for (uint32_t run = 0;
         run < host().num_blocks() * geometry_.num_layers * geometry_.num_kv_heads; ++run) {
      const uint32_t head = run % geometry_.num_kv_heads;
      const uint32_t layer = run / geometry_.num_kv_heads % geometry_.num_layers;
      const auto block =
          static_cast<MetaBlockId>(run / geometry_.num_kv_heads / geometry_.num_layers);
      const KvFormat& format = geometry_.format;
      const auto keys =
          StoredVectors(RandomNormal(count, random()), format.centroid, geometry_.head_dim);
      const auto values =
          StoredVectors(RandomNormal(count, random()), format.value_sum, geometry_.head_dim);
      std::memcpy(host().Centroids(block, layer, head), keys.data(), keys.size());
      std::memcpy(host().ValueSums(block, layer, head), values.data(), values.size());
      for (uint32_t i = 0; i < kClustersPerMetaBlock; ++i) {
        const bool is_empty = empty_every != 0 && i % empty_every == empty_every - 1;
        host().Entries(block, layer, head)[i] = {
            0, is_empty ? 0 : 1 + static_cast<uint32_t>(random() % 40),
            static_cast<float>(random() % 100) / 50};
      }
    }
  }

  // Number `i` of the centroids, or value sums, of a block.
  float Centroid(const std::byte* centroids, size_t i) const {
    return StoredNumber(centroids, geometry_.format.centroid, geometry_.head_dim, i);
  }
  float ValueSum(const std::byte* value_sums, size_t i) const {
    return StoredNumber(value_sums, geometry_.format.value_sum, geometry_.head_dim, i);
  }

 private:
  KvGeometry geometry_;
  std::vector<std::byte> bytes_;
  DeviceBuffer buffer_;
};

// The indexes of a batch, from lists of block numbers.
class MetaIndexImage {
 public:
  MetaIndexImage(DeviceData& data, const std::vector<std::vector<MetaBlockId>>& lists) {
    std::vector<MetaIndexView> views;
    for (const auto& list : lists) {
      lists_.push_back(data.Upload(list));
      views.push_back(
          {lists_.back().as<const MetaBlockId>().device_data(), static_cast<int32_t>(list.size())});
    }
    views_ = data.Upload(views);
    count_ = lists.size();
  }
  DeviceSpan<const MetaIndexView> views() const {
    return views_.as<const MetaIndexView>().first(count_);
  }

 private:
  std::vector<DeviceBuffer> lists_;
  DeviceBuffer views_;
  size_t count_ = 0;
};

}  // namespace retroinfer::test_support
