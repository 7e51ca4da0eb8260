// A million seeded random operations on the block cache against a naive model, with the store's own
// replay and LRU on the other side of the data plane: evictions, transient slots, a store that
// stalls, one that dies and replays late, segments that end and begin, some of whose pages are
// written to slots at once, hostile eviction requests.
// Every page carries a pattern that is checked whenever it is attended.
//
// RETROINFER_TEST_SEED sets the seed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <unordered_map>

#include "gpu_worker/wave_buffer/block_cache.h"
#include "kv_store_service/data_plane/data_plane_server.h"
#include "tests/support/block_cache_image.h"
#include "tests/support/cluster_lookup.h"
#include "tests/support/data_plane_memory.h"
#include "tests/support/tend_cache.h"

namespace retroinfer {
namespace {

using namespace test_support;

constexpr uint64_t kOperations = 1'000'000;
constexpr uint32_t kSegments = 16;
constexpr uint32_t kPagesPerSegment = 256;
constexpr uint32_t kArenaPages = kSegments * kPagesPerSegment;
constexpr uint32_t kSlots = 300;
constexpr uint32_t kTransient = 24;
constexpr uint32_t kLogCapacity = 1024;  // of which releases may need kSlots
constexpr uint32_t kClustersPerLookup = 24;

// What the log says, entry by entry; refuses what the protocol forbids.
class NaiveCache {
 public:
  void Apply(const LogEntry& entry) {
    switch (static_cast<LogKind>(entry.kind)) {
      case LogKind::kReset:
        slot_of_.clear();
        page_in_.clear();
        return;
      case LogKind::kAdmit:
        ASSERT_LT(entry.page, kArenaPages);
        ASSERT_LT(entry.slot, kSlots);
        ASSERT_TRUE(slot_of_.emplace(entry.page, entry.slot).second) << "page admitted twice";
        ASSERT_TRUE(page_in_.emplace(entry.slot, entry.page).second) << "slot taken twice";
        return;
      case LogKind::kEvict:
      case LogKind::kRelease:
        ASSERT_EQ(slot_of_.count(entry.page), 1u);
        ASSERT_EQ(slot_of_[entry.page], entry.slot);
        slot_of_.erase(entry.page);
        page_in_.erase(entry.slot);
        return;
      case LogKind::kKeep:
        return;
    }
    FAIL() << "unknown kind " << entry.kind;
  }

  const std::unordered_map<PageId, SlotId>& slot_of() const { return slot_of_; }

 private:
  std::unordered_map<PageId, SlotId> slot_of_;
  std::unordered_map<SlotId, PageId> page_in_;
};

class BlockCacheRandomTest : public testing::Test {
 protected:
  BlockCacheRandomTest() {
    const char* seed = std::getenv("RETROINFER_TEST_SEED");
    seed_ = seed != nullptr ? std::strtoull(seed, nullptr, 10) : 20240607;
    random_.seed(seed_);
    arena_.resize(size_t{kArenaPages} * kPageBytes);
    auto cache = BlockCache::Create(
        *backend_->device, backend_->ops->block_cache(), *backend_->stream,
        {.num_slots = kSlots, .num_transient = kTransient}, arena_, plane_.bytes());
    RI_CHECK(cache.ok());
    cache_ = *std::move(cache);
    for (uint32_t segment = 0; segment < kSegments; ++segment) BeginSegment(segment);
    StartStore(false);
  }

  uint32_t Random(uint32_t below) { return static_cast<uint32_t>(random_() % below); }

  // --- Segments. Segment s is meta block s and pages [s * 256, (s + 1) * 256).

  struct Segment {
    bool is_live = false;
    uint32_t version = 0;
    BlockCache::ReleaseTicket release = 0;
    std::vector<MetaEntry> entries = std::vector<MetaEntry>(64);
  };

  void BeginSegment(uint32_t index) {
    Segment& segment = segments_[index];
    ++segment.version;
    segment.is_live = true;
    PageId page = index * kPagesPerSegment;
    for (PageId i = 0; i < kPagesPerSegment; ++i) {
      FillPattern(page + i, segment.version, arena_.data() + size_t{page + i} * kPageBytes);
    }
    if (cache_ != nullptr && Random(2) == 0) BeginFill(index);
    const PageId end = page + kPagesPerSegment;
    for (uint32_t i = 0; i < 64; ++i) {
      const uint32_t tokens = std::min(Random(33), 4 * (end - page));
      segment.entries[i] = {tokens == 0 ? 0 : page, tokens};
      page += (tokens + 3) / 4;
      lookup_.SetEntry(static_cast<int32_t>(index * 64 + i), segment.entries[i]);
    }
  }

  // Takes slots and writes the first pages to them, as the construction of a segment does.
  void BeginFill(uint32_t index) {
    const BlockCache::FillTicket ticket = *cache_->BeginFill(kPagesPerSegment);
    RI_CHECK(backend_->stream->Synchronize().ok());
    if (ticket == BlockCache::kNoFill) return;
    const SlotFill fill = cache_->fill(ticket);  // the CPU's: host memory
    const uint32_t num_slots = fill.list.head->num_slots;
    for (uint32_t i = 0; i < num_slots; ++i) {
      const size_t slot = fill.list.slots.device_data()[i];
      FillPattern(index * kPagesPerSegment + i, segments_[index].version,
                  fill.slots.device_data() + slot * kPageBytes);
    }
    fills_.push_back({.segment = index, .ticket = ticket, .num_slots = num_slots});
  }

  // Ends the fills of a segment, or any: whole, cut short, or given up.
  void EndFills(uint32_t one_in, uint32_t segment = kSegments) {
    for (Fill& fill : fills_) {
      if (fill.end != 0 || (segment != kSegments && fill.segment != segment)) continue;
      if (Random(one_in) != 0) continue;
      const uint32_t num_pages = std::vector<uint32_t>{kPagesPerSegment, 10, 0}[Random(3)];
      fill.end = cache_->EndFill(fill.ticket, fill.segment * kPagesPerSegment, num_pages);
    }
    std::erase_if(fills_,
                  [&](const Fill& fill) { return fill.end != 0 && cache_->FillDone(fill.end); });
  }

  uint32_t NumTaken() {
    EndFills(1u << 31, kSegments);
    uint32_t num_taken = 0;
    for (const Fill& fill : fills_) num_taken += fill.num_slots;
    return num_taken;
  }

  void EndSegment(uint32_t index) {
    Segment& segment = segments_[index];
    if (!segment.is_live) return;
    EndFills(1, index);
    segment.is_live = false;
    segment.release = cache_->Release(index * kPagesPerSegment, kPagesPerSegment);
  }

  void ReviveSegments() {
    for (uint32_t i = 0; i < kSegments; ++i) {
      if (!segments_[i].is_live && cache_->ReleaseDone(segments_[i].release)) BeginSegment(i);
    }
  }

  // --- One decode step.

  void Step() {
    ASSERT_TRUE(BeginTendedStep(*cache_).ok());
    ReviveSegments();
    EndFills(20);
    for (uint32_t layer = 0; layer < 1 + Random(3); ++layer) LookUpSomeClusters();
    ReadLog();
  }

  void LookUpSomeClusters() {
    std::vector<int32_t> clusters;
    const uint32_t hot = Random(kSegments);
    for (uint32_t i = 0; i < kClustersPerLookup; ++i) {
      // Mostly few clusters of one segment, so that there are hits.
      const uint32_t segment = Random(4) != 0 ? hot : Random(kSegments);
      if (!segments_[segment].is_live) continue;
      clusters.push_back(
          static_cast<int32_t>(segment * 64 + (Random(3) != 0 ? Random(8) : Random(64))));
    }
    operations_ += clusters.size();
    const auto refs = lookup_.Run(cache_->view(), cache_->counters(), clusters);
    size_t next = 0;
    for (const int32_t cluster : clusters) {
      const Segment& segment = segments_[static_cast<size_t>(cluster / 64)];
      const MetaEntry& entry = segment.entries[static_cast<size_t>(cluster % 64)];
      for (uint32_t i = 0; i * 4 < entry.num_tokens; ++i) {
        ASSERT_LT(next, refs.size());
        const PageRef& ref = refs[next++];
        ASSERT_EQ(ref.num_tokens, static_cast<int32_t>(std::min(4u, entry.num_tokens - i * 4)));
        ASSERT_TRUE(
            HasPattern(entry.first_place + i, segment.version, lookup_.PageBytes(ref).data()))
            << "page " << entry.first_place + i << " read from a wrong place";
      }
    }
    ASSERT_EQ(next, refs.size());
  }

  // --- The store's side.

  void StartStore(bool await_reset) {
    store_ = std::make_unique<kvstore::DataPlaneServer>(
        plane_.view(), kvstore::DataPlaneServer::Options{.watermarks = {.low = 0.1, .high = 0.2},
                                                         .await_reset = await_reset});
  }

  void RunStore() {
    ++operations_;
    if (store_ != nullptr) store_->RunOnce();
  }

  void RestartStore() {
    ++operations_;
    if (store_ != nullptr) {
      store_.reset();
      return;
    }
    StartStore(true);
    cache_->RequestSnapshot();
  }

  void PostHostileRequests() {
    DataPlane plane = plane_.view();
    for (uint32_t i = 0; i < 1 + Random(5); ++i) {
      ++operations_;
      const bool impossible = Random(3) == 0;
      plane.requests().TryPush({impossible ? static_cast<uint32_t>(random_()) : Random(kSlots),
                                impossible ? static_cast<uint32_t>(random_()) : Random(kArenaPages),
                                cache_->step() - Random(4), static_cast<uint32_t>(random_())});
    }
  }

  // Reads new log entries without taking them: the store takes them when it runs.
  void ReadLog() {
    const auto* control = reinterpret_cast<const DataPlaneControl*>(plane_.bytes().data());
    const auto* entries =
        reinterpret_cast<const LogEntry*>(plane_.bytes().data() + control->header.log_offset);
    const uint64_t head = control->log_head.value.load();
    ASSERT_LE(head - control->log_tail.value.load(), kLogCapacity) << "log overrun";
    for (; log_read_ < head; ++log_read_) naive_.Apply(entries[log_read_ % kLogCapacity]);
  }

  // Device tables, the naive model and, when it is up to date, the store's table are the same;
  // every resident page's slot holds its bytes.
  void CheckTables() {
    // The log tells of fills that the last upkeep admitted; the cache knows when it is asked.
    ASSERT_TRUE(backend_->stream->Synchronize().ok());
    ASSERT_TRUE(cache_->Settle().ok());
    ReadLog();
    if (HasFatalFailure()) return;
    const BlockCacheStats stats = *cache_->Stats();
    const BlockCacheView view = cache_->view();
    DeviceData data(*backend_);
    const auto page_slot = data.Download(DeviceSpan<const SlotId>(view.page_slot));
    const auto slot_page = data.Download(DeviceSpan<const PageId>(view.slot_page));
    if (!stats.is_snapshot_running) {
      ASSERT_EQ(naive_.slot_of().size() + NumTaken(), stats.num_used_slots);
      for (const auto& [page, slot] : naive_.slot_of()) ASSERT_EQ(page_slot[page], slot);
    }
    uint32_t num_resident = 0;
    for (PageId page = 0; page < kArenaPages; ++page) {
      if (page_slot[page] == kNoSlot) continue;
      ++num_resident;
      ASSERT_EQ(slot_page[page_slot[page]], page);
      const auto bytes = data.Download(DeviceSpan<const std::byte>(view.slots)
                                           .subspan(page_slot[page] * kPageBytes, kPageBytes));
      ASSERT_TRUE(HasPattern(page, segments_[page / kPagesPerSegment].version, bytes.data()));
    }
    ASSERT_EQ(num_resident + NumTaken(), stats.num_used_slots);
    DataPlane plane = plane_.view();
    if (store_ == nullptr || plane.log().Depth() != 0 || store_->table().awaits_reset()) return;
    ASSERT_EQ(store_->stats().entries_refused, 0u);
    if (stats.is_snapshot_running) return;
    for (const auto& [page, slot] : naive_.slot_of()) ASSERT_EQ(store_->table().SlotOf(page), slot);
    ASSERT_EQ(store_->table().used_slots(), naive_.slot_of().size());
  }

  uint64_t seed_ = 0;
  std::mt19937_64 random_;
  std::unique_ptr<Backend> backend_ = AvailableBackends()[0].create();
  DataPlaneMemory plane_{kSlots, kLogCapacity, 64, kArenaPages};
  std::vector<std::byte> arena_;
  ClusterLookup lookup_{*backend_, kSegments, kClustersPerLookup, kClustersPerLookup * 9};
  std::unique_ptr<BlockCache> cache_;
  std::unique_ptr<kvstore::DataPlaneServer> store_;
  std::vector<Segment> segments_ = std::vector<Segment>(kSegments);
  struct Fill {
    uint32_t segment = 0;
    BlockCache::FillTicket ticket = 0;
    uint32_t num_slots = 0;
    BlockCache::EndedFill end = 0;  // 0: under way
  };
  std::vector<Fill> fills_;
  NaiveCache naive_;
  uint64_t log_read_ = 0;
  uint64_t operations_ = 0;
};

TEST_F(BlockCacheRandomTest, NoPageIsEverReadFromAWrongPlace) {
  RecordProperty("seed", std::to_string(seed_));
  SCOPED_TRACE(testing::Message() << "RETROINFER_TEST_SEED=" << seed_);
  std::printf("RETROINFER_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed_));
  uint64_t next_check = 0;
  while (operations_ < kOperations && !HasFatalFailure()) {
    // A phase: the store runs after each step, now and then, or not at all.
    const uint32_t store_one_in = std::vector<uint32_t>{1, 1, 5, 50, 0}[Random(5)];
    for (uint32_t i = Random(200); i > 0 && !HasFatalFailure(); --i) {
      Step();
      if (store_one_in != 0 && Random(store_one_in) == 0) RunStore();
      if (Random(40) == 0) EndSegment(Random(kSegments));
      if (Random(30) == 0) PostHostileRequests();
    }
    if (Random(8) == 0) RestartStore();
    if (operations_ >= next_check && !HasFatalFailure()) {
      CheckTables();
      next_check = operations_ + 10'000;
    }
  }
  // Everything comes back: the store catches up and all segments end.
  if (store_ == nullptr) RestartStore();
  for (uint32_t i = 0; i < kSegments; ++i) EndSegment(i);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(Tend(*cache_).ok());
    ReadLog();
    RunStore();
  }
  CheckTables();
  const BlockCacheStats stats = *cache_->Stats();
  EXPECT_EQ(stats.num_used_slots, 0u);
  EXPECT_EQ(stats.pages_to_release, 0u);
  // The test reached what it is about.
  EXPECT_GT(stats.counters.hits, 100'000u);
  EXPECT_GT(stats.counters.admissions, 10'000u);
  EXPECT_GT(stats.counters.transients, 10'000u);
  EXPECT_GT(stats.counters.evictions, 1'000u);
  EXPECT_GT(stats.counters.evictions_kept, 100u);
  EXPECT_GT(stats.counters.bad_requests, 100u);
  EXPECT_GT(stats.counters.releases, 1'000u);
  EXPECT_GT(stats.counters.fills, 20u);
  EXPECT_GT(stats.snapshots, 3u);
  std::printf("hits %llu, admissions %llu, transients %llu, evictions %llu, snapshots %llu\n",
              static_cast<unsigned long long>(stats.counters.hits),
              static_cast<unsigned long long>(stats.counters.admissions),
              static_cast<unsigned long long>(stats.counters.transients),
              static_cast<unsigned long long>(stats.counters.evictions),
              static_cast<unsigned long long>(stats.snapshots));
}

}  // namespace
}  // namespace retroinfer
