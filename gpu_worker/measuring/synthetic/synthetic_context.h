// Long contexts without prefill, for measuring decode steps: keys that lie in clusters, and queries
// that ask for some of them again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/measuring/synthetic/synthetic_tables.h"
#include "gpu_worker/ops/attention/layer_kv.h"
#include "gpu_worker/ops/backend/ops.h"
#include "gpu_worker/ops/matrix.h"

namespace retroinfer {

// Every sequence gets the same tokens: cells (cell_tables.h), or with an overlap topics
// (topic_tables.h).
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

  // Queries: [sets * kQueriesOfSet][query_heads * head_dim] bf16. Without an overlap an LRU cache
  // of any size has as much of the pages that they retrieve as the recorded trace's
  // (recorded_reuse.h), within 1.5 points at 5, 10, 20 and 40 % of the pages
  // (needle's at 5 %: 3.2).
  const MatrixView& queries() const { return queries_; }
  // Keys of generated tokens, of any layer: [kGeneratedTokens][kv_heads * head_dim] bf16. With an
  // overlap there are none: no rows.
  const MatrixView& generated_keys() const { return generated_keys_; }
  // The row of a sequence's queries for a layer of a step. Those of consecutive steps follow each
  // other; sequences and layers begin at different ones.
  int32_t QueryRow(uint64_t sequence_id, uint32_t layer, uint64_t step) const;

 private:
  absl::Status MakeTables(Stream& stream);
  absl::Status Upload(Stream& stream, std::span<const std::byte> host, DeviceBuffer& buffer);

  Device* device_ = nullptr;
  Ops* ops_ = nullptr;
  SyntheticShape shape_;
  std::unique_ptr<Event> read_;
  DeviceBuffer keys_, values_;  // a layer's
  DeviceBuffer table_buffer_, ids_, chunk_;
  DeviceBuffer query_buffer_, generated_buffer_;
  SyntheticSizes sizes_;
  MatrixView table_;    // [sizes_.num_rows, head_dim] bf16
  MatrixView queries_;  // see queries()
  MatrixView generated_keys_;
};

}  // namespace retroinfer
