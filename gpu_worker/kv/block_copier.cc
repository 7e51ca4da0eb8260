// What keeps a block's bytes right while they are copied: the copies wait for the compute stream,
// which wrote them, and the sequence neither gives the block up nor reuses it before the host has
// seen the copies done.
#include "gpu_worker/kv/block_copier.h"

#include <algorithm>
#include <cstring>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/kv/block_layout.h"
#include "common/status/status_macros.h"
#include "gpu_worker/kv/dense_block_parts.h"

namespace retroinfer {
namespace {

// The first page of a block's image.
void WriteHeader(const BlockCopier::Block& block, const KvGeometry& geometry,
                 std::span<std::byte> image) {
  const BlockHeader header = {.magic = kBlockMagic,
                              .version = kBlockVersion,
                              .num_tokens = block.num_tokens,
                              .num_layers = geometry.num_layers,
                              .num_kv_heads = geometry.num_kv_heads,
                              .head_dim = geometry.head_dim,
                              .format = static_cast<uint32_t>(geometry.format.id),
                              .token_begin = static_cast<uint64_t>(block.token_begin)};
  std::memset(image.data(), 0, geometry.page_bytes());
  std::memcpy(image.data(), &header, sizeof(header));
}

}  // namespace

absl::StatusOr<std::unique_ptr<BlockCopier>> BlockCopier::Create(Device& device, Stream& compute,
                                                                 KvMemory& memory,
                                                                 std::span<std::byte> arena) {
  auto copier = absl::WrapUnique(new BlockCopier(device, compute, memory, arena));
  ASSIGN_OR_RETURN(copier->stream_, device.CreateStream(StreamKind::kCompute));
  ASSIGN_OR_RETURN(copier->computed_, device.CreateEvent());
  return copier;
}

BlockCopier::~BlockCopier() {
  if (stream_ != nullptr) stream_->Synchronize().IgnoreError();
}

absl::Status BlockCopier::Check(const SequenceKv& sequence, const Block& block) const {
  const int64_t begin = block.token_begin - sequence.window_begin;
  const bool is_block = block.num_tokens > 0 && block.num_tokens <= kDenseBlockTokens &&
                        begin >= 0 && begin % kDenseBlockTokens == 0 &&
                        begin / kDenseBlockTokens + 1 < std::ssize(sequence.dense_blocks);
  if (!is_block) {
    return absl::InternalError(absl::StrCat("the window from ", sequence.window_begin, " has no ",
                                            block.num_tokens, " tokens at ", block.token_begin));
  }
  const KvGeometry geometry = memory_.sizes().arena_geometry();
  const uint32_t pages = BlockLayout(geometry).num_pages;
  const uint64_t end = (uint64_t{block.extent.first_page} + pages) * geometry.page_bytes();
  if (block.extent.num_pages < pages || end > arena_.size()) {
    return absl::InternalError("the store answered with an extent that no block fits into");
  }
  return absl::OkStatus();
}

absl::Status BlockCopier::Begin(uint64_t copy_id, const SequenceKv& sequence,
                                std::span<const Block> blocks) {
  if (Has(copy_id)) return absl::AlreadyExistsError("copies under way have this name");
  for (const Block& block : blocks) RETURN_IF_ERROR(Check(sequence, block));
  Copy copy{.sequence_id = sequence.sequence_id, .done = nullptr};
  ASSIGN_OR_RETURN(copy.done, device_.CreateEvent());
  RETURN_IF_ERROR(compute_.Record(*computed_));
  RETURN_IF_ERROR(stream_->Wait(*computed_));
  absl::Status status;
  for (size_t i = 0; i < blocks.size() && status.ok(); ++i) {
    status = CopyBlock(sequence, blocks[i]);
  }
  if (status.ok()) status = stream_->Record(*copy.done);
  if (!status.ok()) {
    // What was enqueued before it failed must be over before the extents are others'.
    stream_->Synchronize().IgnoreError();
    return status;
  }
  copies_.emplace(copy_id, std::move(copy));
  return absl::OkStatus();
}

absl::Status BlockCopier::CopyBlock(const SequenceKv& sequence, const Block& block) {
  const KvMemorySizes& sizes = memory_.sizes();
  const KvGeometry geometry = sizes.arena_geometry();
  const BlockLayout layout(geometry);
  const size_t page_bytes = geometry.page_bytes();
  const std::span<std::byte> image =
      arena_.subspan(size_t{block.extent.first_page} * page_bytes, layout.num_pages * page_bytes);
  if (sizes.heads.is_first()) WriteHeader(block, geometry, image);
  const int64_t in_window = (block.token_begin - sequence.window_begin) / kDenseBlockTokens;
  const DenseBlockId dense = sequence.dense_blocks[static_cast<size_t>(1 + in_window)];
  const size_t block_bytes = DensePoolView::BlockBytes(sizes.geometry);
  const DeviceSpan<std::byte> from =
      memory_.dense_pool().bytes.subspan(static_cast<size_t>(dense) * block_bytes, block_bytes);
  const size_t pages_begin = layout.first_kv_page * page_bytes;
  for (const DenseBlockPart& part : DenseBlockParts(sizes.geometry, sizes.heads)) {
    RETURN_IF_ERROR(device_.Download(*stream_, from.subspan(part.in_memory, part.bytes),
                                     image.subspan(pages_begin + part.in_arena, part.bytes)));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> BlockCopier::IsDone(uint64_t copy_id) const {
  return device_.IsDone(*copies_.at(copy_id).done);
}

bool BlockCopier::IsCopying(uint64_t sequence_id) const {
  return std::any_of(copies_.begin(), copies_.end(), [sequence_id](const auto& copy) {
    return copy.second.sequence_id == sequence_id;
  });
}

}  // namespace retroinfer
