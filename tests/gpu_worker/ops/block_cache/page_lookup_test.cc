#include "gpu_worker/ops/block_cache/page_lookup.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/support/backends.h"
#include "tests/support/block_cache_image.h"
#include "tests/support/meta_pool_image.h"

namespace retroinfer {
namespace {

using namespace test_support;

// One sequence, one KV head, four tokens a page. Cluster i begins at page 10 * i; cluster 1 has 5
// tokens, cluster 2 has 8, cluster 3 has 1.
class PageLookupTest : public testing::TestWithParam<BackendParam> {
 protected:
  static constexpr int64_t kMaxPages = 8;

  PageLookupTest() : pool_({1, 1, 128, kBf16Kv}, 1), indexes_(data_, {{0}}) {
    const uint32_t tokens[] = {0, 5, 8, 1};
    for (uint32_t i = 1; i < 4; ++i) pool_.host().Entries(0, 0, 0)[i] = {10 * i, tokens[i]};
    pool_view_ = pool_.Upload(data_);
  }

  // Looks up the clusters' pages, checks what the execution buffer refers to, and admits; returns
  // where the pages were.
  std::vector<const std::byte*> Lookup(BlockCacheImage& cache, StepStamp step,
                                       const std::vector<int32_t>& clusters,
                                       bool is_closed = false) {
    const std::vector<PageRef> got = Refs(cache, step, clusters, is_closed);
    std::vector<const std::byte*> places;
    for (const int32_t cluster : clusters) {
      const MetaEntry& entry = pool_.host().Entries(0, 0, 0)[cluster];
      PageId page = entry.first_place;
      for (uint32_t left = entry.num_tokens; left > 0; ++page) {
        const PageRef& ref = got.at(places.size());
        const uint32_t tokens = std::min(left, 4u);
        left -= tokens;
        EXPECT_EQ(ref.num_tokens, static_cast<int32_t>(tokens));
        EXPECT_EQ(PlaceInCluster(ref.origin), page - entry.first_place);
        const auto bytes =
            data_.Download<std::byte>(DeviceSpan<const std::byte>(ref.page, kPageBytes));
        EXPECT_TRUE(HasPattern(page, 0, bytes.data())) << "page " << page;
        places.push_back(ref.page);
      }
    }
    EXPECT_EQ(got.size(), places.size());
    Admit(cache);
    return places;
  }

  void Admit(BlockCacheImage& cache) {
    EXPECT_TRUE(backend_->ops->block_cache()
                    .AdmitPages(*backend_->stream,
                                {.cache = cache.view(), .counters = cache.device_counters()})
                    .ok());
    EXPECT_TRUE(backend_->stream->Synchronize().ok());
  }

  // The execution buffer of the clusters' pages.
  std::vector<PageRef> Refs(BlockCacheImage& cache, StepStamp step,
                            const std::vector<int32_t>& clusters, bool is_closed = false) {
    return RefsOf(pool_view_, cache, step, clusters, is_closed);
  }
  std::vector<PageRef> RefsOf(const MetaPoolView& pool, BlockCacheImage& cache, StepStamp step,
                              const std::vector<int32_t>& clusters, bool is_closed) {
    cache.BeginStep(step, is_closed);
    const DeviceBuffer retrieved = data_.Upload(clusters);
    const DeviceBuffer count =
        data_.Upload(std::vector<int32_t>{static_cast<int32_t>(clusters.size())});
    const DeviceBuffer refs = data_.Allocate(kMaxPages * sizeof(PageRef));
    const DeviceBuffer num_pages = data_.Upload(std::vector<int32_t>{-1});
    const absl::Status status = backend_->ops->block_cache().PageLookup(
        *backend_->stream, {.cache = cache.view(),
                            .counters = cache.device_counters(),
                            .pool = pool,
                            .layer = 0,
                            .indexes = indexes_.views(),
                            .batch = 1,
                            .num_kv_heads = 1,
                            .retrieved = retrieved.as<const int32_t>(),
                            .num_retrieved = count.as<const int32_t>(),
                            .max_retrieved = static_cast<int64_t>(clusters.size()),
                            .max_pages = kMaxPages,
                            .pages = refs.as<PageRef>(),
                            .num_pages = num_pages.as<int32_t>()});
    EXPECT_TRUE(status.ok()) << status;
    std::vector<PageRef> got = data_.Download<PageRef>(refs);
    got.resize(static_cast<size_t>(data_.Download<int32_t>(num_pages)[0]));
    return got;
  }

  std::vector<PageRef> PackedRefs(BlockCacheImage& cache, StepStamp step);
  void MissSamePages(const KvFormat& format);
  void LookUpMany(const KvFormat& format);

  static bool IsIn(const std::byte* place, DeviceSpan<const std::byte> memory) {
    return place >= memory.device_data() && place < memory.device_data() + memory.size();
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
  MetaPoolImage pool_;
  MetaIndexImage indexes_;
  MetaPoolView pool_view_;
};

TEST_P(PageLookupTest, MissesAreAdmittedAndLoggedThenHit) {
  BlockCacheImage cache(*backend_, 4, 4, 64, 64);
  Lookup(cache, 7, {1, 2});
  EXPECT_EQ(
      cache.DrainLog(),
      (std::vector<LogEntry>{Entry(LogKind::kAdmit, 10, 0, 7), Entry(LogKind::kAdmit, 11, 1, 7),
                             Entry(LogKind::kAdmit, 20, 2, 7), Entry(LogKind::kAdmit, 21, 3, 7)}));
  EXPECT_EQ(cache.stamps(), (std::vector<StepStamp>{7, 7, 7, 7}));

  const std::byte* slots = cache.view().slots.device_data();
  EXPECT_EQ(Lookup(cache, 9, {1}), (std::vector<const std::byte*>{slots, slots + kPageBytes}));
  EXPECT_TRUE(cache.DrainLog().empty());
  EXPECT_EQ(cache.stamps(), (std::vector<StepStamp>{9, 9, 7, 7}));
  const BlockCacheCounters counters = cache.counters();
  EXPECT_EQ(counters.hits, 2u);
  EXPECT_EQ(counters.misses, 4u);
  EXPECT_EQ(counters.admissions, 4u);
  EXPECT_EQ(counters.transients, 0u);
}

TEST_P(PageLookupTest, PagesWithoutASlotAreReadElsewhereEachTime) {
  BlockCacheImage cache(*backend_, 2, 2, 64, 64);
  Lookup(cache, 1, {1});
  for (int round = 0; round < 3; ++round) {
    for (const std::byte* place : Lookup(cache, 2, {2})) {
      EXPECT_TRUE(IsIn(place, cache.view().transient) || IsIn(place, cache.view().arena));
    }
  }
  EXPECT_EQ(cache.DrainLog().size(), 2u);
  EXPECT_EQ(cache.counters().transients, 6u);
  EXPECT_EQ(cache.page_slot()[20], kNoSlot);
}

TEST_P(PageLookupTest, ReadsTheArenaInPlaceWhenTransientSlotsRunOut) {
  BlockCacheImage cache(*backend_, 1, 1, 64, 64);
  Lookup(cache, 1, {2, 1, 3});
  EXPECT_EQ(cache.counters().transients, 4u);
  const auto places = Lookup(cache, 2, {2, 1, 3});
  EXPECT_TRUE(IsIn(places[0], cache.view().slots));
  EXPECT_FALSE(IsIn(places[1], cache.view().slots));
  for (size_t i = 2; i < places.size(); ++i) EXPECT_TRUE(IsIn(places[i], cache.view().arena));
}

// Every resident page must be able to leave without the store: its kRelease has to fit.
TEST_P(PageLookupTest, AdmitsOnlyWhileTheReleaseOfAllResidentPagesFitsIntoTheLog) {
  BlockCacheImage cache(*backend_, 16, 8, 64, 8);
  Lookup(cache, 1, {1, 2});  // 4 entries written, 4 left for 4 releases
  EXPECT_EQ(cache.num_free(), 12u);
  Lookup(cache, 2, {3});
  EXPECT_EQ(cache.num_free(), 12u);
  EXPECT_EQ(cache.counters().transients, 1u);
  EXPECT_EQ(cache.DrainLog().size(), 4u);
  Lookup(cache, 3, {3});
  EXPECT_EQ(cache.num_free(), 11u);
  EXPECT_EQ(cache.DrainLog(), (std::vector<LogEntry>{Entry(LogKind::kAdmit, 30, 4, 3)}));
}

// Cluster 1 has pages 10 and 11, cluster 2 has 20 and 21, cluster 3 has 30.
TEST_P(PageLookupTest, AbsentPagesAreListedOnceAndNeitherFoundNorAdmitted) {
  BlockCacheImage cache(*backend_, 8, 8, 64, 64);
  Lookup(cache, 1, {3});
  cache.DrainLog();
  cache.MarkAbsent({11, 21, 30}, 2, 4);
  std::vector<PageRef> refs = Refs(cache, 2, {1, 2, 3});
  Admit(cache);
  ASSERT_EQ(refs.size(), 5u);
  std::vector<int32_t> tokens;
  for (const PageRef& ref : refs) tokens.push_back(ref.num_tokens);
  EXPECT_EQ(tokens, (std::vector<int32_t>{4, 0, 4, 0, 1}));  // page 30 is in a slot
  EXPECT_EQ(cache.rows_lacking(), (std::vector<uint32_t>{1, 0}));
  EXPECT_EQ(cache.num_asked(), 2u);
  std::vector<PageId> asked = cache.asked();
  std::ranges::sort(asked);
  EXPECT_EQ(asked, (std::vector<PageId>{11, 21, kNoPage, kNoPage}));
  EXPECT_EQ(cache.DrainLog().size(), 2u);
  EXPECT_EQ(cache.page_slot()[11], kNoSlot);
  EXPECT_EQ(cache.page_slot()[21], kNoSlot);
  EXPECT_EQ(cache.counters().hits, 1u);
  EXPECT_EQ(cache.counters().misses, 3u);
  // Another layer of the same step asks for nothing again.
  Refs(cache, 2, {2});
  EXPECT_EQ(cache.num_asked(), 2u);
  cache.MarkAbsent({}, 2, 4);
  Lookup(cache, 3, {1, 2, 3});
  EXPECT_EQ(cache.rows_lacking(), (std::vector<uint32_t>{0, 0}));
  EXPECT_NE(cache.page_slot()[21], kNoSlot);
}

TEST_P(PageLookupTest, MoreAbsentPagesThanCanBeListedAreCounted) {
  BlockCacheImage cache(*backend_, 8, 8, 64, 64);
  cache.MarkAbsent({10, 11, 20, 21, 30}, 1, 2);
  Refs(cache, 1, {1, 2, 3});
  EXPECT_EQ(cache.num_asked(), 5u);
  EXPECT_EQ(cache.rows_lacking(), (std::vector<uint32_t>{1}));
  for (const PageId page : cache.asked()) EXPECT_NE(page, kNoPage);
}

TEST_P(PageLookupTest, AnImpossibleLogCursorOnlyStopsAdmission) {
  BlockCacheImage cache(*backend_, 16, 8, 64, 64);
  cache.log_tail().value = 1'000'000;
  Lookup(cache, 1, {1, 2, 3});
  EXPECT_EQ(cache.num_free(), 16u);
  EXPECT_EQ(cache.counters().transients, 5u);
}

TEST_P(PageLookupTest, AClusterTwiceInABatchIsAdmittedOnce) {
  BlockCacheImage cache(*backend_, 8, 4, 64, 64);
  const auto places = Lookup(cache, 1, {1, 1});
  EXPECT_EQ(places[0], places[2]);
  EXPECT_EQ(places[1], places[3]);
  EXPECT_EQ(cache.counters().admissions, 2u);
  EXPECT_EQ(cache.counters().hits, 2u);
}

TEST_P(PageLookupTest, NothingIsAdmittedWhileTheCacheIsClosed) {
  BlockCacheImage cache(*backend_, 8, 8, 64, 64);
  Lookup(cache, 1, {1});
  cache.DrainLog();
  Lookup(cache, 2, {1, 2}, true);
  EXPECT_TRUE(cache.DrainLog().empty());
  EXPECT_EQ(cache.num_free(), 6u);
  EXPECT_EQ(cache.counters().hits, 2u);
  EXPECT_EQ(cache.counters().transients, 2u);
  EXPECT_EQ(cache.page_slot()[20], kNoSlot);
}

// Many rows that share pages: sequences with a common prefix miss the same pages in one call.
class SharedPages {
 public:
  static constexpr int32_t kBatch = 6, kHeads = 2;
  static constexpr size_t kRows = kBatch * kHeads;

  SharedPages(Backend& backend, uint32_t num_blocks, const KvFormat& format = kBf16Kv)
      : geometry_{1, kHeads, 128, format},
        backend_(backend),
        data_(backend),
        num_clusters_(num_blocks * kClustersPerMetaBlock),
        num_retrieved_(num_clusters_ - 4),
        max_pages_(num_retrieved_ * 5),
        pool_(geometry_, num_blocks) {
    std::vector<MetaBlockId> block_ids(num_blocks);
    std::iota(block_ids.begin(), block_ids.end(), MetaBlockId{0});
    indexes_ = std::make_unique<MetaIndexImage>(
        data_, std::vector<std::vector<MetaBlockId>>(kBatch, block_ids));
    uint32_t place = 0;
    for (uint32_t head = 0; head < kHeads; ++head) {
      for (uint32_t i = 0; i < num_clusters_; ++i) {
        const uint32_t tokens = 1 + i % 20;
        EntryOf(i, head) = {place, tokens};
        place += format.packs_clusters ? tokens : geometry_.pages_of(tokens);
      }
    }
    num_pages_ = place / geometry_.places_per_page() + 1;
    pool_view_ = pool_.Upload(data_);
  }

  // All pages that there are.
  uint32_t num_pages() const { return num_pages_; }

  // Looks up clusters drawn by `random` and checks every page; returns how many there were.
  // `fetches_first`: admission gets the references, and they are checked behind it, too.
  uint64_t Run(BlockCacheImage& cache, std::mt19937& random, bool fetches_first = false) {
    std::vector<int32_t> clusters, counts;
    for (size_t row = 0; row < kRows; ++row) {
      std::vector<int32_t> all(num_clusters_);
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), random);
      counts.push_back(static_cast<int32_t>(random() % (num_retrieved_ + 1)));
      clusters.insert(clusters.end(), all.begin(), all.begin() + num_retrieved_);
    }
    const DeviceBuffer retrieved = data_.Upload(clusters), count = data_.Upload(counts);
    const DeviceBuffer refs = data_.Allocate(kRows * max_pages_ * sizeof(PageRef));
    const DeviceBuffer num_pages = data_.Allocate(kRows * sizeof(int32_t));
    const absl::Status status = backend_.ops->block_cache().PageLookup(
        *backend_.stream, {.cache = cache.view(),
                           .counters = cache.device_counters(),
                           .pool = pool_view_,
                           .layer = 0,
                           .indexes = indexes_->views(),
                           .batch = kBatch,
                           .num_kv_heads = kHeads,
                           .retrieved = retrieved.as<const int32_t>(),
                           .num_retrieved = count.as<const int32_t>(),
                           .max_retrieved = num_retrieved_,
                           .max_pages = max_pages_,
                           .pages = refs.as<PageRef>(),
                           .num_pages = num_pages.as<int32_t>()});
    EXPECT_TRUE(status.ok()) << status;
    const auto got_pages = data_.Download<int32_t>(num_pages);
    const auto check = [&] {
      const auto got = data_.Download<PageRef>(refs);
      uint64_t lookups = 0;
      for (size_t row = 0; row < kRows; ++row) {
        const size_t first = row * max_pages_;
        size_t next = first;
        for (size_t i = 0; i < static_cast<size_t>(counts[row]); ++i) {
          const auto cluster = static_cast<uint32_t>(clusters[row * num_retrieved_ + i]);
          next = CheckCluster(EntryOf(cluster, row % kHeads), got, next);
        }
        EXPECT_EQ(got_pages[row], static_cast<int32_t>(next - first));
        lookups += next - first;
      }
      return lookups;
    };
    const uint64_t lookups = check();
    EXPECT_TRUE(backend_.ops->block_cache()
                    .AdmitPages(*backend_.stream, {.cache = cache.view(),
                                                   .counters = cache.device_counters(),
                                                   .pages = fetches_first ? refs.as<PageRef>()
                                                                          : DeviceSpan<PageRef>()})
                    .ok());
    EXPECT_TRUE(backend_.stream->Synchronize().ok());
    if (fetches_first) {
      check();
      ExpectSlots(cache, data_.Download<PageRef>(refs), got_pages);
    }
    return lookups;
  }

  // Looks up pages drawn by `random`, each row some of its own clusters'; returns how many.
  uint64_t RunChosen(BlockCacheImage& cache, std::mt19937& random) {
    std::vector<ChosenPage> chosen;
    std::vector<int32_t> counts;
    for (size_t row = 0; row < kRows; ++row) {
      std::vector<ChosenPage> all;
      RI_CHECK(!geometry_.format.packs_clusters);
      for (uint32_t cluster = 0; cluster < num_clusters_; ++cluster) {
        const MetaEntry& entry = EntryOf(cluster, row % kHeads);
        for (uint32_t i = 0; 4 * i < entry.num_tokens; ++i) {
          all.push_back({entry.first_place + i,
                         static_cast<uint16_t>(std::min(4u, entry.num_tokens - 4 * i)),
                         static_cast<uint16_t>(i)});
        }
      }
      std::shuffle(all.begin(), all.end(), random);
      all.resize(std::min<size_t>(all.size(), max_pages_));
      counts.push_back(static_cast<int32_t>(random() % (all.size() + 1)));
      all.resize(max_pages_);
      chosen.insert(chosen.end(), all.begin(), all.end());
    }
    const DeviceBuffer device_chosen = data_.Upload(chosen), count = data_.Upload(counts);
    const DeviceBuffer refs = data_.Allocate(kRows * max_pages_ * sizeof(PageRef));
    const DeviceBuffer num_pages = data_.Allocate(kRows * sizeof(int32_t));
    const absl::Status status = backend_.ops->block_cache().PageLookup(
        *backend_.stream, {.cache = cache.view(),
                           .counters = cache.device_counters(),
                           .pool = pool_view_,
                           .layer = 0,
                           .indexes = indexes_->views(),
                           .batch = kBatch,
                           .num_kv_heads = kHeads,
                           .chosen = device_chosen.as<const ChosenPage>(),
                           .num_chosen = count.as<const int32_t>(),
                           .max_chosen = max_pages_,
                           .max_pages = max_pages_,
                           .pages = refs.as<PageRef>(),
                           .num_pages = num_pages.as<int32_t>()});
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(data_.Download<int32_t>(num_pages), counts);
    const auto got = data_.Download<PageRef>(refs);
    uint64_t lookups = 0;
    for (size_t row = 0; row < kRows; ++row) {
      for (size_t i = 0; i < static_cast<size_t>(counts[row]); ++i, ++lookups) {
        const ChosenPage& page = chosen[row * max_pages_ + i];
        const PageRef& ref = got[row * max_pages_ + i];
        EXPECT_EQ(ref.num_tokens, page.num_tokens);
        EXPECT_EQ(PlaceInCluster(ref.origin), page.place);
        const auto bytes =
            data_.Download<std::byte>(DeviceSpan<const std::byte>(ref.page, kPageBytes));
        EXPECT_TRUE(HasPattern(page.page, 0, bytes.data()));
      }
    }
    EXPECT_TRUE(backend_.ops->block_cache()
                    .AdmitPages(*backend_.stream,
                                {.cache = cache.view(), .counters = cache.device_counters()})
                    .ok());
    EXPECT_TRUE(backend_.stream->Synchronize().ok());
    return lookups;
  }

 private:
  MetaEntry& EntryOf(uint32_t cluster, uint32_t head) {
    return pool_.host().Entries(cluster / kClustersPerMetaBlock, 0,
                                head)[cluster % kClustersPerMetaBlock];
  }

  // All references to pages that have slots now lead there.
  void ExpectSlots(BlockCacheImage& cache, const std::vector<PageRef>& refs,
                   const std::vector<int32_t>& num_pages) {
    const BlockCacheView& view = cache.view();
    const auto page_slot = cache.page_slot();
    const auto in = [](const std::byte* page, DeviceSpan<const std::byte> span) {
      return page >= span.device_data() && page < span.device_data() + span.size();
    };
    for (size_t row = 0; row < kRows; ++row) {
      for (size_t i = 0; i < static_cast<size_t>(num_pages[row]); ++i) {
        const std::byte* const page = refs[row * max_pages_ + i].page;
        if (!in(page, view.arena)) continue;
        const auto number = static_cast<size_t>(page - view.arena.device_data()) / kPageBytes;
        EXPECT_EQ(page_slot[number], kNoSlot) << "page " << number << " has a slot";
      }
    }
  }

  // Checks the references from `next` on; returns the place behind them.
  size_t CheckCluster(const MetaEntry& entry, const std::vector<PageRef>& refs, size_t next) {
    const uint32_t per_page = geometry_.tokens_per_page();
    PageId page = entry.first_place / geometry_.places_per_page();
    uint32_t skipped = entry.first_place % geometry_.places_per_page();
    for (uint32_t i = 0, left = entry.num_tokens; left > 0; ++i, ++page, ++next) {
      const PageRef& ref = refs.at(next);
      const uint32_t tokens = std::min(per_page - skipped, left);
      EXPECT_EQ(ref.num_tokens, static_cast<int32_t>(tokens));
      EXPECT_EQ(PlaceInCluster(ref.origin), i);
      const auto bytes = data_.Download<std::byte>(DeviceSpan<const std::byte>(
          ref.page - skipped * geometry_.page().vector_bytes, kPageBytes));
      EXPECT_TRUE(HasPattern(page, 0, bytes.data()));
      left -= tokens;
      skipped = 0;
    }
    return next;
  }

  const KvGeometry geometry_;
  Backend& backend_;
  DeviceData data_;
  const uint32_t num_clusters_, num_retrieved_;
  const uint32_t max_pages_;  // of a row
  MetaPoolImage pool_;
  std::unique_ptr<MetaIndexImage> indexes_;
  MetaPoolView pool_view_;
  uint32_t num_pages_ = 0;
};

// Where clusters are packed, neighbours in one row share a page, too.
TEST_P(PageLookupTest, ClustersAndSequencesThatMissTheSamePages) {
  for (const KvFormat& format : {kBf16Kv, kBf16PackedKv, kInt8PackedKv}) {
    SCOPED_TRACE(format.name);
    ASSERT_NO_FATAL_FAILURE(MissSamePages(format));
  }
}

void PageLookupTest::MissSamePages(const KvFormat& format) {
  SharedPages shared(*backend_, 1, format);
  const uint32_t num_slots = 4 * shared.num_pages() / 5;
  for (const auto& [num_transient, fetches_first] :
       {std::pair(0u, false), std::pair(16u, false), std::pair(400u, false), std::pair(0u, true),
        std::pair(16u, true)}) {
    SCOPED_TRACE(num_transient);
    BlockCacheImage cache(*backend_, num_slots, num_transient, shared.num_pages(), 1024);
    std::mt19937 random(num_transient);
    uint64_t lookups = 0;
    for (StepStamp step = 1; step < 5; ++step) {
      cache.BeginStep(step);
      lookups += shared.Run(cache, random, fetches_first);
    }
    // The table, its inverse, the stack, the log and the counters agree.
    const auto page_slot = cache.page_slot();
    const auto slot_page = cache.slot_page();
    uint32_t num_resident = 0;
    for (PageId page = 0; page < shared.num_pages(); ++page) {
      if (page_slot[page] == kNoSlot) continue;
      ++num_resident;
      ASSERT_LT(page_slot[page], num_slots);
      ASSERT_EQ(slot_page[page_slot[page]], page);
    }
    EXPECT_EQ(num_resident, num_slots - cache.num_free());
    EXPECT_GT(num_resident, 0u);
    const BlockCacheCounters counters = cache.counters();
    EXPECT_EQ(counters.hits + counters.misses, lookups);
    EXPECT_EQ(counters.admissions + counters.transients, counters.misses);
    EXPECT_EQ(counters.admissions, num_resident);
    const auto log = cache.DrainLog();
    ASSERT_EQ(log.size(), num_resident);
    for (const LogEntry& entry : log) {
      EXPECT_EQ(entry.kind, static_cast<uint32_t>(LogKind::kAdmit));
      EXPECT_EQ(page_slot.at(entry.page), entry.slot);
    }
  }
}

// As in contexts of several 100,000 tokens: rows of more pages than are looked up at once.
TEST_P(PageLookupTest, RowsOfManyClusters) {
  for (const KvFormat& format : {kBf16Kv, kInt8PackedKv}) LookUpMany(format);
}

void PageLookupTest::LookUpMany(const KvFormat& format) {
  SCOPED_TRACE(format.name);
  SharedPages shared(*backend_, 18, format);
  BlockCacheImage cache(*backend_, shared.num_pages() / 2, 16, shared.num_pages(), 1 << 14);
  std::mt19937 random(1);
  uint64_t lookups = 0;
  for (StepStamp step = 1; step < 3; ++step) {
    cache.BeginStep(step);
    lookups += shared.Run(cache, random);
  }
  const BlockCacheCounters counters = cache.counters();
  EXPECT_EQ(counters.hits + counters.misses, lookups);
  EXPECT_GT(counters.hits, 0u);
  EXPECT_GT(counters.admissions, shared.num_pages() / 8);
  EXPECT_EQ(cache.DrainLog().size(), counters.admissions);
}

TEST_P(PageLookupTest, ChosenPagesOfManyClusters) {
  SharedPages shared(*backend_, 18);
  BlockCacheImage cache(*backend_, shared.num_pages() / 2, 16, shared.num_pages(), 1 << 14);
  std::mt19937 random(2);
  uint64_t lookups = 0;
  for (StepStamp step = 1; step < 3; ++step) {
    cache.BeginStep(step);
    lookups += shared.RunChosen(cache, random);
  }
  const BlockCacheCounters counters = cache.counters();
  EXPECT_GT(lookups, 10'000u);
  EXPECT_EQ(counters.hits + counters.misses, lookups);
  EXPECT_GT(counters.hits, 0u);
  EXPECT_GT(counters.admissions, 0u);
  EXPECT_EQ(cache.DrainLog().size(), counters.admissions);
}

// Pages of 8 tokens: clusters of 5, 8 and 1 that follow each other have one page, two, and one.
// Looks up the second, the first and the third, and admits.
std::vector<PageRef> PageLookupTest::PackedRefs(BlockCacheImage& cache, StepStamp step) {
  MetaPoolImage pool({1, 1, 128, kInt8PackedKv}, 1);
  pool.host().Entries(0, 0, 0)[1] = {80, 5};
  pool.host().Entries(0, 0, 0)[2] = {85, 8};
  pool.host().Entries(0, 0, 0)[3] = {93, 1};
  std::vector<PageRef> got = RefsOf(pool.Upload(data_), cache, step, {2, 1, 3}, false);
  Admit(cache);
  return got;
}

TEST_P(PageLookupTest, PackedClustersBeginWithinPages) {
  BlockCacheImage cache(*backend_, 8, 4, 64, 64);
  PackedRefs(cache, 1);
  const std::vector<PageRef> got = PackedRefs(cache, 2);
  ASSERT_EQ(got.size(), 4u);
  const std::byte* const slots = cache.view().slots.device_data();
  const auto expect = [&](const PageRef& ref, PageId page, size_t skipped, int32_t tokens) {
    EXPECT_EQ(ref.page, slots + cache.page_slot()[page] * kPageBytes + skipped * 128);
    EXPECT_EQ(ref.num_tokens, tokens);
  };
  expect(got[0], 10, 5, 3);
  expect(got[1], 11, 0, 5);
  expect(got[2], 10, 0, 5);
  expect(got[3], 11, 5, 1);
  EXPECT_EQ(cache.counters().admissions, 2u) << "two pages, each of two clusters";
  EXPECT_EQ(cache.counters().hits, 6u);
}

// What is copied goes to slots alone: nothing of the arena changes where an absent page has tokens
// before those that are looked for.
TEST_P(PageLookupTest, AbsentPagesOfPackedClustersAreNotCopied) {
  BlockCacheImage cache(*backend_, 8, 4, 64, 64);
  cache.MarkAbsent({10}, 1, 4);
  const std::vector<PageRef> got = PackedRefs(cache, 1);
  std::vector<int32_t> tokens;
  for (const PageRef& ref : got) tokens.push_back(ref.num_tokens);
  EXPECT_EQ(tokens, (std::vector<int32_t>{0, 5, 0, 1}));
  EXPECT_EQ(cache.asked(), (std::vector<PageId>{10, kNoPage, kNoPage, kNoPage}));
  EXPECT_EQ(cache.counters().admissions, 1u);
  const auto arena = data_.Download<std::byte>(cache.view().arena);
  for (PageId page = 0; page < 64; ++page) {
    EXPECT_TRUE(HasPattern(page, 0, arena.data() + size_t{page} * kPageBytes)) << "page " << page;
  }
}

TEST_P(PageLookupTest, NothingRetrieved) {
  BlockCacheImage cache(*backend_, 8, 4, 64, 64);
  EXPECT_TRUE(Lookup(cache, 1, {}).empty());
}

INSTANTIATE_TEST_SUITE_P(Backends, PageLookupTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
