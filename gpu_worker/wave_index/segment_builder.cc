#include "gpu_worker/wave_index/segment_builder.h"

#include <algorithm>
#include <cstring>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/kv/segment_layout.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/index/places_check.h"

namespace retroinfer {
namespace {

constexpr size_t kBlocksOfDense = kDecodeSegmentTokens / kDenseBlockTokens;

}  // namespace

absl::StatusOr<std::unique_ptr<SegmentBuilder>> SegmentBuilder::Create(
    Device& device, Ops& ops, Stream& background, const MetaPoolView& meta_pool,
    const ArenaView& arena, const WaveIndexSettings& settings, const Limits& limits) {
  if (!limits.heads.Fits(meta_pool.geometry)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a pool of ", meta_pool.geometry.num_kv_heads, " KV heads for heads ", limits.heads.first,
        " to ", limits.heads.first + limits.heads.count, " of ", limits.heads.total));
  }
  RETURN_IF_ERROR(CheckPlaces(arena.device.size() / meta_pool.geometry.page_bytes(),
                              meta_pool.geometry, "segment builder"));
  auto builder = absl::WrapUnique(
      new SegmentBuilder(device, ops, background, meta_pool, arena, settings, limits));
  RETURN_IF_ERROR(builder->Allocate());
  return builder;
}

SegmentBuilder::~SegmentBuilder() { background_.Synchronize().IgnoreError(); }

std::vector<SegmentBuilder::Allocation> SegmentBuilder::Allocations(const KvGeometry& geometry,
                                                                    const Limits& limits,
                                                                    size_t cluster_scratch) {
  const size_t h = geometry.num_kv_heads, d = geometry.head_dim, n = limits.max_segment_tokens;
  const size_t m = n / kTokensPerCluster;
  const size_t num_tickets = static_cast<size_t>(limits.max_open_segments);
  return {
      {&SegmentBuilder::assignment_, h * n * sizeof(int32_t)},
      {&SegmentBuilder::sizes_, h * m * sizeof(int32_t)},
      {&SegmentBuilder::centroids_, h * m * d * sizeof(float)},
      {&SegmentBuilder::value_sums_, h * m * d * sizeof(float)},
      {&SegmentBuilder::radii_, h * m * sizeof(float)},
      {&SegmentBuilder::cluster_scratch_, cluster_scratch},
      {&SegmentBuilder::write_scratch_, 8 * h * (n + m)},
      {&SegmentBuilder::decode_kv_, 2 * h * kDecodeSegmentTokens * geometry.prompt_vector_bytes()},
      {&SegmentBuilder::block_ids_, num_tickets * kBlocksOfDense * sizeof(DenseBlockId)},
      {&SegmentBuilder::page_counters_, num_tickets * sizeof(uint32_t)}};
}

MemoryNeed SegmentBuilder::MemoryOf(const KvGeometry& geometry, const Limits& limits,
                                    const BackendNeeds& backend) {
  const auto tokens = static_cast<int32_t>(limits.max_segment_tokens);
  const size_t cluster_scratch =
      backend.cluster_keys_scratch(geometry.num_kv_heads, geometry.head_dim, tokens,
                                   tokens / static_cast<int32_t>(kTokensPerCluster));
  size_t bytes = 0;
  for (const Allocation& allocation : Allocations(geometry, limits, cluster_scratch)) {
    bytes += allocation.bytes;
  }
  return {MemoryPurpose::kMetaIndex, bytes};
}

absl::Status SegmentBuilder::Allocate() {
  const KvGeometry& geometry = meta_pool_.geometry;
  const auto tokens = static_cast<int32_t>(limits_.max_segment_tokens);
  const size_t cluster_scratch =
      ops_.index().ClusterKeysScratchBytes(geometry.num_kv_heads, geometry.head_dim, tokens,
                                           tokens / static_cast<int32_t>(kTokensPerCluster));
  for (const Allocation& allocation : Allocations(geometry, limits_, cluster_scratch)) {
    ASSIGN_OR_RETURN(this->*allocation.buffer,
                     device_.Allocate(allocation.bytes, MemoryPurpose::kMetaIndex));
  }
  const size_t num_tickets = static_cast<size_t>(limits_.max_open_segments);
  ASSIGN_OR_RETURN(host_block_ids_, device_.AllocateHost(block_ids_.bytes().size()));
  for (uint32_t tokens = kDecodeSegmentTokens; tokens <= limits_.max_segment_tokens;
       tokens += kDecodeSegmentTokens) {
    first_pages_.push_back(RegionOf(tokens).begin);
  }
  ASSIGN_OR_RETURN(host_used_pages_, device_.AllocateHost(num_tickets * sizeof(uint32_t)));
  segments_.resize(num_tickets);
  for (OpenSegment& segment : segments_) {
    ASSIGN_OR_RETURN(segment.done, device_.CreateEvent());
  }
  return absl::OkStatus();
}

SegmentBuilder::OpenSegment& SegmentBuilder::Get(Ticket ticket) {
  RI_CHECK(ticket >= 0 && ticket < limits_.max_open_segments);
  RI_CHECK(segments_[static_cast<size_t>(ticket)].is_open);
  return segments_[static_cast<size_t>(ticket)];
}

uint32_t* SegmentBuilder::PageCounter(Ticket ticket) const {
  return page_counters_.as<uint32_t>().device_data() + ticket;
}

int32_t SegmentBuilder::num_open() const {
  return static_cast<int32_t>(std::count_if(segments_.begin(), segments_.end(),
                                            [](const auto& segment) { return segment.is_open; }));
}

absl::StatusOr<SegmentBuilder::Ticket> SegmentBuilder::Open(const SegmentTarget& target) {
  const SegmentLayout layout = LayoutOf(target.num_tokens);
  if (target.num_tokens == 0 || target.num_tokens % kDecodeSegmentTokens != 0 ||
      target.num_tokens > limits_.max_segment_tokens ||
      target.extent.num_pages < layout.max_pages ||
      (size_t{target.extent.first_page} + target.extent.num_pages) * layout.page_bytes >
          arena_.host.size() ||
      target.meta_blocks.size() != layout.num_clusters / kClustersPerMetaBlock) {
    return absl::InvalidArgumentError(absl::StrCat(
        "segment of ", target.num_tokens, " tokens in ", target.extent.num_pages, " pages from ",
        target.extent.first_page, " and ", target.meta_blocks.size(), " meta blocks; needs up to ",
        limits_.max_segment_tokens, " tokens in multiples of 1024, ", layout.max_pages,
        " pages inside the arena and a meta block for each 1024 tokens"));
  }
  const auto free = std::find_if(segments_.begin(), segments_.end(),
                                 [](const auto& segment) { return !segment.is_open; });
  if (free == segments_.end()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", segments_.size(), " segments that can be built at once are open"));
  }
  const auto ticket = static_cast<Ticket>(free - segments_.begin());
  const auto first_page =
      std::span(first_pages_).subspan(target.num_tokens / kDecodeSegmentTokens - 1, 1);
  RETURN_IF_ERROR(
      device_.Upload(background_, std::as_bytes(first_page),
                     page_counters_.bytes().subspan(static_cast<size_t>(ticket) * sizeof(uint32_t),
                                                    sizeof(uint32_t))));
  free->target = target;
  free->is_open = true;
  free->is_sealed = false;
  return ticket;
}

absl::Status SegmentBuilder::BuildLayer(Ticket ticket, uint32_t layer, const LayerKv& kv,
                                        int64_t tokens_left_out) {
  const OpenSegment& segment = Get(ticket);
  return BuildRows(segment, ticket, layer, kv, segment.target.token_begin - tokens_left_out);
}

absl::Status SegmentBuilder::BuildRows(const OpenSegment& segment, Ticket ticket, uint32_t layer,
                                       const LayerKv& kv, int64_t first_row) {
  const SegmentTarget& target = segment.target;
  const size_t page_bytes = meta_pool_.geometry.page_bytes();
  const auto num_tokens = static_cast<int32_t>(target.num_tokens);
  const auto num_clusters = static_cast<int32_t>(target.num_tokens / kTokensPerCluster);
  RETURN_IF_ERROR(ops_.index().ClusterKeys(background_, {.kv = kv,
                                                         .first_token = first_row,
                                                         .num_tokens = num_tokens,
                                                         .num_clusters = num_clusters,
                                                         .rounds = settings_.kmeans_rounds,
                                                         .centre_keys = settings_.centre_keys,
                                                         .assignment = assignment_.as<int32_t>(),
                                                         .sizes = sizes_.as<int32_t>(),
                                                         .centroids = centroids_.as<float>(),
                                                         .value_sums = value_sums_.as<float>(),
                                                         .radii = radii_.as<float>(),
                                                         .scratch = cluster_scratch_.bytes()}));
  return ops_.index().WriteSegment(
      background_, {.kv = kv,
                    .first_token = first_row,
                    .num_tokens = num_tokens,
                    .num_clusters = num_clusters,
                    .assignment = assignment_.as<const int32_t>(),
                    .sizes = sizes_.as<const int32_t>(),
                    .centroids = centroids_.as<const float>(),
                    .value_sums = value_sums_.as<const float>(),
                    .radii = radii_.as<const float>(),
                    .layer = layer,
                    .geometry = meta_pool_.geometry,
                    .heads = limits_.heads,
                    .extent = arena_.device.subspan(target.extent.first_page * page_bytes,
                                                    target.extent.num_pages * page_bytes),
                    .extent_first_page = target.extent.first_page,
                    .next_page = PageCounter(ticket),
                    .zero_rest = is_divided() && layer + 1 == meta_pool_.geometry.num_layers,
                    .pool = meta_pool_,
                    .meta_blocks = target.meta_blocks,
                    .fill = target.fill,
                    .scratch = write_scratch_.bytes()});
}

absl::Status SegmentBuilder::BuildFromDense(Ticket ticket, const DensePoolView& pool,
                                            std::span<const DenseBlockId> block_ids) {
  const OpenSegment& segment = Get(ticket);
  if (segment.target.num_tokens != kDecodeSegmentTokens || block_ids.size() != kBlocksOfDense) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment of ", segment.target.num_tokens, " tokens in ", block_ids.size(),
                     " dense blocks: only segments of 1024 are built from dense blocks, from 16"));
  }
  // A ticket's place may still be read for a segment that was given up; nobody reads what that
  // build writes.
  const size_t first = static_cast<size_t>(ticket) * kBlocksOfDense;
  const auto host_ids = host_block_ids_.as<DenseBlockId>().subspan(first, kBlocksOfDense);
  std::ranges::copy(block_ids, host_ids.begin());
  RETURN_IF_ERROR(device_.Upload(
      background_, std::as_bytes(host_ids),
      block_ids_.bytes().subspan(first * sizeof(DenseBlockId), host_ids.size_bytes())));
  const auto device_ids = block_ids_.as<const DenseBlockId>().subspan(first, kBlocksOfDense);
  const KvGeometry& geometry = meta_pool_.geometry;
  const LayerKv kv{.keys = decode_kv_.bytes().device_data(),
                   .values = decode_kv_.bytes().device_data() + size_t{geometry.num_kv_heads} *
                                                                    kDecodeSegmentTokens *
                                                                    geometry.prompt_vector_bytes(),
                   .num_kv_heads = geometry.num_kv_heads,
                   .head_dim = geometry.head_dim,
                   .capacity = kDecodeSegmentTokens,
                   .dtype = geometry.format.prompt,
                   .rounds_to_eight_bits = geometry.format.token == kEightBitTokens};
  for (uint32_t layer = 0; layer < geometry.num_layers; ++layer) {
    RETURN_IF_ERROR(ops_.attention().ReadDense(background_, {.pool = pool,
                                                             .layer = layer,
                                                             .block_ids = device_ids,
                                                             .num_tokens = kDecodeSegmentTokens,
                                                             .out = kv}));
    RETURN_IF_ERROR(BuildRows(segment, ticket, layer, kv, 0));
  }
  return absl::OkStatus();
}

absl::Status SegmentBuilder::Seal(Ticket ticket) {
  OpenSegment& segment = Get(ticket);
  const size_t index = static_cast<size_t>(ticket);
  RETURN_IF_ERROR(device_.Download(
      background_, page_counters_.bytes().subspan(index * sizeof(uint32_t), sizeof(uint32_t)),
      host_used_pages_.bytes().subspan(index * sizeof(uint32_t), sizeof(uint32_t))));
  RETURN_IF_ERROR(background_.Record(*segment.done));
  segment.is_sealed = true;
  return absl::OkStatus();
}

absl::StatusOr<std::optional<BuiltSegment>> SegmentBuilder::PollDone(Ticket ticket) {
  OpenSegment& segment = Get(ticket);
  if (!segment.is_sealed) return std::nullopt;
  ASSIGN_OR_RETURN(const bool is_done, device_.IsDone(*segment.done));
  if (!is_done) return std::nullopt;
  const uint32_t used_pages = host_used_pages_.as<uint32_t>()[static_cast<size_t>(ticket)];
  const KvRegion region = RegionOf(segment.target.num_tokens);
  const size_t page_bytes = meta_pool_.geometry.page_bytes();
  if (limits_.heads.is_first()) {
    WriteHeader(segment, is_divided() ? LayoutOf(segment.target.num_tokens).max_pages : used_pages);
  }
  segment.is_open = false;
  ++num_built_;
  bytes_written_ +=
      (limits_.heads.is_first() ? used_pages : used_pages - region.begin) * page_bytes;
  return BuiltSegment{.first_kv_page = region.begin, .used_pages = used_pages};
}

absl::Status SegmentBuilder::Abandon(Ticket ticket) {
  Get(ticket).is_open = false;
  return absl::OkStatus();
}

// The header comes last: an extent whose construction was cut short has none.
void SegmentBuilder::WriteHeader(const OpenSegment& segment, uint32_t used_pages) {
  const SegmentTarget& target = segment.target;
  const KvGeometry geometry = limits_.heads.ArenaOf(meta_pool_.geometry);
  const SegmentLayout layout(geometry, target.num_tokens);
  std::byte* extent = arena_.host.data() + target.extent.first_page * layout.page_bytes;
  std::memset(extent + layout.index_end, 0,
              layout.tail_page * layout.page_bytes - layout.index_end);
  std::memset(extent, 0, layout.page_bytes);
  const SegmentHeader header{.magic = kSegmentMagic,
                             .version = SegmentVersionOf(geometry),
                             .num_tokens = target.num_tokens,
                             .num_clusters = layout.num_clusters,
                             .num_layers = geometry.num_layers,
                             .num_kv_heads = geometry.num_kv_heads,
                             .head_dim = geometry.head_dim,
                             .format = static_cast<uint32_t>(geometry.format.id),
                             .used_pages = used_pages,
                             .token_begin = static_cast<uint64_t>(target.token_begin),
                             .num_window_layers = geometry.num_window_layers,
                             .window_tokens = geometry.window_tokens};
  std::memcpy(extent, &header, sizeof(header));
}

}  // namespace retroinfer
