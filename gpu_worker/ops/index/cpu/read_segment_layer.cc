// Invariant: the order table is walked in step with the pages, cluster by cluster, so that its i-th
// index belongs to the i-th token of the pages.
#include "gpu_worker/ops/index/cpu/read_segment_layer.h"

#include "common/status/status_macros.h"
#include "gpu_worker/ops/cpu/cpu_kv_format.h"
#include "gpu_worker/ops/cpu/token_vectors.h"
#include "gpu_worker/ops/index/read_segment_layer_check.h"

namespace retroinfer::cpu {
namespace {

void ReadHead(const ReadSegmentLayerArgs& args, uint32_t head) {
  const KvGeometry& geometry = args.geometry;
  const KvHeadRange heads = args.heads.Of(geometry);
  const SegmentLayout layout(heads.ArenaOf(geometry), args.num_tokens);
  const size_t run = size_t{args.layer} * heads.total + heads.first + head;
  const PageLayout page_layout = geometry.page();
  const size_t vector_bytes = page_layout.vector_bytes;
  const VectorFormat& format = geometry.format.token;
  const uint32_t per_page = page_layout.tokens;
  const std::byte* extent = args.extent.device_data();
  const uint64_t extent_pages = args.extent.size() / page_layout.bytes;
  const auto* entries = reinterpret_cast<const ClusterEntry*>(extent + layout.clusters_offset) +
                        run * layout.num_clusters;
  const auto* order =
      reinterpret_cast<const TokenOrder*>(extent + layout.order_offset) + run * args.num_tokens;
  uint32_t num_read = 0;
  for (uint32_t c = 0; c < layout.num_clusters; ++c) {
    const ClusterEntry entry = entries[c];
    const ClusterPlace place(entry.first_place, geometry.places_per_page());
    if (entry.num_tokens > args.num_tokens - num_read ||
        place.first_page + place.NumPages(entry.num_tokens, per_page) > extent_pages) {
      return;
    }
    const std::byte* page = extent + place.first_page * page_layout.bytes;
    for (uint32_t i = 0; i < entry.num_tokens; ++i) {
      const TokenOrder index = order[num_read + i];
      if (index >= args.num_tokens) continue;
      const uint32_t at = place.skipped + i;
      const std::byte* key =
          page + at / per_page * page_layout.bytes + at % per_page * vector_bytes;
      UnpackToken(key, format, geometry.head_dim, args.out.Key(head, args.first_token + index));
      UnpackToken(key + page_layout.values_offset, format, geometry.head_dim,
                  args.out.Value(head, args.first_token + index));
    }
    num_read += entry.num_tokens;
  }
}

}  // namespace

absl::Status ReadSegmentLayer(CpuStream& stream, const ReadSegmentLayerArgs& args) {
  RETURN_IF_ERROR(CheckReadSegmentLayer(args));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.geometry.format));
  return stream.Launch([args](ThreadPool& pool) {
    pool.ParallelFor(args.geometry.num_kv_heads,
                     [&](int64_t head) { ReadHead(args, static_cast<uint32_t>(head)); });
  });
}

}  // namespace retroinfer::cpu
