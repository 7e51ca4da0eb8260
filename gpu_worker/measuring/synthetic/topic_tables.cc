#include "gpu_worker/measuring/synthetic/topic_tables.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <span>

namespace retroinfer {
namespace {

constexpr int64_t kTokensOfTopic = 1024;
constexpr size_t kVariants = 256;       // vectors that a topic's tokens are drawn from
constexpr float kSpread = 0.5f;         // of a topic, beside a direction of deviation 1
constexpr float kQueryStrength = 0.6f;  // scores of a few units where a query meets its topic
constexpr uint32_t kStayOf = 12;        // tokens that a topic lasts, on average
constexpr int64_t kLayerShift = 64;

size_t NumTopics(const SyntheticShape& shape) {
  return static_cast<size_t>(std::max<int64_t>(8, shape.max_tokens / kTokensOfTopic));
}

// Each group of query heads has a direction that wanders. The heads of a group differ a little.
std::vector<uint16_t> MakeQueries(const SyntheticShape& shape, std::span<const float> topics,
                                  std::mt19937_64& random) {
  const auto dim = static_cast<size_t>(shape.geometry.head_dim);
  const auto kv_heads = static_cast<size_t>(shape.geometry.num_kv_heads);
  const size_t query_size = static_cast<size_t>(shape.num_query_heads) * dim;
  const size_t group = static_cast<size_t>(shape.num_query_heads) / kv_heads;
  const auto keep = static_cast<float>(shape.overlap.value_or(0));
  const float renew = std::sqrt(std::max(0.0f, 1.0f - keep * keep));
  std::normal_distribution<float> normal;
  std::vector<float> direction(kv_heads * dim);
  std::vector<uint16_t> queries(kQueriesOfSet * query_size);
  for (size_t row = 0; row < kQueriesOfSet; ++row) {
    for (size_t head = 0; head < kv_heads; ++head) {
      const float* const topic = &topics[random() % NumTopics(shape) * dim];
      for (size_t j = 0; j < dim; ++j) {
        float& value = direction[head * dim + j];
        value = row == 0 ? topic[j] : keep * value + renew * topic[j];
      }
    }
    for (size_t i = 0; i < query_size; ++i) {
      const float of_group = direction[i / dim / group * dim + i % dim];
      queries[row * query_size + i] = Bf16Bits(kQueryStrength * (of_group + 0.1f * normal(random)));
    }
  }
  return queries;
}

}  // namespace

SyntheticSizes TopicSizes(const SyntheticShape& shape) {
  const int64_t tokens = shape.max_tokens + 1 + kLayerShift * shape.geometry.num_layers;
  return {.num_rows = NumTopics(shape) * kVariants,
          .num_ids = static_cast<size_t>(tokens) * shape.geometry.num_kv_heads,
          .num_query_sets = 1,
          .layer_shift = kLayerShift};
}

SyntheticTables MakeTopicTables(const SyntheticShape& shape) {
  const auto dim = static_cast<size_t>(shape.geometry.head_dim);
  const size_t num_topics = NumTopics(shape);
  const SyntheticSizes sizes = TopicSizes(shape);
  std::mt19937_64 random(shape.seed);
  std::normal_distribution<float> normal;
  std::vector<float> topics(num_topics * dim);
  for (float& value : topics) value = normal(random);
  SyntheticTables tables;
  tables.rows.resize(sizes.num_rows * dim);
  for (size_t i = 0; i < tables.rows.size(); ++i) {
    const size_t topic = i / dim / kVariants;
    tables.rows[i] = Bf16Bits(topics[topic * dim + i % dim] + kSpread * normal(random));
  }
  tables.ids.resize(sizes.num_ids);
  std::vector<size_t> topic_of_head(shape.geometry.num_kv_heads);
  for (size_t i = 0; i < tables.ids.size(); ++i) {
    size_t& topic = topic_of_head[i % topic_of_head.size()];
    if (random() % kStayOf == 0) topic = random() % num_topics;
    tables.ids[i] = static_cast<int32_t>(topic * kVariants + random() % kVariants);
  }
  tables.queries = MakeQueries(shape, topics, random);
  return tables;
}

}  // namespace retroinfer
