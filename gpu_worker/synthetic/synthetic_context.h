// Long contexts without prefill, for measuring decode steps: keys that lie in clusters, and queries
// that drift from step to step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/ops/attention/layer_kv.h"
#include "gpu_worker/ops/matrix.h"
#include "gpu_worker/ops/ops.h"

namespace retroinfer {

struct SyntheticShape {
  KvGeometry geometry;
  int32_t num_query_heads = 0;
  int64_t max_tokens = 0;  // of a context
  // Nothing: what queries ask for comes again as it does in text (see queries()). Otherwise the
  // cosine between a head's queries of two steps, without what is random in each: for stress.
  std::optional<double> overlap;
  uint64_t seed = 1;
};

// Topics, each a direction with some spread; a context stays with a topic for a dozen tokens. Every
// sequence and every layer get the same tokens, each layer beginning elsewhere.
//
// Threads: one at a time.
class SyntheticContext {
 public:
  // Device bytes that Create takes.
  static size_t Bytes(const SyntheticShape& shape, DType activation_dtype);

  // Takes device memory for one layer's KV of a context, and for the tables.
  static absl::StatusOr<SyntheticContext> Create(Device& device, Ops& ops,
                                                 const SyntheticShape& shape);

  // Enqueues the making of tokens [0, num_tokens) of a layer's KV, in memory that the next call
  // overwrites. REQUIRES: num_tokens <= max_tokens.
  absl::StatusOr<LayerKv> MakeLayer(Stream& stream, uint32_t layer, int64_t num_tokens);
  // Lets the next MakeLayer's work wait for what `reader` has enqueued so far.
  absl::Status ReadBy(Stream& reader) { return reader.Record(*read_); }

  // Queries: [num_queries][query_heads * head_dim] bf16; consecutive ones are those of consecutive
  // steps. Without an overlap they are made such that the pages that the retrieval zone reads come
  // again as often as in text: of 120K tokens an LRU cache for 5, 10, 20 and 40 % of the pages
  // finds 87, 93, 97 and 99 % of them. Measured on two models at 129,092 tokens
  // (docs/evaluation.md): 85 to 88, 94 to 96, 97 to 99 and 99 %; the paper: 79 to 94 at 5 %. So
  // with a head_dim of 128 and groups of four; with 64 they are more scattered (68 % at 5 %).
  const MatrixView& queries() const { return queries_; }

 private:
  absl::Status MakeTables(Stream& stream);
  absl::Status Upload(Stream& stream, std::span<const std::byte> host, DeviceBuffer& buffer);

  Device* device_ = nullptr;
  Ops* ops_ = nullptr;
  SyntheticShape shape_;
  std::unique_ptr<Event> read_;
  DeviceBuffer keys_, values_;  // a layer's
  DeviceBuffer table_buffer_, ids_, chunk_;
  DeviceBuffer query_buffer_;
  MatrixView table_;    // [topics * variants, head_dim] bf16
  MatrixView queries_;  // see queries()
};

}  // namespace retroinfer
