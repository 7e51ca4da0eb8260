#include "tests/support/timed_block_cache.h"

#include <sys/mman.h>

#include <algorithm>

#include "common/log/check.h"
#include "tests/support/tend_cache.h"

namespace retroinfer::test_support {
namespace {

constexpr uint32_t kClustersOfBlock = kClustersPerMetaBlock;

// Memory that costs something only where it is written. Lives as long as the program.
std::span<std::byte> Reserve(size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  RI_CHECK(memory != MAP_FAILED);
  return {static_cast<std::byte*>(memory), bytes};
}

KvGeometry GeometryOf(const DrawnPageUse& use) {
  return {use.num_layers(), DrawnPageUse::kHeads, 64, kBf16Kv};
}

uint32_t BlocksOf(const DrawnPageUse& use) {
  return (use.num_clusters() + kClustersOfBlock - 1) / kClustersOfBlock;
}

}  // namespace

TimedBlockCache::TimedBlockCache(const DrawnPageUse& use, const Options& options)
    : use_(use),
      options_(options),
      scale_(static_cast<double>(use.num_layers()) / options.times.num_layers),
      num_slots_(static_cast<uint32_t>(options.cache_share * use.num_pages())),
      backend_(AvailableBackends()[0].create()),
      plane_memory_(num_slots_, DataPlane::LogCapacityFor(num_slots_),
                    DataPlane::RequestCapacityFor(num_slots_), use.num_pages()),
      plane_(plane_memory_.view()),
      arena_(Reserve(use.num_pages() * kModelledPageBytes)),
      pool_bytes_(
          Reserve(MetaPoolView::BlockBytes(GeometryOf(use)) * BlocksOf(use) * use.num_sequences())),
      lru_(use.num_pages(), num_slots_) {
  auto cache = BlockCache::Create(
      *backend_->device, backend_->ops->block_cache(), *backend_->stream,
      {.num_slots = num_slots_, .page_bytes = kModelledPageBytes}, arena_, plane_memory_.bytes());
  RI_CHECK(cache.ok());
  cache_ = *std::move(cache);
  store_ = std::make_unique<kvstore::DataPlaneServer>(
      plane_memory_.view(), kvstore::DataPlaneServer::Options{
                                .watermarks = options.watermarks,
                                .entries_per_round = static_cast<uint32_t>(Scaled(1u << 16)),
                                .slots_per_round = static_cast<uint32_t>(Scaled(1u << 18))});
  MakeIndexes();
  FillSlots();
}

TimedBlockCache::~TimedBlockCache() {
  cache_.reset();
  ::munmap(arena_.data(), arena_.size());
  ::munmap(pool_bytes_.data(), pool_bytes_.size());
}

MetaPoolView TimedBlockCache::pool() const {
  return {DeviceSpan<std::byte>(pool_bytes_.data(), pool_bytes_.size()), GeometryOf(use_)};
}

void TimedBlockCache::MakeIndexes() {
  const uint32_t blocks = BlocksOf(use_);
  const uint32_t per_page = GeometryOf(use_).tokens_per_page();
  block_ids_.resize(size_t{blocks} * use_.num_sequences());
  for (size_t i = 0; i < block_ids_.size(); ++i) block_ids_[i] = static_cast<MetaBlockId>(i);
  for (uint32_t sequence = 0; sequence < use_.num_sequences(); ++sequence) {
    const MetaBlockId* ids = block_ids_.data() + size_t{sequence} * blocks;
    indexes_.push_back({ids, static_cast<int32_t>(blocks)});
    for (uint32_t cluster = 0; cluster < use_.num_clusters(); ++cluster) {
      for (uint32_t layer = 0; layer < use_.num_layers(); ++layer) {
        for (uint32_t head = 0; head < DrawnPageUse::kHeads; ++head) {
          const auto pages = use_.PagesOf(sequence, layer, head, cluster);
          pool().Entries(ids[cluster / kClustersOfBlock], layer,
                         head)[cluster % kClustersOfBlock] = {pages.first, pages.count * per_page,
                                                              0};
        }
      }
    }
  }
  const size_t rows = size_t{use_.num_sequences()} * DrawnPageUse::kHeads;
  retrieved_.resize(rows * use_.num_retrieved());
  num_retrieved_.assign(rows, static_cast<int32_t>(use_.num_retrieved()));
  num_pages_.resize(rows);
  refs_.resize(rows * use_.num_retrieved() * use_.max_pages_of_cluster());
}

// As prompts leave it: the first pages of contexts in slots while there are any.
void TimedBlockCache::FillSlots() {
  for (uint32_t sequence = 0; sequence < use_.num_sequences(); ++sequence) {
    const auto ticket = cache_->BeginFill(use_.pages_of_sequence());
    RI_CHECK(ticket.ok());
    if (*ticket == BlockCache::kNoFill) break;
    cache_->EndFill(*ticket, sequence * use_.pages_of_sequence(), use_.pages_of_sequence());
    for (int i = 0; i < 2; ++i) RI_CHECK(Tend(*cache_).ok());
    while (store_->RunOnce()) {
      if (plane_.log().Depth() == 0) break;
    }
  }
  const auto page_slot = cache_->view().page_slot;
  for (PageId page = 0; page < use_.num_pages(); ++page) {
    if (page_slot.device_data()[page] != kNoSlot) lru_.Use(page);
  }
}

void TimedBlockCache::Step() {
  if (hidden_head_.has_value() && store_ms_ <= worker_ms_) hidden_head_.reset();
  auto& head =
      reinterpret_cast<DataPlaneControl*>(plane_memory_.bytes().data())->request_head.value;
  const uint64_t written = head.load();
  if (hidden_head_.has_value()) head.store(*hidden_head_);
  RI_CHECK(Tend(*cache_).ok());
  head.store(written);
  RI_CHECK(cache_->BeginStep().ok());
  const uint64_t published = plane_.stamp_control().published.value.load();
  const double stamps = static_cast<double>(published - last_published_) * num_slots_;
  last_published_ = published;
  const double step_ms =
      Scaled(options_.times.step_ms) +
      1e-6 * (options_.times.miss_ns * last_misses_ + options_.times.stamp_ns * stamps);
  const uint64_t misses = cache_->counters()->misses;
  for (uint32_t layer = 0; layer < use_.num_layers(); ++layer) {
    worker_ms_ += step_ms / use_.num_layers();
    RunStoreUntil(worker_ms_);
    LookUp(layer);
  }
  last_misses_ = static_cast<double>(cache_->counters()->misses - misses);
  total_.model_ms += step_ms;
  if (*cache_->view().num_free == 0) ++total_.steps_without_free_slots;
  ++total_.steps;
  ++step_;
}

void TimedBlockCache::LookUp(uint32_t layer) {
  size_t row = 0;
  for (uint32_t sequence = 0; sequence < use_.num_sequences(); ++sequence) {
    for (uint32_t head = 0; head < DrawnPageUse::kHeads; ++head, ++row) {
      const std::vector<int32_t> clusters = use_.Retrieved(sequence, layer, head, step_);
      std::copy(clusters.begin(), clusters.end(),
                retrieved_.begin() + static_cast<ptrdiff_t>(row * use_.num_retrieved()));
      for (const int32_t cluster : clusters) {
        const auto pages = use_.PagesOf(sequence, layer, head, static_cast<uint32_t>(cluster));
        total_.lookups += pages.count;
        for (uint32_t i = 0; i < pages.count; ++i) {
          total_.lru_hits += lru_.Use(pages.first + i) ? 1 : 0;
        }
      }
    }
  }
  const auto span = [](auto& values) { return DeviceSpan(values.data(), values.size()); };
  const auto const_span = [](const auto& values) {
    return DeviceSpan(values.data(), values.size());
  };
  BlockCacheOps& ops = backend_->ops->block_cache();
  RI_CHECK(ops.PageLookup(*backend_->stream,
                          {.cache = cache_->view(),
                           .counters = cache_->counters(),
                           .pool = pool(),
                           .layer = layer,
                           .indexes = const_span(indexes_),
                           .batch = static_cast<int32_t>(use_.num_sequences()),
                           .num_kv_heads = DrawnPageUse::kHeads,
                           .retrieved = span(retrieved_),
                           .num_retrieved = span(num_retrieved_),
                           .max_retrieved = use_.num_retrieved(),
                           .max_pages = int64_t{use_.num_retrieved()} * use_.max_pages_of_cluster(),
                           .pages = span(refs_),
                           .num_pages = span(num_pages_)})
               .ok());
  RI_CHECK(
      ops.AdmitPages(*backend_->stream, {.cache = cache_->view(), .counters = cache_->counters()})
          .ok());
}

void TimedBlockCache::RunStoreUntil(double ms) {
  while (store_ms_ <= ms) RunStore();
}

void TimedBlockCache::RunStore() {
  auto& head =
      reinterpret_cast<DataPlaneControl*>(plane_memory_.bytes().data())->request_head.value;
  const uint64_t head_before = head.load();
  const kvstore::DataPlaneStats before = store_->stats();
  const bool worked = store_->RunOnce();
  const kvstore::DataPlaneStats after = store_->stats();
  const auto times = [](uint64_t from, uint64_t to, double ns) {
    return static_cast<double>(to - from) * ns * 1e-6;
  };
  const uint64_t kept = after.evictions_kept - before.evictions_kept;
  const uint64_t posted = after.requests_posted - before.requests_posted;
  // Work on fewer entries takes less time: only what does not depend on them is scaled.
  const double busy =
      times(before.entries_replayed + kept, after.entries_replayed, options_.times.entry_ns) +
      times(0, kept, options_.times.kept_ns) + times(0, posted, options_.times.request_ns) +
      times(before.slots_examined, after.slots_examined, options_.times.slot_ns);
  hidden_head_ = head_before;
  total_.store_ms += busy;
  store_ms_ += worked ? busy + Scaled(1e-3) : Scaled(options_.times.sleep_ms);
}

TimedBlockCache::Interval TimedBlockCache::Take() {
  total_.counters = *cache_->counters();
  total_.store = store_->stats();
  Interval interval = total_;
  interval.steps -= since_.steps;
  interval.lookups -= since_.lookups;
  interval.lru_hits -= since_.lru_hits;
  interval.steps_without_free_slots -= since_.steps_without_free_slots;
  interval.model_ms -= since_.model_ms;
  interval.store_ms -= since_.store_ms;
  interval.counters.hits -= since_.counters.hits;
  interval.counters.misses -= since_.counters.misses;
  interval.counters.admissions -= since_.counters.admissions;
  interval.counters.transients -= since_.counters.transients;
  interval.counters.evictions -= since_.counters.evictions;
  interval.counters.evictions_kept -= since_.counters.evictions_kept;
  since_ = total_;
  return interval;
}

}  // namespace retroinfer::test_support
