#include "bench/synthetic_context.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "absl/memory/memory.h"
#include "common/status/status_macros.h"

namespace retroinfer::bench {
namespace {

constexpr int64_t kTokensOfTopic = 1024;
constexpr int32_t kVariants = 256;      // vectors that a topic's tokens are drawn from
constexpr float kSpread = 0.5f;         // of a topic, beside a direction of deviation 1
constexpr float kQueryStrength = 0.6f;  // scores of a few units where a query meets its topic
constexpr uint32_t kStayOf = 12;        // tokens that a topic lasts, on average
constexpr int64_t kNumQueries = 1024;
constexpr int64_t kChunkTokens = 4096;
constexpr int64_t kLayerShift = 64;  // tokens between the beginnings of two layers

uint16_t Bf16Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace

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
  const KvGeometry& geometry = shape.geometry;
  const auto kv_bytes =
      static_cast<size_t>(shape.num_tokens) * geometry.num_kv_heads * geometry.vector_bytes();
  ASSIGN_OR_RETURN(context.keys_, device.Allocate(kv_bytes, MemoryPurpose::kActivations));
  ASSIGN_OR_RETURN(context.values_, device.Allocate(kv_bytes, MemoryPurpose::kActivations));
  const size_t chunk_bytes = static_cast<size_t>(kChunkTokens) * geometry.num_kv_heads *
                             geometry.head_dim * DTypeBytes(ops.activation_dtype());
  ASSIGN_OR_RETURN(context.chunk_, device.Allocate(2 * chunk_bytes, MemoryPurpose::kActivations));
  ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.CreateStream(StreamKind::kCompute));
  RETURN_IF_ERROR(context.MakeTables(*stream));
  return context;
}

absl::Status SyntheticContext::MakeTables(Stream& stream) {
  const auto dim = static_cast<size_t>(shape_.geometry.head_dim);
  const auto kv_heads = static_cast<size_t>(shape_.geometry.num_kv_heads);
  const auto num_topics =
      static_cast<size_t>(std::max<int64_t>(8, shape_.num_tokens / kTokensOfTopic));
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

  // Values are those of the token behind the key's.
  const int64_t num_tokens = shape_.num_tokens + 1 + kLayerShift * shape_.geometry.num_layers;
  std::vector<int32_t> ids(static_cast<size_t>(num_tokens) * kv_heads);
  std::vector<size_t> topic_of_head(kv_heads);
  for (size_t i = 0; i < ids.size(); ++i) {
    size_t& topic = topic_of_head[i % kv_heads];
    if (random() % kStayOf == 0) topic = random() % num_topics;
    ids[i] = static_cast<int32_t>(topic * kVariants + random() % kVariants);
  }
  RETURN_IF_ERROR(Upload(stream, std::as_bytes(std::span(ids)), ids_));

  // Each group of query heads has a direction that wanders: a step of an AR(1) process towards a
  // new topic. The heads of a group differ a little.
  const auto query_size = static_cast<size_t>(shape_.num_query_heads) * dim;
  const size_t group = static_cast<size_t>(shape_.num_query_heads) / kv_heads;
  const auto keep = static_cast<float>(shape_.overlap);
  const float renew = std::sqrt(std::max(0.0f, 1.0f - keep * keep));
  std::vector<float> direction(kv_heads * dim);
  std::vector<uint16_t> queries(static_cast<size_t>(kNumQueries) * query_size);
  for (size_t row = 0; row < static_cast<size_t>(kNumQueries); ++row) {
    for (size_t head = 0; head < kv_heads; ++head) {
      const size_t topic = random() % num_topics;
      for (size_t j = 0; j < dim; ++j) {
        float& value = direction[head * dim + j];
        value = row == 0 ? topics[topic * dim + j] : keep * value + renew * topics[topic * dim + j];
      }
    }
    for (size_t i = 0; i < query_size; ++i) {
      const float of_group = direction[i / dim / group * dim + i % dim];
      queries[row * query_size + i] = Bf16Bits(kQueryStrength * (of_group + 0.1f * normal(random)));
    }
  }
  RETURN_IF_ERROR(Upload(stream, std::as_bytes(std::span(queries)), query_buffer_));
  queries_ = MatrixView::Dense(query_buffer_.bytes(), DType::kBf16, kNumQueries,
                               static_cast<int64_t>(query_size));
  return absl::OkStatus();
}

absl::StatusOr<LayerKv> SyntheticContext::MakeLayer(Stream& stream, uint32_t layer) {
  const KvGeometry& geometry = shape_.geometry;
  const LayerKv kv = {.keys = keys_.bytes().device_data(),
                      .values = values_.bytes().device_data(),
                      .num_kv_heads = geometry.num_kv_heads,
                      .head_dim = geometry.head_dim,
                      .capacity = shape_.num_tokens,
                      .dtype = geometry.dtype};
  const int64_t heads = geometry.num_kv_heads;
  const int64_t dim = geometry.head_dim;
  const DType dtype = ops_->activation_dtype();
  const size_t half = chunk_.size_bytes() / 2;
  for (int64_t first = 0; first < shape_.num_tokens; first += kChunkTokens) {
    const int64_t count = std::min(kChunkTokens, shape_.num_tokens - first);
    for (const int64_t is_value : {0, 1}) {
      const int64_t begin = (first + is_value + layer * kLayerShift) * heads;
      RETURN_IF_ERROR(ops_->Embedding(
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
    RETURN_IF_ERROR(ops_->StoreLayerKv(
        stream, {.keys = rows(0), .values = rows(1), .first_token = first, .out = kv}));
  }
  return kv;
}

absl::StatusOr<std::unique_ptr<DriftingQueries>> DriftingQueries::Create(
    Device& device, Ops& ops, Stream& stream, AttentionPolicy& policy,
    const SyntheticContext& context, uint32_t num_layers, int32_t max_batch) {
  auto drifting =
      absl::WrapUnique(new DriftingQueries(ops, stream, policy, context, num_layers, max_batch));
  const size_t bytes = size_t{num_layers} * static_cast<size_t>(max_batch) * sizeof(int32_t);
  ASSIGN_OR_RETURN(drifting->rows_,
                   StagedArrays::Create(device, {bytes}, MemoryPurpose::kActivations));
  return drifting;
}

absl::Status DriftingQueries::BeginStep(std::span<SequenceKv* const> batch) {
  constexpr int64_t kBetweenLayers = 37, kBetweenSequences = 101;
  const std::span<int32_t> rows = rows_.Host<int32_t>(0);
  for (int64_t i = 0; i < static_cast<int64_t>(rows.size()); ++i) {
    const int64_t layer = i / max_batch_, sequence = i % max_batch_;
    rows[static_cast<size_t>(i)] = static_cast<int32_t>(
        (step_ + layer * kBetweenLayers + sequence * kBetweenSequences) % kNumQueries);
  }
  ++step_;
  return policy_.BeginStep(batch);
}

absl::Status DriftingQueries::UploadStep() {
  RETURN_IF_ERROR(rows_.Upload(stream_));
  return policy_.UploadStep();
}

absl::Status DriftingQueries::DecodeLayer(uint32_t layer, const MatrixView& queries,
                                          const MatrixView& keys, const MatrixView& values,
                                          const MatrixView& out) {
  const DeviceSpan<const int32_t> rows = rows_.On<const int32_t>(0).subspan(
      size_t{layer} * static_cast<size_t>(max_batch_), static_cast<size_t>(queries.rows));
  RETURN_IF_ERROR(
      ops_.Embedding(stream_, {.token_ids = rows, .table = context_.queries(), .out = queries}));
  return policy_.DecodeLayer(layer, queries, keys, values, out);
}

}  // namespace retroinfer::bench
