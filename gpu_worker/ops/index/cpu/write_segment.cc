// Invariants:
// * The clusters of (layer, head) take consecutive pages in cluster order; heads follow each other.
//   First pages are running sums of ceil(size / tokens_per_page), so no two clusters overlap; first
//   places of packed clusters are running sums of sizes.
// * Tokens keep their order inside a cluster; the order table says which token went where.
// * Codes are made against the centroids as they were stored.
#include "gpu_worker/ops/index/cpu/write_segment.h"

#include <cstring>
#include <vector>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/cpu/convert.h"
#include "gpu_worker/ops/cpu/cpu_kv_format.h"
#include "gpu_worker/ops/cpu/store_vectors.h"
#include "gpu_worker/ops/cpu/token_codes.h"
#include "gpu_worker/ops/cpu/token_vectors.h"
#include "gpu_worker/ops/index/write_segment_check.h"

namespace retroinfer::cpu {
namespace {

// Scratch of one head: where each cluster begins, in the extent and in tokens, and how many of its
// tokens are written.
struct HeadScratch {
  uint32_t* first_place;  // [m], from the start of the extent
  uint32_t* first_token;  // [m], in page order
  uint32_t* num_written;  // [m]
};

SegmentLayout LayoutOf(const WriteSegmentArgs& args) {
  return {args.heads.ArenaOf(args.geometry), static_cast<uint32_t>(args.num_tokens)};
}

// Which of the (layer, head) of the extent it is.
size_t RunOf(const WriteSegmentArgs& args, uint32_t head) {
  const KvHeadRange heads = args.heads.Of(args.geometry);
  return size_t{args.layer} * heads.total + heads.first + head;
}

HeadScratch ScratchOf(const WriteSegmentArgs& args, uint32_t head) {
  const size_t m = static_cast<size_t>(args.num_clusters);
  auto* base = reinterpret_cast<uint32_t*>(args.scratch.device_data()) + head * 3 * m;
  return {base, base + m, base + 2 * m};
}

// Gives the clusters of every head their pages, from *next_page on, which is advanced.
void PlacePages(const WriteSegmentArgs& args) {
  const uint32_t per_page = args.geometry.places_per_page();
  uint32_t place = *args.next_page * per_page;
  for (uint32_t head = 0; head < args.geometry.num_kv_heads; ++head) {
    const HeadScratch scratch = ScratchOf(args, head);
    const int32_t* sizes = args.sizes.device_data() + int64_t{head} * args.num_clusters;
    uint32_t token = 0;
    for (int32_t i = 0; i < args.num_clusters; ++i) {
      const auto size = static_cast<uint32_t>(sizes[i]);
      scratch.first_place[i] = place;
      scratch.first_token[i] = token;
      scratch.num_written[i] = 0;
      place += args.geometry.format.packs_clusters ? size : args.geometry.pages_of(size);
      token += size;
    }
  }
  const uint32_t page = place / per_page;
  const KvRegion region = LayoutOf(args).RegionOf(args.heads.Of(args.geometry));
  RI_CHECK(page <= region.end);
  *args.next_page = page;
  if (!args.zero_rest) return;
  const size_t page_bytes = args.geometry.page_bytes();
  std::memset(args.extent.device_data() + page * page_bytes, 0, (region.end - page) * page_bytes);
}

void WriteTokens(const WriteSegmentArgs& args, uint32_t head, const HeadScratch& scratch) {
  const PageLayout page = args.geometry.page();
  const uint32_t per_page = page.tokens;
  const size_t vector_bytes = page.vector_bytes;
  const VectorFormat& format = args.geometry.format.token;
  const int32_t* assignment = args.assignment.device_data() + int64_t{head} * args.num_tokens;
  std::byte* extent = args.extent.device_data();
  auto* order = reinterpret_cast<TokenOrder*>(extent + LayoutOf(args).order_offset) +
                RunOf(args, head) * static_cast<size_t>(args.num_tokens);
  const auto place_of = [&](int32_t cluster, uint32_t index) {
    const ClusterPlace place(scratch.first_place[cluster], args.geometry.places_per_page());
    const uint32_t at = place.skipped + index;
    return extent + (place.first_page + at / per_page) * page.bytes + at % per_page * vector_bytes;
  };
  for (int32_t i = 0; i < args.num_tokens; ++i) {
    const int32_t cluster = assignment[i];
    const uint32_t index = scratch.num_written[cluster]++;
    order[scratch.first_token[cluster] + index] = static_cast<TokenOrder>(i);
    std::byte* to = place_of(cluster, index);
    PackToken(args.kv.Key(head, args.first_token + i), format, args.kv.head_dim, to);
    PackToken(args.kv.Value(head, args.first_token + i), format, args.kv.head_dim,
              to + page.values_offset);
  }
  if (args.geometry.format.packs_clusters) return;
  for (int32_t cluster = 0; cluster < args.num_clusters; ++cluster) {
    const uint32_t size = scratch.num_written[cluster];
    const uint32_t num_unused = (per_page - size % per_page) % per_page;
    if (num_unused == 0) continue;
    std::memset(place_of(cluster, size), 0, num_unused * vector_bytes);
    std::memset(place_of(cluster, size) + page.values_offset, 0, num_unused * vector_bytes);
  }
}

// Copies the pages of one head to the slots that were taken for them.
void FillSlots(const WriteSegmentArgs& args, const HeadScratch& scratch) {
  if (args.fill.slots.empty()) return;
  const SegmentLayout layout = LayoutOf(args);
  const uint32_t first_kv_page = layout.RegionOf(args.heads.Of(args.geometry)).begin;
  const uint32_t num_slots = args.fill.list.head->num_slots;
  const int32_t last = args.num_clusters - 1;
  const auto place_of = [&](int32_t cluster) {
    return ClusterPlace(scratch.first_place[cluster], args.geometry.places_per_page());
  };
  const uint64_t end =
      place_of(last).first_page +
      place_of(last).NumPages(scratch.num_written[last], args.geometry.tokens_per_page());
  for (uint32_t page = place_of(0).first_page; page < end; ++page) {
    const uint32_t index = page - first_kv_page;
    if (index >= num_slots) return;
    const SlotId slot = args.fill.list.slots.device_data()[index];
    std::memcpy(args.fill.slots.device_data() + slot * layout.page_bytes,
                args.extent.device_data() + page * layout.page_bytes, layout.page_bytes);
  }
}

void WriteIndex(const WriteSegmentArgs& args, uint32_t head, const HeadScratch& scratch) {
  const SegmentLayout layout = LayoutOf(args);
  const size_t m = layout.num_clusters;
  const size_t d = args.geometry.head_dim;
  const KvFormat& format = args.geometry.format;
  const size_t run = RunOf(args, head);
  std::byte* extent = args.extent.device_data();
  auto* entries = reinterpret_cast<ClusterEntry*>(extent + layout.clusters_offset) + run * m;
  std::byte* centroids = extent + layout.centroids_offset + run * layout.centroids_bytes;
  std::byte* value_sums = extent + layout.value_sums_offset + run * layout.value_sums_bytes;
  for (size_t i = 0; i < m; ++i) {
    const uint32_t size = scratch.num_written[i];
    entries[i] = size == 0 ? ClusterEntry{0, 0, 0.0f}
                           : ClusterEntry{scratch.first_place[i], size,
                                          args.radii.device_data()[head * m + i]};
  }
  const size_t centroids_bytes = MetaPoolView::CentroidsBytes(args.geometry);
  const size_t value_sums_bytes = MetaPoolView::ValueSumsBytes(args.geometry);
  for (size_t i = 0; i < m / kClustersPerMetaBlock; ++i) {
    const size_t first = (head * m + i * kClustersPerMetaBlock) * d;
    StoreVectors(args.centroids.device_data() + first, format.centroid, kClustersPerMetaBlock,
                 args.geometry.head_dim, centroids + i * centroids_bytes);
    StoreVectors(args.value_sums.device_data() + first, format.value_sum, kClustersPerMetaBlock,
                 args.geometry.head_dim, value_sums + i * value_sums_bytes);
    const MetaBlockId id = args.meta_blocks.device_data()[i];
    std::memcpy(args.pool.Centroids(id, args.layer, head), centroids + i * centroids_bytes,
                centroids_bytes);
    std::memcpy(args.pool.ValueSums(id, args.layer, head), value_sums + i * value_sums_bytes,
                value_sums_bytes);
    MetaEntry* to = args.pool.Entries(id, args.layer, head);
    for (uint32_t j = 0; j < kClustersPerMetaBlock; ++j) {
      const ClusterEntry& entry = entries[i * kClustersPerMetaBlock + j];
      to[j] = entry.num_tokens == 0
                  ? MetaEntry{0, 0, 0.0f}
                  : MetaEntry{args.extent_first_page * args.geometry.places_per_page() +
                                  entry.first_place,
                              entry.num_tokens, entry.radius};
    }
  }
}

// Numbers of vector `place` of 64 in int8, with their scales behind them.
void ReadInt8Vector(const std::byte* vectors, uint32_t place, uint32_t head_dim, float* out) {
  const auto* const elements = reinterpret_cast<const int8_t*>(vectors) + size_t{place} * head_dim;
  const std::byte* const scales =
      vectors + kInt8Vectors.ScalesOffset(kClustersPerMetaBlock, head_dim);
  float scale = 0;
  ConvertToF32(kInt8Vectors.scale, scales + place * DTypeBytes(kInt8Vectors.scale), &scale, 1);
  for (uint32_t i = 0; i < head_dim; ++i) out[i] = static_cast<float>(elements[i]) * scale;
}

// Writes the codes of one head's tokens in page order, and where each cluster's begin.
void WriteCodes(const WriteSegmentArgs& args, uint32_t head, const HeadScratch& scratch) {
  const KvGeometry& geometry = args.geometry;
  const TokenCodeLayout codes(geometry.format, geometry.head_dim);
  if (codes.bytes == 0) return;
  RI_CHECK(geometry.format.centroid == kInt8Vectors);
  const SegmentLayout layout = LayoutOf(args);
  const size_t run = RunOf(args, head);
  std::byte* const image =
      args.extent.device_data() + layout.codes_offset + run * layout.codes_bytes;
  for (uint32_t cluster = 0; cluster < layout.num_clusters; ++cluster) {
    const uint32_t block = cluster / kClustersPerMetaBlock;
    const MetaBlockId id = args.meta_blocks.device_data()[block];
    args.pool.FirstCodes(id, args.layer, head)[cluster % kClustersPerMetaBlock] =
        static_cast<int32_t>(scratch.first_token[cluster]) -
        static_cast<int32_t>(block * kDecodeSegmentTokens);
    scratch.num_written[cluster] = 0;
  }
  const size_t dim = geometry.head_dim;
  std::vector<float> centroid(dim), residual(dim);
  const int32_t* assignment = args.assignment.device_data() + int64_t{head} * args.num_tokens;
  for (int32_t token = 0; token < args.num_tokens; ++token) {
    const auto cluster = static_cast<uint32_t>(assignment[token]);
    const MetaBlockId id = args.meta_blocks.device_data()[cluster / kClustersPerMetaBlock];
    ReadInt8Vector(args.pool.Centroids(id, args.layer, head), cluster % kClustersPerMetaBlock,
                   geometry.head_dim, centroid.data());
    ConvertToF32(args.kv.dtype, args.kv.Key(head, args.first_token + token), residual.data(),
                 static_cast<int64_t>(dim));
    for (size_t i = 0; i < dim; ++i) residual[i] -= centroid[i];
    const uint32_t at = scratch.first_token[cluster] + scratch.num_written[cluster]++;
    std::byte* const of_block = image + at / kDecodeSegmentTokens * codes.bytes;
    const size_t place = at % kDecodeSegmentTokens;
    CodeResidual(residual, reinterpret_cast<uint8_t*>(of_block) + place * codes.code_bytes,
                 reinterpret_cast<TokenCodeFactors*>(of_block + codes.factors_offset)[place]);
  }
  for (size_t i = 0; i < args.meta_blocks.size(); ++i) {
    std::memcpy(args.pool.Codes(args.meta_blocks.device_data()[i], args.layer, head),
                image + i * codes.bytes, codes.bytes);
  }
}

}  // namespace

absl::Status WriteSegment(CpuStream& stream, const WriteSegmentArgs& args) {
  RETURN_IF_ERROR(CheckWriteSegment(args));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.geometry.format));
  return stream.Launch([args](ThreadPool& pool) {
    PlacePages(args);
    pool.ParallelFor(args.geometry.num_kv_heads, [&](int64_t head) {
      const HeadScratch scratch = ScratchOf(args, static_cast<uint32_t>(head));
      WriteTokens(args, static_cast<uint32_t>(head), scratch);
      FillSlots(args, scratch);
      WriteIndex(args, static_cast<uint32_t>(head), scratch);
      WriteCodes(args, static_cast<uint32_t>(head), scratch);
    });
  });
}

}  // namespace retroinfer::cpu
