#include "bench/support/wave_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>
#include <utility>

#include "bench/support/must.h"
#include "common/kv/segment_layout.h"
#include "gpu_worker/wave_index/retrieval_quality.h"

namespace retroinfer::bench {
namespace {

constexpr uint32_t kTransientSlotsPerRow = 2048;  // as the memory plan has it

// Host memory of the size of the arena. Never unmapped: the program ends with it.
std::span<std::byte> MapArena(size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) Fail("no " + std::to_string(bytes) + " bytes of host memory");
  (void)::madvise(memory, bytes, MADV_HUGEPAGE);
  return {static_cast<std::byte*>(memory), bytes};
}

}  // namespace

WaveMemory::WaveMemory(test_support::Backend& backend, Sizes sizes)
    : backend_(backend), sizes_(std::move(sizes)) {
  uint64_t pages = 0;
  int64_t meta_blocks = sizes_.more_meta_blocks;
  for (const uint32_t tokens : sizes_.segment_tokens) {
    pages += SegmentLayout(sizes_.geometry, tokens).max_pages;
    meta_blocks += tokens / kDecodeSegmentTokens;
  }
  pages = std::max<uint64_t>(pages, 64);
  num_slots_ =
      static_cast<uint32_t>(std::max(64.0, static_cast<double>(pages) * sizes_.cache_share));
  arena_ = MapArena(pages * kPageBytes);
  plane_ = std::make_unique<test_support::DataPlaneMemory>(
      num_slots_, DataPlane::LogCapacityFor(num_slots_), DataPlane::RequestCapacityFor(num_slots_),
      pages);
  uint32_t num_transient = 0;
  if (backend.ops->block_cache().uses_transient_slots()) {
    num_transient = kTransientSlotsPerRow * static_cast<uint32_t>(sizes_.max_batch);
  }
  cache_ = Must(BlockCache::Create(*backend.device, backend.ops->block_cache(), *backend.stream,
                                   {.num_slots = num_slots_, .num_transient = num_transient},
                                   arena_, plane_->bytes()));
  store_ = std::make_unique<kvstore::DataPlaneServer>(
      plane_->view(), kvstore::DataPlaneServer::Options{.watermarks = sizes_.watermarks});
  Must(store_->Start());
  memory_ = Must(KvMemory::Create(*backend.device,
                                  {.geometry = sizes_.geometry,
                                   .dense_blocks = sizes_.dense_blocks,
                                   .meta_blocks = std::max(1, static_cast<int32_t>(meta_blocks)),
                                   .max_sequences = sizes_.max_batch,
                                   .max_model_len = sizes_.max_model_len}));
}

std::unique_ptr<FullPolicy> WaveMemory::CreateFullPolicy() {
  return Must(FullPolicy::Create(*backend_.device, backend_.ops->attention(), *backend_.stream,
                                 memory_->dense_pool(), memory_->tables(), sizes_.stretches,
                                 sizes_.num_query_heads, sizes_.max_batch));
}

std::unique_ptr<WavePolicy> WaveMemory::CreateWavePolicy(RetrievalObserver* observer) {
  Device& device = *backend_.device;
  Ops& ops = *backend_.ops;
  const RetrievalShare share = RetrievalFor(RetrievalQuality::kStandard, sizes_.geometry.format);
  const WaveIndexSettings index{.dense_below = sizes_.dense_below,
                                .candidate_ratio = share.candidate_ratio,
                                .min_candidates = share.min_candidates};
  SequenceSegments::Parts parts{.device = &device,
                                .ops = &ops.index(),
                                .stream = backend_.stream.get(),
                                .memory = memory_.get(),
                                .cache = cache_.get(),
                                .stretches = sizes_.stretches};
  parts.builder = Must(SegmentBuilder::Create(
      device, ops, *backend_.background, memory_->meta_pool(),
      {.host = arena_, .device = cache_->device_arena()}, index,
      {.max_open_segments =
           static_cast<int32_t>(sizes_.segment_tokens.size()) + sizes_.max_batch}));
  auto decode = Must(WaveDecode::Create(device, ops, *backend_.stream, *cache_,
                                        memory_->dense_pool(), memory_->meta_pool(),
                                        {.num_query_heads = sizes_.num_query_heads,
                                         .max_batch = sizes_.max_batch,
                                         .max_tokens = sizes_.max_model_len,
                                         .radius_weight = index.radius_weight}));
  parts.on_built = [](const SequenceKv&, size_t, int64_t) {};
  segments_ = Must(SequenceSegments::Create(index, std::move(parts)));
  return Must(WavePolicy::Create(sizes_.max_batch, {.device = &device,
                                                    .ops = &ops.attention(),
                                                    .stream = backend_.stream.get(),
                                                    .memory = memory_.get(),
                                                    .segments = segments_.get(),
                                                    .decode = std::move(decode),
                                                    .observer = observer}));
}

PageId WaveMemory::Reserve(const KvNeed& need, PageId first_page, SequenceKv& kv) {
  if (!memory_->Reserve(need, kv)) Fail("the KV memory is too small");
  for (const uint32_t tokens : need.segment_tokens) {
    const uint32_t pages = SegmentLayout(sizes_.geometry, tokens).max_pages;
    kv.extents.push_back({next_extent_++, first_page, pages, tokens});
    first_page += pages;
  }
  return first_page;
}

BlockCacheStats WaveMemory::CacheStats() { return Must(cache_->StatsNow()); }

}  // namespace retroinfer::bench
