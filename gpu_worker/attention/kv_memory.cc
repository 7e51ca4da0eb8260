#include "gpu_worker/attention/kv_memory.h"

#include <algorithm>

#include "absl/memory/memory.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

// Of one sequence.
int64_t MaxDenseBlocks(const KvMemorySizes& sizes) {
  return 4 + sizes.max_model_len / kDenseBlockTokens;
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvMemory>> KvMemory::Create(Device& device,
                                                           const KvMemorySizes& sizes) {
  auto memory = absl::WrapUnique(new KvMemory(sizes));
  ASSIGN_OR_RETURN(memory->dense_buffer_,
                   device.Allocate(static_cast<size_t>(sizes.dense_blocks) *
                                       DensePoolView::BlockBytes(sizes.geometry),
                                   MemoryPurpose::kDenseKv));
  // A server without an arena has no index; its pool keeps one block so that views are never null.
  ASSIGN_OR_RETURN(memory->meta_buffer_,
                   device.Allocate(static_cast<size_t>(std::max(sizes.meta_blocks, 1)) *
                                       MetaPoolView::BlockBytes(sizes.geometry),
                                   MemoryPurpose::kMetaIndex));
  const int64_t max_meta = 1 + sizes.max_model_len / kDecodeSegmentTokens;
  ASSIGN_OR_RETURN(memory->tables_, BlockTables::Create(device, sizes.max_sequences,
                                                        MaxDenseBlocks(sizes), max_meta));
  return memory;
}

bool KvMemory::CouldFit(const KvNeed& need) const {
  return need.dense_blocks <= std::min<int64_t>(dense_blocks_.total(), MaxDenseBlocks(sizes_)) &&
         need.meta_blocks <= meta_blocks_.total();
}

bool KvMemory::Reserve(const KvNeed& need, SequenceKv& sequence) {
  RI_CHECK(sequence.table_row < 0 && sequence.dense_blocks.empty());
  if (need.dense_blocks > dense_blocks_.num_free() || need.meta_blocks > meta_blocks_.num_free()) {
    return false;
  }
  std::vector<int32_t> row;
  if (!tables_->rows().Allocate(1, row)) return false;
  sequence.table_row = row[0];
  dense_blocks_.Allocate(need.dense_blocks, sequence.dense_blocks);
  meta_blocks_.Allocate(need.meta_blocks, sequence.meta_blocks);
  return true;
}

void KvMemory::Free(SequenceKv& sequence) {
  if (sequence.table_row < 0) return;
  std::vector<int32_t> row = {sequence.table_row};
  tables_->rows().Free(row);
  sequence.table_row = -1;
  dense_blocks_.Free(sequence.dense_blocks);
  meta_blocks_.Free(sequence.meta_blocks);
}

}  // namespace retroinfer
