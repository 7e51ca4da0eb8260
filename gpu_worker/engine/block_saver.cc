// What keeps a block's bytes right while they are copied: the copies wait for the compute stream,
// which wrote them, and its sequence neither gives the block up nor reuses it before the host has
// seen the copies done (IsSaving).
#include "gpu_worker/engine/block_saver.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "common/kv/block_layout.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "spdlog/spdlog.h"

namespace retroinfer {

absl::StatusOr<std::unique_ptr<BlockSaver>> BlockSaver::Create(const Parts& parts) {
  auto saver = absl::WrapUnique(new BlockSaver(parts));
  ASSIGN_OR_RETURN(saver->copies_, parts.device->CreateStream(StreamKind::kCompute));
  ASSIGN_OR_RETURN(saver->computed_, parts.device->CreateEvent());
  return saver;
}

BlockSaver::~BlockSaver() {
  if (copies_ != nullptr) copies_->Synchronize().IgnoreError();
}

void BlockSaver::Save(const SequenceKv& sequence, uint64_t save_id, std::vector<NamedBlock> blocks,
                      SegmentStore::ReserveCallback answer) {
  RI_CHECK(!blocks.empty());
  SaveUnderWay& save = saves_.emplace_back();
  save.sequence_id = sequence.sequence_id;
  save.save_id = save_id;
  ReserveRequest request{.sequence_id = save_id};
  request.token_begin = static_cast<uint64_t>(blocks.front().token_begin);
  request.waits = false;
  for (NamedBlock& block : blocks) {
    const int64_t block_in_window = (block.token_begin - sequence.window_begin) / kDenseBlockTokens;
    const DenseBlockId dense = sequence.dense_blocks[static_cast<size_t>(1 + block_in_window)];
    request.segments.push_back(
        {.num_tokens = static_cast<uint32_t>(block.identity.token_ids.size()),
         .identity = block.identity});
    save.blocks.push_back({std::move(block), dense});
  }
  parts_.store->Reserve(std::move(request), std::move(answer));
}

bool BlockSaver::TakeAnswer(uint64_t save_id, const absl::StatusOr<std::vector<Extent>>& extents) {
  const auto save = std::find_if(saves_.begin(), saves_.end(),
                                 [save_id](const auto& one) { return one.save_id == save_id; });
  if (save == saves_.end()) return false;
  absl::Status status = extents.status();
  if (status.ok()) status = CopyOut(*save, *extents);
  if (status.ok()) return true;
  if (extents.ok()) {
    spdlog::error("blocks of sequence {} are not saved: {}", save->sequence_id, status.ToString());
    // Copies that were enqueued before one failed must be over before the extents are others'.
    copies_->Synchronize().IgnoreError();
  }
  End(save, 0);
  return true;
}

absl::Status BlockSaver::CopyOut(SaveUnderWay& save, std::span<const Extent> extents) {
  if (extents.size() != save.blocks.size()) {
    return absl::InternalError("the store answered with another number of extents than blocks");
  }
  RETURN_IF_ERROR(parts_.compute->Record(*computed_));
  RETURN_IF_ERROR(copies_->Wait(*computed_));
  for (size_t i = 0; i < extents.size(); ++i) {
    if (extents[i].cached) continue;
    const Block& block = save.blocks[i];
    RETURN_IF_ERROR(CopyBlock(block, extents[i]));
    save.segments.push_back({.extent_id = extents[i].id,
                             .token_begin = static_cast<uint64_t>(block.named.token_begin),
                             .identity = block.named.identity});
  }
  ASSIGN_OR_RETURN(save.copied, parts_.device->CreateEvent());
  return copies_->Record(*save.copied);
}

absl::Status BlockSaver::CopyBlock(const Block& block, const Extent& extent) {
  const KvGeometry& geometry = parts_.memory->sizes().geometry;
  const BlockLayout layout(geometry);
  const size_t page_bytes = geometry.page_bytes();
  const size_t begin = size_t{extent.first_page} * page_bytes;
  if (extent.num_pages < layout.num_pages ||
      begin + layout.num_pages * page_bytes > parts_.arena.size()) {
    return absl::InternalError("the store answered with an extent that no block fits into");
  }
  const std::span<std::byte> image = parts_.arena.subspan(begin, layout.num_pages * page_bytes);
  const BlockHeader header = {
      .magic = kBlockMagic,
      .version = kBlockVersion,
      .num_tokens = static_cast<uint32_t>(block.named.identity.token_ids.size()),
      .num_layers = geometry.num_layers,
      .num_kv_heads = geometry.num_kv_heads,
      .head_dim = geometry.head_dim,
      .format = static_cast<uint32_t>(geometry.format.id),
      .token_begin = static_cast<uint64_t>(block.named.token_begin)};
  std::memset(image.data(), 0, page_bytes);
  std::memcpy(image.data(), &header, sizeof(header));
  const size_t block_bytes = DensePoolView::BlockBytes(geometry);
  return parts_.device->Download(*copies_,
                                 parts_.memory->dense_pool().bytes.subspan(
                                     static_cast<size_t>(block.dense) * block_bytes, block_bytes),
                                 image.subspan(layout.first_kv_page * page_bytes, block_bytes));
}

size_t BlockSaver::Tend() {
  size_t ended = 0;
  for (auto save = saves_.begin(); save != saves_.end();) {
    const auto next = std::next(save);
    if (save->copied != nullptr) {
      const absl::StatusOr<bool> copied = parts_.device->IsDone(*save->copied);
      if (!copied.ok()) {
        spdlog::error("copies of blocks of sequence {}: {}", save->sequence_id,
                      copied.status().ToString());
        End(save, 0);
        ++ended;
      } else if (*copied) {
        const size_t num_saved = save->segments.size();
        if (num_saved > 0) parts_.store->Commit(save->save_id, std::move(save->segments));
        End(save, num_saved);
        ++ended;
      }
    }
    save = next;
  }
  return ended;
}

void BlockSaver::End(std::list<SaveUnderWay>::iterator save, size_t num_saved) {
  counters_.saved_blocks += num_saved;
  if (num_saved == 0 && save->copied == nullptr) counters_.unsaved_blocks += save->blocks.size();
  parts_.store->Release(save->save_id);
  saves_.erase(save);
}

bool BlockSaver::IsSaving(uint64_t sequence_id) const {
  return std::any_of(saves_.begin(), saves_.end(), [sequence_id](const SaveUnderWay& save) {
    return save.sequence_id == sequence_id;
  });
}

}  // namespace retroinfer
