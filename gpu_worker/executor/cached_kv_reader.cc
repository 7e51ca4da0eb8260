#include "gpu_worker/executor/cached_kv_reader.h"

#include <algorithm>
#include <utility>

#include "common/kv/block_layout.h"
#include "common/kv/named_segment.h"
#include "common/kv/segment_layout.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

// Upper bound of the list of blocks: all blocks of a text but the last are full, and each prompt of
// a prefix group lists its blocks itself.
size_t ListBytes(int64_t max_tokens, int32_t max_members) {
  const auto blocks = static_cast<size_t>(max_tokens / kDenseBlockTokens + 1);
  return blocks * static_cast<size_t>(max_members) * sizeof(DenseBlockId);
}

int64_t CountBlocks(std::span<const CachedRun> runs) {
  return std::ranges::count_if(runs,
                               [](const CachedRun& run) { return IsBlock(run.num_tokens()); });
}

}  // namespace

MemoryNeed CachedKvReader::MemoryOf(int64_t max_tokens, int32_t max_members) {
  return {MemoryPurpose::kActivations, ListBytes(max_tokens, max_members)};
}

absl::StatusOr<CachedKvReader> CachedKvReader::Create(const Parts& parts,
                                                      const KvGeometry& geometry,
                                                      int64_t max_tokens, int32_t max_members) {
  CachedKvReader reader(parts, geometry);
  const size_t bytes = ListBytes(max_tokens, max_members);
  ASSIGN_OR_RETURN(reader.host_blocks_, parts.device->AllocateHost(bytes));
  ASSIGN_OR_RETURN(reader.blocks_, parts.device->Allocate(bytes, MemoryPurpose::kActivations));
  ASSIGN_OR_RETURN(reader.uploaded_, parts.device->CreateEvent());
  return reader;
}

absl::Status CachedKvReader::Begin(std::vector<std::span<const CachedRun>> members) {
  members_ = std::move(members);
  first_block_.clear();
  // The copies for the last group are long done, unless that group was aborted.
  RETURN_IF_ERROR(parts_.device->Synchronize(*uploaded_));
  const std::span<DenseBlockId> ids = host_blocks_.as<DenseBlockId>();
  const uint32_t first_kv_page = BlockLayout(parts_.heads.ArenaOf(geometry_)).first_kv_page;
  size_t count = 0;
  for (const std::span<const CachedRun> runs : members_) {
    first_block_.push_back(count);
    RI_CHECK(count + static_cast<size_t>(CountBlocks(runs)) <= ids.size());
    for (const CachedRun& run : runs) {
      if (!IsBlock(run.num_tokens())) continue;
      ids[count++] = static_cast<DenseBlockId>(run.extent.first_page + first_kv_page);
    }
  }
  if (count == 0) return absl::OkStatus();
  RETURN_IF_ERROR(parts_.device->Upload(*parts_.stream, std::as_bytes(ids.first(count)),
                                        blocks_.bytes().first(count * sizeof(DenseBlockId))));
  return parts_.stream->Record(*uploaded_);
}

absl::Status CachedKvReader::Read(size_t member, size_t first, size_t last, uint32_t layer,
                                  const LayerKv& out, int64_t row) {
  const std::span<const CachedRun> cached = members_[member];
  const Extent& extent = cached[first].extent;
  if (!IsBlock(extent.num_tokens)) {
    const size_t page_bytes = geometry_.page_bytes();
    return parts_.ops->index().ReadSegmentLayer(
        *parts_.stream, {.extent = parts_.arena.subspan(extent.first_page * page_bytes,
                                                        extent.num_pages * page_bytes),
                         .geometry = geometry_,
                         .heads = parts_.heads,
                         .num_tokens = extent.num_tokens,
                         .layer = layer,
                         .out = out,
                         .first_token = row});
  }
  const auto before = static_cast<size_t>(CountBlocks(cached.first(first)));
  return parts_.ops->attention().ReadDense(
      *parts_.stream, {.pool = DensePoolView::OfPages(parts_.arena, geometry_, parts_.heads),
                       .layer = layer,
                       .block_ids = blocks_.as<const DenseBlockId>().subspan(
                           first_block_[member] + before, last - first),
                       .num_tokens = cached[last - 1].token_end() - cached[first].token_begin,
                       .out = out,
                       .first_token = row});
}

absl::Status CachedKvReader::ReadFrom(size_t member, size_t first, uint32_t layer,
                                      const LayerKv& out, int64_t row) {
  const std::span<const CachedRun> cached = members_[member];
  while (first < cached.size()) {
    size_t last = first + 1;
    if (IsBlock(cached[first].num_tokens())) {
      while (last < cached.size() && IsBlock(cached[last].num_tokens())) ++last;
    }
    RETURN_IF_ERROR(Read(member, first, last, layer, out, row));
    row += cached[last - 1].token_end() - cached[first].token_begin;
    first = last;
  }
  return absl::OkStatus();
}

absl::Status CachedKvReader::ReadTail(size_t member, size_t index, WindowLayers& windows,
                                      uint32_t layer, const LayerKv& out) {
  const CachedRun& run = members_[member][index];
  if (IsBlock(run.num_tokens())) {
    return absl::InternalError("a block has no tail, and cannot be read with window layers");
  }
  const SegmentLayout layout(parts_.heads.ArenaOf(geometry_), run.num_tokens());
  const size_t begin = (size_t{run.extent.first_page} + layout.tail_page) * layout.page_bytes;
  return windows.ReadTail(layer, out, run.token_end(),
                          parts_.arena.subspan(begin, layout.tail_bytes));
}

}  // namespace retroinfer
