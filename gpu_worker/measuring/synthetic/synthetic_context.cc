#include "gpu_worker/measuring/synthetic/synthetic_context.h"

#include <algorithm>
#include <vector>

#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "gpu_worker/measuring/synthetic/cell_tables.h"
#include "gpu_worker/measuring/synthetic/topic_tables.h"

namespace retroinfer {
namespace {

constexpr int64_t kChunkTokens = 4096;

SyntheticSizes SizesOf(const SyntheticShape& shape) {
  return shape.overlap.has_value() ? TopicSizes(shape) : CellSizes(shape);
}

// Of one layer's keys, or values.
size_t LayerBytes(const SyntheticShape& shape) {
  return static_cast<size_t>(shape.max_tokens) * shape.geometry.num_kv_heads *
         shape.geometry.prompt_vector_bytes();
}

// Of the keys of generated tokens.
size_t GeneratedBytes(const SyntheticShape& shape) {
  if (shape.overlap.has_value()) return 0;
  return kGeneratedTokens * shape.geometry.num_kv_heads * shape.geometry.head_dim *
         sizeof(uint16_t);
}

// Of the rows that are looked up at a time, keys and values.
size_t ChunkBytes(const SyntheticShape& shape, DType activation_dtype) {
  return 2 * static_cast<size_t>(kChunkTokens) * shape.geometry.num_kv_heads *
         shape.geometry.head_dim * DTypeBytes(activation_dtype);
}

}  // namespace

size_t SyntheticContext::Bytes(const SyntheticShape& shape, DType activation_dtype) {
  const size_t dim = shape.geometry.head_dim;
  const SyntheticSizes sizes = SizesOf(shape);
  const size_t queries =
      sizes.num_query_sets * kQueriesOfSet * static_cast<size_t>(shape.num_query_heads) * dim;
  return 2 * LayerBytes(shape) + ChunkBytes(shape, activation_dtype) + GeneratedBytes(shape) +
         sizes.num_ids * sizeof(int32_t) + (sizes.num_rows * dim + queries) * sizeof(uint16_t);
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
  sizes_ = SizesOf(shape_);
  const SyntheticTables tables =
      shape_.overlap.has_value() ? MakeTopicTables(shape_) : MakeCellTables(shape_);
  RETURN_IF_ERROR(Upload(stream, std::as_bytes(std::span(tables.rows)), table_buffer_));
  table_ = MatrixView::Dense(table_buffer_.bytes(), DType::kBf16,
                             static_cast<int64_t>(sizes_.num_rows), shape_.geometry.head_dim);
  RETURN_IF_ERROR(Upload(stream, std::as_bytes(std::span(tables.ids)), ids_));
  RETURN_IF_ERROR(Upload(stream, std::as_bytes(std::span(tables.queries)), query_buffer_));
  queries_ = MatrixView::Dense(query_buffer_.bytes(), DType::kBf16,
                               static_cast<int64_t>(sizes_.num_query_sets * kQueriesOfSet),
                               int64_t{shape_.num_query_heads} * shape_.geometry.head_dim);
  if (tables.generated.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(Upload(stream, std::as_bytes(std::span(tables.generated)), generated_buffer_));
  generated_keys_ =
      MatrixView::Dense(generated_buffer_.bytes(), DType::kBf16, kGeneratedTokens,
                        int64_t{shape_.geometry.num_kv_heads} * shape_.geometry.head_dim);
  return absl::OkStatus();
}

int32_t SyntheticContext::QueryRow(uint64_t sequence_id, uint32_t layer, uint64_t step) const {
  constexpr uint64_t kBetweenLayers = 37, kBetweenSequences = 101;
  const uint64_t set = layer * sizes_.num_query_sets / shape_.geometry.num_layers;
  const uint64_t of_set = step + layer * kBetweenLayers + sequence_id * kBetweenSequences;
  return static_cast<int32_t>(set * kQueriesOfSet + of_set % kQueriesOfSet);
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
                      .dtype = geometry.format.prompt,
                      .rounds_to_eight_bits = geometry.format.token == kEightBitTokens};
  const int64_t heads = geometry.num_kv_heads;
  const int64_t dim = geometry.head_dim;
  const DType dtype = ops_->model().activation_dtype();
  const size_t half = chunk_.size_bytes() / 2;
  for (int64_t first = 0; first < num_tokens; first += kChunkTokens) {
    const int64_t count = std::min(kChunkTokens, num_tokens - first);
    for (const int64_t is_value : {0, 1}) {
      const int64_t begin = (first + is_value + layer * sizes_.layer_shift) * heads;
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
