#include "gpu_worker/ops/index/cpu/load_segment_index.h"

#include <algorithm>
#include <cstring>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/cpu/cpu_kv_format.h"
#include "gpu_worker/ops/index/load_segment_index_check.h"

namespace retroinfer::cpu {
namespace {

void LoadHead(const LoadSegmentIndexArgs& args, uint32_t head) {
  const KvGeometry& geometry = args.pool.geometry;
  const KvHeadRange heads = args.heads.Of(geometry);
  const SegmentLayout layout(heads.ArenaOf(geometry), args.num_tokens);
  const size_t run = size_t{args.layer} * heads.total + heads.first + head;
  const std::byte* extent = args.extent.device_data();
  const uint32_t per_page = geometry.tokens_per_page();
  const uint64_t extent_pages = args.extent.size() / layout.page_bytes;
  const auto* entries = reinterpret_cast<const ClusterEntry*>(extent + layout.clusters_offset) +
                        run * layout.num_clusters;
  const std::byte* centroids = extent + layout.centroids_offset + run * layout.centroids_bytes;
  const std::byte* value_sums = extent + layout.value_sums_offset + run * layout.value_sums_bytes;
  const size_t centroids_bytes = MetaPoolView::CentroidsBytes(geometry);
  const size_t value_sums_bytes = MetaPoolView::ValueSumsBytes(geometry);
  const std::byte* codes = extent + layout.codes_offset + run * layout.codes_bytes;
  const size_t codes_bytes = TokenCodeLayout(geometry.format, geometry.head_dim).bytes;
  uint32_t first_code =
      0;  // of the segment's; every entry counts, at most as one that is too large
  for (size_t i = 0; i < args.meta_blocks.size(); ++i) {
    const MetaBlockId id = args.meta_blocks.device_data()[i];
    std::memcpy(args.pool.Centroids(id, args.layer, head), centroids + i * centroids_bytes,
                centroids_bytes);
    std::memcpy(args.pool.ValueSums(id, args.layer, head), value_sums + i * value_sums_bytes,
                value_sums_bytes);
    MetaEntry* to = args.pool.Entries(id, args.layer, head);
    for (uint32_t j = 0; j < kClustersPerMetaBlock; ++j) {
      const ClusterEntry entry = entries[i * kClustersPerMetaBlock + j];
      const ClusterPlace place(entry.first_place, geometry.places_per_page());
      const bool fits =
          entry.num_tokens > 0 && entry.num_tokens <= args.num_tokens &&
          (codes_bytes == 0 || first_code + entry.num_tokens <= args.num_tokens) &&
          place.first_page + place.NumPages(entry.num_tokens, per_page) <= extent_pages;
      to[j] =
          fits ? MetaEntry{args.extent_first_page * geometry.places_per_page() + entry.first_place,
                           entry.num_tokens, entry.radius}
               : MetaEntry{0, 0, 0.0f};
      if (codes_bytes == 0) continue;
      args.pool.FirstCodes(id, args.layer, head)[j] =
          static_cast<int32_t>(first_code) - static_cast<int32_t>(i * kDecodeSegmentTokens);
      first_code += std::min(entry.num_tokens, args.num_tokens + 1);
    }
    if (codes_bytes == 0) continue;
    std::memcpy(args.pool.Codes(id, args.layer, head), codes + i * codes_bytes, codes_bytes);
  }
}

}  // namespace

absl::Status LoadSegmentIndex(CpuStream& stream, const LoadSegmentIndexArgs& args) {
  RETURN_IF_ERROR(CheckLoadSegmentIndex(args));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.pool.geometry.format));
  return stream.Launch([args](ThreadPool& pool) {
    pool.ParallelFor(args.pool.geometry.num_kv_heads,
                     [&](int64_t head) { LoadHead(args, static_cast<uint32_t>(head)); });
  });
}

}  // namespace retroinfer::cpu
