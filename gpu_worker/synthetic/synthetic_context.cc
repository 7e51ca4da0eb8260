#include "gpu_worker/synthetic/synthetic_context.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "common/log/check.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

constexpr int64_t kTokensOfTopic = 1024;
constexpr int32_t kVariants = 256;      // vectors that a topic's tokens are drawn from
constexpr float kSpread = 0.5f;         // of a topic, beside a direction of deviation 1
constexpr float kQueryStrength = 0.6f;  // scores of a few units where a query meets its topic
constexpr uint32_t kStayOf = 12;        // tokens that a topic lasts, on average
constexpr int64_t kNumQueries = 1024;
// Fitted together, so that pages come again as in text (synthetic_context.h).
constexpr double kTextOverlap = 0.3;
constexpr double kTextPopularity = 2.2;  // exponent of Zipf's law
constexpr float kTextNoise = 0.21f;      // of a step, as a part of a direction's length
constexpr int64_t kChunkTokens = 4096;
constexpr int64_t kLayerShift = 64;  // tokens between the beginnings of two layers

uint16_t Bf16Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

size_t NumTopics(const SyntheticShape& shape) {
  return static_cast<size_t>(std::max<int64_t>(8, shape.max_tokens / kTokensOfTopic));
}

// Of one layer's keys, or values.
size_t LayerBytes(const SyntheticShape& shape) {
  return static_cast<size_t>(shape.max_tokens) * shape.geometry.num_kv_heads *
         shape.geometry.prompt_vector_bytes();
}

// Of the rows that are looked up at a time, keys and values.
size_t ChunkBytes(const SyntheticShape& shape, DType activation_dtype) {
  return 2 * static_cast<size_t>(kChunkTokens) * shape.geometry.num_kv_heads *
         shape.geometry.head_dim * DTypeBytes(activation_dtype);
}

// Values are those of the token behind the key's.
size_t NumIds(const SyntheticShape& shape) {
  const int64_t tokens = shape.max_tokens + 1 + kLayerShift * shape.geometry.num_layers;
  return static_cast<size_t>(tokens) * shape.geometry.num_kv_heads;
}

// Draws topics such that few come often and many seldom (Zipf's law); every instance has favourites
// of its own.
class TopicPopularity {
 public:
  TopicPopularity(size_t num_topics, double exponent, std::mt19937_64& random)
      : topics_(num_topics) {
    std::iota(topics_.begin(), topics_.end(), size_t{0});
    std::shuffle(topics_.begin(), topics_.end(), random);
    std::vector<double> weights(num_topics);
    for (size_t i = 0; i < num_topics; ++i) {
      weights[i] = std::pow(static_cast<double>(i + 1), -exponent);
    }
    rank_ = std::discrete_distribution<size_t>(weights.begin(), weights.end());
  }
  size_t Draw(std::mt19937_64& random) { return topics_[rank_(random)]; }

 private:
  std::vector<size_t> topics_;
  std::discrete_distribution<size_t> rank_;
};

// Each group of query heads has a direction that wanders: a step of an AR(1) process towards
// another topic, and what is random in a step. The heads of a group differ a little.
std::vector<uint16_t> MakeQueries(const SyntheticShape& shape, std::span<const float> topics,
                                  std::mt19937_64& random) {
  const auto dim = static_cast<size_t>(shape.geometry.head_dim);
  const auto kv_heads = static_cast<size_t>(shape.geometry.num_kv_heads);
  const size_t query_size = static_cast<size_t>(shape.num_query_heads) * dim;
  const size_t group = static_cast<size_t>(shape.num_query_heads) / kv_heads;
  const bool as_text = !shape.overlap.has_value();
  const auto keep = static_cast<float>(shape.overlap.value_or(kTextOverlap));
  const float renew = std::sqrt(std::max(0.0f, 1.0f - keep * keep));
  // By its length, so that it disturbs scores as much whatever the dimension.
  const float of_step = as_text ? kTextNoise * std::sqrt(static_cast<float>(dim)) : 0.0f;
  std::vector<TopicPopularity> popularity;
  for (size_t head = 0; head < kv_heads; ++head) {
    popularity.emplace_back(NumTopics(shape), as_text ? kTextPopularity : 0.0, random);
  }
  std::normal_distribution<float> normal;
  std::vector<float> direction(kv_heads * dim);
  std::vector<float> asked(kv_heads * dim);
  std::vector<uint16_t> queries(static_cast<size_t>(kNumQueries) * query_size);
  for (size_t row = 0; row < static_cast<size_t>(kNumQueries); ++row) {
    for (size_t head = 0; head < kv_heads; ++head) {
      const float* const topic = &topics[popularity[head].Draw(random) * dim];
      for (size_t j = 0; j < dim; ++j) {
        float& value = direction[head * dim + j];
        value = row == 0 ? topic[j] : keep * value + renew * topic[j];
        asked[head * dim + j] = value + of_step * normal(random);
      }
    }
    for (size_t i = 0; i < query_size; ++i) {
      const float of_group = asked[i / dim / group * dim + i % dim];
      queries[row * query_size + i] = Bf16Bits(kQueryStrength * (of_group + 0.1f * normal(random)));
    }
  }
  return queries;
}

}  // namespace

size_t SyntheticContext::Bytes(const SyntheticShape& shape, DType activation_dtype) {
  const size_t dim = shape.geometry.head_dim;
  const size_t table = NumTopics(shape) * kVariants * dim;
  const size_t queries =
      static_cast<size_t>(kNumQueries) * static_cast<size_t>(shape.num_query_heads) * dim;
  return 2 * LayerBytes(shape) + ChunkBytes(shape, activation_dtype) +
         NumIds(shape) * sizeof(int32_t) + (table + queries) * sizeof(uint16_t);
}

absl::Status SyntheticContext::Upload(Stream& stream, std::span<const std::byte> host,
                                      DeviceBuffer& buffer) {
  ASSIGN_OR_RETURN(buffer, device_->Allocate(host.size(), MemoryPurpose::kActivations));
  RETURN_IF_ERROR(device_->Upload(stream, host, buffer.bytes()));
  return stream.Synchronize();
}

absl::StatusOr<SyntheticContext> SyntheticContext::Create(Device& device, Ops& ops,
                                                          const SyntheticShape& shape) {
  SyntheticContext context;
  context.device_ = &device;
  context.ops_ = &ops;
  context.shape_ = shape;
  ASSIGN_OR_RETURN(context.read_, device.CreateEvent());
  ASSIGN_OR_RETURN(context.keys_, device.Allocate(LayerBytes(shape), MemoryPurpose::kActivations));
  ASSIGN_OR_RETURN(context.values_,
                   device.Allocate(LayerBytes(shape), MemoryPurpose::kActivations));
  ASSIGN_OR_RETURN(context.chunk_,
                   device.Allocate(ChunkBytes(shape, ops.model().activation_dtype()),
                                   MemoryPurpose::kActivations));
  ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.CreateStream(StreamKind::kCompute));
  RETURN_IF_ERROR(context.MakeTables(*stream));
  return context;
}

absl::Status SyntheticContext::MakeTables(Stream& stream) {
  const auto dim = static_cast<size_t>(shape_.geometry.head_dim);
  const auto kv_heads = static_cast<size_t>(shape_.geometry.num_kv_heads);
  const size_t num_topics = NumTopics(shape_);
  std::mt19937_64 random(shape_.seed);
  std::normal_distribution<float> normal;
  std::vector<float> topics(num_topics * dim);
  for (float& value : topics) value = normal(random);

  std::vector<uint16_t> table(num_topics * kVariants * dim);
  for (size_t i = 0; i < table.size(); ++i) {
    const size_t topic = i / dim / kVariants;
    table[i] = Bf16Bits(topics[topic * dim + i % dim] + kSpread * normal(random));
  }
  RETURN_IF_ERROR(Upload(stream, std::as_bytes(std::span(table)), table_buffer_));
  table_ =
      MatrixView::Dense(table_buffer_.bytes(), DType::kBf16,
                        static_cast<int64_t>(num_topics) * kVariants, static_cast<int64_t>(dim));

  std::vector<int32_t> ids(NumIds(shape_));
  std::vector<size_t> topic_of_head(kv_heads);
  for (size_t i = 0; i < ids.size(); ++i) {
    size_t& topic = topic_of_head[i % kv_heads];
    if (random() % kStayOf == 0) topic = random() % num_topics;
    ids[i] = static_cast<int32_t>(topic * kVariants + random() % kVariants);
  }
  RETURN_IF_ERROR(Upload(stream, std::as_bytes(std::span(ids)), ids_));

  const std::vector<uint16_t> queries = MakeQueries(shape_, topics, random);
  RETURN_IF_ERROR(Upload(stream, std::as_bytes(std::span(queries)), query_buffer_));
  queries_ = MatrixView::Dense(query_buffer_.bytes(), DType::kBf16, kNumQueries,
                               int64_t{shape_.num_query_heads} * shape_.geometry.head_dim);
  return absl::OkStatus();
}

absl::StatusOr<LayerKv> SyntheticContext::MakeLayer(Stream& stream, uint32_t layer,
                                                    int64_t num_tokens) {
  RI_CHECK(num_tokens <= shape_.max_tokens);
  RETURN_IF_ERROR(stream.Wait(*read_));
  const KvGeometry& geometry = shape_.geometry;
  const LayerKv kv = {.keys = keys_.bytes().device_data(),
                      .values = values_.bytes().device_data(),
                      .num_kv_heads = geometry.num_kv_heads,
                      .head_dim = geometry.head_dim,
                      .capacity = shape_.max_tokens,
                      .dtype = geometry.format.prompt};
  const int64_t heads = geometry.num_kv_heads;
  const int64_t dim = geometry.head_dim;
  const DType dtype = ops_->model().activation_dtype();
  const size_t half = chunk_.size_bytes() / 2;
  for (int64_t first = 0; first < num_tokens; first += kChunkTokens) {
    const int64_t count = std::min(kChunkTokens, num_tokens - first);
    for (const int64_t is_value : {0, 1}) {
      const int64_t begin = (first + is_value + layer * kLayerShift) * heads;
      RETURN_IF_ERROR(ops_->model().Embedding(
          stream, {.token_ids = ids_.as<const int32_t>().subspan(
                       static_cast<size_t>(begin), static_cast<size_t>(count * heads)),
                   .table = table_,
                   .out = MatrixView::Dense(
                       chunk_.bytes().subspan(static_cast<size_t>(is_value) * half, half), dtype,
                       count * heads, dim)}));
    }
    const auto rows = [&](size_t part) {
      return MatrixView::Dense(chunk_.bytes().subspan(part * half, half), dtype, count,
                               heads * dim);
    };
    RETURN_IF_ERROR(ops_->attention().StoreLayerKv(
        stream, {.keys = rows(0), .values = rows(1), .first_token = first, .out = kv}));
  }
  return kv;
}

}  // namespace retroinfer
