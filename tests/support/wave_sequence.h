// A sequence under wave attention with made-up KV: segments in an arena, sink and window in dense
// blocks, and the exact attention to compare with.
#pragma once

#include <cmath>
#include <memory>
#include <vector>

#include "common/kv/segment_layout.h"
#include "gpu_worker/wave_index/segment_builder.h"
#include "gpu_worker/wave_index/segment_plan.h"
#include "tests/support/device_data.h"
#include "tests/support/layer_kv_image.h"

namespace retroinfer::test_support {

// Keys as attention makes them: topics that last for a while, each a direction with some spread.
// [heads][tokens][d]; values follow their topic, too.
struct StructuredKv {
  StructuredKv(uint32_t heads, int64_t tokens, uint32_t d, uint64_t seed) {
    const size_t count = static_cast<size_t>(tokens) * heads * d;
    constexpr size_t kTopics = 48;
    topics = RandomNormal(kTopics * d, seed);
    const auto value_topics = RandomNormal(kTopics * d, seed + 1);
    keys = RandomNormal(count, seed + 2, 0.5f);
    values = RandomNormal(count, seed + 3, 0.5f);
    std::mt19937_64 random(seed + 4);
    size_t topic = 0;
    for (size_t row = 0; row < count / d; ++row) {
      if (random() % 12 == 0) topic = random() % kTopics;
      for (size_t j = 0; j < d; ++j) {
        keys[row * d + j] += topics[topic * d + j];
        values[row * d + j] += value_topics[topic * d + j];
      }
    }
  }

  // A query that likes topic `topic`: [d].
  std::vector<float> Query(size_t topic, uint64_t seed, float strength, uint32_t d) const {
    std::vector<float> query = RandomNormal(d, seed, 0.5f);
    for (size_t j = 0; j < d; ++j) query[j] += strength * topics[topic * d + j];
    return query;
  }

  std::vector<float> topics;
  std::vector<float> keys;
  std::vector<float> values;
};

// Where things lie while a test builds sequences.
struct WaveMemory {
  DeviceData& data;
  DensePoolView dense_pool;
  MetaPoolView meta_pool;
  SegmentBuilder& builder;
  DenseBlockId next_dense_block = 0;
  MetaBlockId next_meta_block = 0;
  PageId next_page = 0;
};

class WaveSequence {
 public:
  // `layers`: one for each layer of the geometry, tokens [0, num_tokens).
  WaveSequence(Backend& backend, WaveMemory& memory, std::vector<LayerKvImage> layers,
               int64_t num_tokens, int64_t dense_below)
      : layers_(std::move(layers)), num_tokens_(num_tokens) {
    const auto plan = PlanSegments(num_tokens, num_tokens, dense_below);
    int64_t window_begin = kSinkTokens;
    std::vector<MetaBlockId> meta;
    for (const PlannedSegment& segment : plan) {
      window_begin = segment.token_begin + segment.num_tokens;
      for (uint32_t i = 0; i < segment.num_tokens / 1024; ++i) {
        meta.push_back(memory.next_meta_block++);
      }
    }
    num_meta_blocks_ = static_cast<int32_t>(meta.size());
    meta.push_back(0);  // never empty
    meta_blocks_ = memory.data.Upload(meta);
    Build(backend, memory, plan);
    FillDense(backend, memory, window_begin);
  }

  MetaIndexView index() const {
    return {meta_blocks_.as<const MetaBlockId>().device_data(), num_meta_blocks_};
  }
  DenseZone zone() const { return zone_; }
  const LayerKvImage& layer(uint32_t layer) const { return layers_[layer]; }
  int64_t num_tokens() const { return num_tokens_; }

  // softmax(scale * q . K) V over all tokens, in doubles; q: [d].
  std::vector<double> Attention(uint32_t layer, uint32_t head, const float* q) const {
    const LayerKvImage& kv = layers_[layer];
    const std::vector<double> weights = Weights(layer, head, q);
    std::vector<double> out(kv.view().head_dim);
    for (int64_t t = 0; t < num_tokens_; ++t) {
      const double weight = weights[static_cast<size_t>(t)];
      for (size_t j = 0; j < out.size(); ++j) out[j] += weight * kv.Value(head, t)[j];
    }
    return out;
  }

  // The share of that softmax that clusters hold, rather than the steady zone.
  double ShareOfClusters(uint32_t layer, uint32_t head, const float* q) const {
    const std::vector<double> weights = Weights(layer, head, q);
    double share = 0;
    for (int64_t t = kSinkTokens; t < num_tokens_ - zone_.num_window_tokens; ++t) {
      share += weights[static_cast<size_t>(t)];
    }
    return share;
  }

 private:
  // softmax(scale * q . K) over all tokens.
  std::vector<double> Weights(uint32_t layer, uint32_t head, const float* q) const {
    const LayerKvImage& kv = layers_[layer];
    const size_t d = kv.view().head_dim;
    const double scale = 1 / std::sqrt(static_cast<double>(d));
    std::vector<double> weights(static_cast<size_t>(num_tokens_));
    double max = -INFINITY, sum = 0;
    for (int64_t t = 0; t < num_tokens_; ++t) {
      double dot = 0;
      for (size_t j = 0; j < d; ++j) dot += double{q[j]} * kv.Key(head, t)[j];
      weights[static_cast<size_t>(t)] = dot * scale;
      max = std::max(max, dot * scale);
    }
    for (double& weight : weights) {
      weight = std::exp(weight - max);
      sum += weight;
    }
    for (double& weight : weights) weight /= sum;
    return weights;
  }

  void Build(Backend& backend, WaveMemory& memory, const std::vector<PlannedSegment>& plan) {
    const KvGeometry& geometry = memory.meta_pool.geometry;
    size_t first_block = 0;
    for (const PlannedSegment& segment : plan) {
      const uint32_t pages = SegmentLayout(geometry, segment.num_tokens).max_pages;
      const auto ticket = memory.builder.Open(
          {.token_begin = segment.token_begin,
           .num_tokens = segment.num_tokens,
           .extent = {.id = 1, .first_page = memory.next_page, .num_pages = pages},
           .meta_blocks = meta_blocks_.as<const MetaBlockId>().subspan(first_block,
                                                                       segment.num_tokens / 1024)});
      RI_CHECK(ticket.ok());
      for (uint32_t layer = 0; layer < geometry.num_layers; ++layer) {
        RI_CHECK(memory.builder.BuildLayer(*ticket, layer, layers_[layer].view()).ok());
      }
      RI_CHECK(memory.builder.Seal(*ticket).ok());
      RI_CHECK(backend.background->Synchronize().ok());
      RI_CHECK(memory.builder.PollDone(*ticket)->has_value());
      memory.next_page += pages;
      first_block += segment.num_tokens / 1024;
    }
  }

  void FillDense(Backend& backend, WaveMemory& memory, int64_t window_begin) {
    const int64_t window = std::max<int64_t>(0, num_tokens_ - window_begin);
    std::vector<DenseBlockId> blocks;
    for (int64_t i = 0; i < 1 + (window + 63) / 64; ++i) {
      blocks.push_back(memory.next_dense_block++);
    }
    dense_blocks_ = memory.data.Upload(blocks);
    const auto ids = dense_blocks_.as<const DenseBlockId>();
    zone_ = {.block_ids = ids.device_data(),
             .num_sink_tokens = static_cast<int32_t>(std::min<int64_t>(kSinkTokens, num_tokens_)),
             .num_window_tokens = static_cast<int32_t>(window)};
    for (uint32_t layer = 0; layer < memory.dense_pool.geometry.num_layers; ++layer) {
      FillDenseArgs fill{.in = layers_[layer].view(),
                         .num_tokens = zone_.num_sink_tokens,
                         .pool = memory.dense_pool,
                         .layer = layer,
                         .block_ids = ids.first(1)};
      RI_CHECK(backend.ops->attention().FillDense(*backend.stream, fill).ok());
      if (window == 0) continue;
      fill.first_token = window_begin;
      fill.num_tokens = window;
      fill.block_ids = ids.subspan(1, blocks.size() - 1);
      RI_CHECK(backend.ops->attention().FillDense(*backend.stream, fill).ok());
    }
    RI_CHECK(backend.stream->Synchronize().ok());
  }

  std::vector<LayerKvImage> layers_;
  int64_t num_tokens_;
  int32_t num_meta_blocks_ = 0;
  DeviceBuffer meta_blocks_;
  DeviceBuffer dense_blocks_;
  DenseZone zone_{};
};

}  // namespace retroinfer::test_support
