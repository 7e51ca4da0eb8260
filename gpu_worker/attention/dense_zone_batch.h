// The dense zones of a decode batch: where each sequence's new token goes, and what is attended
// exactly. Shared by all policies.
//
// Threads: the engine's thread.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/memory_need.h"
#include "gpu_worker/device/staged_arrays.h"
#include "gpu_worker/kv/block_tables.h"
#include "gpu_worker/kv/sequence_kv.h"
#include "gpu_worker/ops/attention/attention_form.h"
#include "gpu_worker/ops/attention/attention_ops.h"
#include "gpu_worker/ops/backend/backend_needs.h"

namespace retroinfer {

class DenseZoneBatch {
 public:
  static absl::StatusOr<DenseZoneBatch> Create(Device& device, AttentionOps& ops, Stream& stream,
                                               const DensePoolView& pool, BlockTables& tables,
                                               int32_t max_batch);
  static MemoryNeed MemoryOf(int32_t max_batch);
  // The same for policies that attend to nothing else, through DecodeLayer().
  static absl::StatusOr<DenseZoneBatch> CreateToAttend(Device& device, AttentionOps& ops,
                                                       Stream& stream, const DensePoolView& pool,
                                                       BlockTables& tables, int32_t max_batch,
                                                       int32_t num_query_heads);
  static MemoryNeed MemoryOf(int32_t max_batch, int32_t num_query_heads, int32_t head_dim,
                             const BackendNeeds& backend);

  // Copies the tokens of the sequence's part of its prompt, but [sink, window_begin), into its
  // blocks.
  absl::Status FillFromPrompt(const SequenceKv& sequence, uint32_t layer, const LayerKv& kv);
  // The reverse for the tokens before the part, all of which its blocks hold: into rows
  // [0, part.begin) of `kv`.
  absl::Status ReadContext(const SequenceKv& sequence, uint32_t layer, const LayerKv& kv);
  // Publishes the sequence's block numbers to the device, after they have changed.
  absl::Status WriteTable(const SequenceKv& sequence);

  // Places the next token of each sequence (the next k of one that is there k times, in
  // neighbouring rows) and describes the zones, that token included, in host
  // memory; UploadStep enqueues the copy to the device.
  absl::Status BeginStep(std::span<SequenceKv* const> batch);
  absl::Status UploadStep() { return arrays_.Upload(*stream_); }
  absl::Status Append(uint32_t layer, const MatrixView& keys, const MatrixView& values);
  // A whole layer of a step: appends, then attends to the zones exactly.
  // REQUIRES: CreateToAttend().
  absl::Status DecodeLayer(uint32_t layer, const AttentionForm& form, const MatrixView& queries,
                           const MatrixView& keys, const MatrixView& values, const MatrixView& out);

  DeviceSpan<const DenseZone> zones() const {
    return arrays_.On<const DenseZone>(kZones).first(batch_);
  }
  const DensePoolView& pool() const { return pool_; }

 private:
  enum Array : size_t { kZones, kBlocks, kPlaces };

  DenseZoneBatch(Device& device, AttentionOps& ops, Stream& stream, const DensePoolView& pool,
                 BlockTables& tables)
      : device_(&device), ops_(&ops), stream_(&stream), pool_(pool), tables_(&tables) {}

  Device* device_;
  AttentionOps* ops_;
  Stream* stream_;
  DensePoolView pool_;
  BlockTables* tables_;
  StagedArrays arrays_;   // [max_batch] each, in the order of Array
  DeviceBuffer scratch_;  // of attention in DecodeLayer(), else empty
  size_t batch_ = 0;
};

}  // namespace retroinfer
