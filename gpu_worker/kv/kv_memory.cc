#include "gpu_worker/kv/kv_memory.h"

#include <algorithm>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

// Of one sequence.
int64_t MaxDenseBlocks(const KvMemorySizes& sizes) {
  return 4 + sizes.max_model_len / kDenseBlockTokens;
}
int64_t MaxMetaBlocks(const KvMemorySizes& sizes) {
  return 1 + sizes.max_model_len / kDecodeSegmentTokens;
}

MemoryNeed PoolsOf(const KvMemorySizes& sizes) {
  MemoryNeed need;
  need[MemoryPurpose::kDenseKv] =
      static_cast<size_t>(sizes.dense_blocks) * DensePoolView::BlockBytes(sizes.geometry);
  // A server without an arena has no index; its pool keeps one block so that views are never null.
  need[MemoryPurpose::kMetaIndex] = static_cast<size_t>(std::max(sizes.meta_blocks, 1)) *
                                    MetaPoolView::BlockBytes(sizes.geometry);
  return need;
}

}  // namespace

MemoryNeed KvMemory::MemoryOf(const KvMemorySizes& sizes) {
  return PoolsOf(sizes) +
         BlockTables::MemoryOf(sizes.max_sequences, MaxDenseBlocks(sizes), MaxMetaBlocks(sizes));
}

absl::StatusOr<std::unique_ptr<KvMemory>> KvMemory::Create(Device& device,
                                                           const KvMemorySizes& sizes) {
  if (!sizes.heads.Fits(sizes.geometry)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "memory of ", sizes.geometry.num_kv_heads, " KV heads for heads ", sizes.heads.first,
        " to ", sizes.heads.first + sizes.heads.count, " of ", sizes.heads.total));
  }
  auto memory = absl::WrapUnique(new KvMemory(sizes));
  const MemoryNeed pools = PoolsOf(sizes);
  const auto allocate = [&](MemoryPurpose purpose) {
    return device.Allocate(pools[purpose], purpose);
  };
  ASSIGN_OR_RETURN(memory->dense_buffer_, allocate(MemoryPurpose::kDenseKv));
  ASSIGN_OR_RETURN(memory->meta_buffer_, allocate(MemoryPurpose::kMetaIndex));
  ASSIGN_OR_RETURN(memory->tables_,
                   BlockTables::Create(device, sizes.max_sequences, MaxDenseBlocks(sizes),
                                       MaxMetaBlocks(sizes)));
  return memory;
}

bool KvMemory::CouldFit(const KvNeed& need) const {
  return need.dense_blocks <= std::min<int64_t>(dense_blocks_.total(), MaxDenseBlocks(sizes_)) &&
         need.meta_blocks <= meta_blocks_.total();
}

bool KvMemory::Reserve(const KvBlocks& need, SequenceKv& sequence) {
  RI_CHECK(sequence.table_row < 0 && sequence.dense_blocks.empty());
  if (need.dense > dense_blocks_.num_free() || need.meta > meta_blocks_.num_free()) return false;
  std::vector<int32_t> row;
  if (!tables_->rows().Allocate(1, row)) return false;
  sequence.table_row = row[0];
  sequence.has_grown = false;
  dense_blocks_.Allocate(need.dense, sequence.dense_blocks);
  meta_blocks_.Allocate(need.meta, sequence.meta_blocks);
  return true;
}

bool KvMemory::Grow(const KvBlocks& more, SequenceKv& sequence) {
  RI_CHECK(sequence.table_row >= 0);
  if (more.dense > dense_blocks_.num_free() || more.meta > meta_blocks_.num_free()) return false;
  if (!sequence.has_grown) sequence.first_grown_meta_block = sequence.meta_blocks.size();
  sequence.has_grown = true;
  dense_blocks_.Allocate(more.dense, sequence.dense_blocks);
  meta_blocks_.Allocate(more.meta, sequence.meta_blocks);
  return true;
}

absl::Status KvMemory::TellTables(Stream& stream, SequenceKv& sequence) {
  if (!sequence.has_grown) return absl::OkStatus();
  sequence.has_grown = false;
  RETURN_IF_ERROR(tables_->WriteDense(stream, sequence.table_row, sequence.dense_blocks));
  const size_t first = sequence.first_grown_meta_block;
  if (first == sequence.meta_blocks.size()) return absl::OkStatus();
  return tables_->WriteMeta(stream, sequence.table_row,
                            std::span(sequence.meta_blocks).subspan(first), first);
}

void KvMemory::GiveBack(int32_t num_dense, SequenceKv& sequence) {
  if (num_dense >= std::ssize(sequence.dense_blocks)) return;
  const auto first = sequence.dense_blocks.begin() + num_dense;
  std::vector<DenseBlockId> spare(first, sequence.dense_blocks.end());
  sequence.dense_blocks.erase(first, sequence.dense_blocks.end());
  dense_blocks_.Free(spare);
}

void KvMemory::ShareIndexes(SequenceKv& sequence) {
  if (sequence.meta_blocks.empty()) return;
  auto first = sequence.meta_blocks.begin();
  for (size_t i = 0; i < sequence.num_cached_segments; ++i) {
    const auto last = first + sequence.extents[i].num_tokens / kDecodeSegmentTokens;
    SharedIndex& index = shared_indexes_[sequence.extents[i].id];
    std::vector<MetaBlockId> blocks(first, last);
    if (index.users == 0) {
      index.blocks = std::move(blocks);
    } else if (blocks.size() == index.blocks.size()) {
      meta_blocks_.Free(blocks);
      std::copy(index.blocks.begin(), index.blocks.end(), first);
    } else {
      return;  // another process has called two segments by one id
    }
    ++index.users;
    ++sequence.num_shared_indexes;
    first = last;
  }
}

void KvMemory::UnshareIndexes(SequenceKv& sequence) {
  size_t num_blocks = 0;
  for (size_t i = 0; i < sequence.num_shared_indexes; ++i) {
    const auto found = shared_indexes_.find(sequence.extents[i].id);
    num_blocks += found->second.blocks.size();
    if (--found->second.users > 0) continue;
    meta_blocks_.Free(found->second.blocks);
    shared_indexes_.erase(found);
  }
  sequence.meta_blocks.erase(sequence.meta_blocks.begin(),
                             sequence.meta_blocks.begin() + static_cast<ptrdiff_t>(num_blocks));
  sequence.num_shared_indexes = 0;
}

int32_t KvMemory::OwnMetaBlocks(const SequenceKv& sequence) const {
  size_t own = sequence.meta_blocks.size();
  for (size_t i = 0; i < sequence.num_shared_indexes; ++i) {
    const SharedIndex& index = shared_indexes_.at(sequence.extents[i].id);
    if (index.users > 1) own -= index.blocks.size();
  }
  return static_cast<int32_t>(own);
}

bool KvMemory::TakeIndexLayer(const Extent& extent, uint32_t layer) {
  const auto found = shared_indexes_.find(extent.id);
  if (found == shared_indexes_.end()) return true;
  if (layer < found->second.num_layers) return false;
  found->second.num_layers = layer + 1;
  return true;
}

int64_t KvMemory::ColdTokens(const SequenceKv& sequence) const {
  int64_t tokens = 0;
  for (size_t i = 0; i < sequence.num_shared_indexes; ++i) {
    const Extent& extent = sequence.extents[i];
    if (!shared_indexes_.at(extent.id).is_attended) tokens += extent.num_tokens;
  }
  return tokens;
}

void KvMemory::Attended(const SequenceKv& sequence) {
  for (size_t i = 0; i < sequence.num_shared_indexes; ++i) {
    shared_indexes_.at(sequence.extents[i].id).is_attended = true;
  }
}

void KvMemory::Free(SequenceKv& sequence) {
  if (sequence.table_row < 0) return;
  UnshareIndexes(sequence);
  std::vector<int32_t> row = {sequence.table_row};
  tables_->rows().Free(row);
  sequence.table_row = -1;
  dense_blocks_.Free(sequence.dense_blocks);
  meta_blocks_.Free(sequence.meta_blocks);
}

}  // namespace retroinfer
