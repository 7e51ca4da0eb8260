// Invariants:
// * The log in order is the state of the cache. So while a snapshot runs, which describes the slots
//   one after the other, nothing else may change the table: no admission, release or eviction.
// * While what one plan says is under way (under_way_), no other is made, and look-ups are done
//   when the cache is observed: so the host sees the log's head as it is, and the room that it
//   finds in the log is still there when the plan is carried out.
// * Slots of a list are in no table and not on the free stack; a page of an ended fill is admitted
//   before a later release examines it, so a released extent has no page in a slot.
// * Releases are first in, first out: a ticket is done when as many have been completed.
#include "gpu_worker/wave_buffer/block_cache.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

// Share of the slots that fills leave free: more than the store's high watermark, else it would
// begin to evict what others use.
constexpr uint32_t kOneInKept = 8;
constexpr size_t kMaxFills = 256;  // under way
constexpr size_t kSlotsPerPlace = sizeof(SlotListHead) / sizeof(SlotId);
// Of one look-up. 64 rows of tails behind a cold text of 100K tokens miss 160,000 times.
constexpr size_t kMaxListedMisses = 1u << 18;

// Places of lists_: for every slot, and a head and a rest for each fill.
size_t NumListPlaces(size_t num_slots) { return num_slots / kSlotsPerPlace + 2 * kMaxFills; }

}  // namespace

absl::StatusOr<std::unique_ptr<BlockCache>> BlockCache::Create(
    Device& device, BlockCacheOps& ops, Stream& stream, const Sizes& sizes,
    std::span<std::byte> arena, std::span<std::byte> data_plane_memory) {
  ASSIGN_OR_RETURN(DataPlane plane, DataPlane::Open(data_plane_memory));
  if (plane.num_slots() != sizes.num_slots ||
      plane.arena_pages() * sizes.page_bytes > arena.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("block cache: the data plane is for ", plane.num_slots(), " slots and ",
                     plane.arena_pages(), " arena pages, the worker has ", sizes.num_slots,
                     " slots and ", arena.size() / sizes.page_bytes, " arena pages"));
  }
  auto cache =
      absl::WrapUnique(new BlockCache(device, ops, stream, sizes, plane, arena, data_plane_memory));
  RETURN_IF_ERROR(cache->Allocate());
  RETURN_IF_ERROR(cache->Clear());
  return cache;
}

BlockCache::BlockCache(Device& device, BlockCacheOps& ops, Stream& stream, const Sizes& sizes,
                       DataPlane plane, std::span<std::byte> arena,
                       std::span<std::byte> data_plane_memory)
    : device_(device),
      ops_(ops),
      stream_(stream),
      sizes_(sizes),
      plane_(plane),
      arena_(arena),
      data_plane_memory_(data_plane_memory) {}

BlockCache::~BlockCache() {
  stream_.Synchronize().IgnoreError();
  if (!device_arena_.empty()) device_.UnmapHost(arena_);
  if (!device_plane_.empty()) device_.UnmapHost(data_plane_memory_);
}

std::vector<BlockCache::Allocation> BlockCache::Allocations(const Sizes& sizes,
                                                            uint64_t arena_pages) {
  const size_t slots = sizes.num_slots;
  return {{&BlockCache::slots_, slots * sizes.page_bytes},
          {&BlockCache::transient_, sizes.num_transient * sizes.page_bytes},
          {&BlockCache::page_slot_, arena_pages * sizeof(SlotId)},
          {&BlockCache::slot_page_, slots * sizeof(PageId)},
          {&BlockCache::stamps_, slots * sizeof(StepStamp)},
          {&BlockCache::free_slots_, slots * sizeof(SlotId)},
          {&BlockCache::num_free_, sizeof(uint32_t)},
          {&BlockCache::control_, sizeof(LookupControl)},
          {&BlockCache::misses_, kMaxListedMisses * sizeof(PageMiss)},
          {&BlockCache::lookup_, sizeof(LookupState)},
          {&BlockCache::counters_, sizeof(BlockCacheCounters)},
          {&BlockCache::requests_, kMaxEvictions * sizeof(EvictionRequest)},
          {&BlockCache::lists_, NumListPlaces(slots) * sizeof(SlotListHead)},
          {&BlockCache::cursors_, kMaxReleases * sizeof(uint32_t)}};
}

MemoryNeed BlockCache::MemoryOf(const Sizes& sizes, uint64_t arena_pages) {
  size_t bytes = AbsentPages::Bytes(arena_pages);
  for (const Allocation& allocation : Allocations(sizes, arena_pages)) bytes += allocation.bytes;
  return {MemoryPurpose::kBlockCache, bytes};
}

size_t BlockCache::SlotBytes(size_t page_bytes) {
  return page_bytes + sizeof(PageId) + sizeof(StepStamp) + 2 * sizeof(SlotId);
}

absl::Status BlockCache::Allocate() {
  ASSIGN_OR_RETURN(device_arena_, device_.MapHost(arena_));
  ASSIGN_OR_RETURN(device_plane_, device_.MapHost(data_plane_memory_));
  for (const Allocation& allocation : Allocations(sizes_, plane_.arena_pages())) {
    ASSIGN_OR_RETURN(this->*allocation.buffer,
                     device_.Allocate(allocation.bytes, MemoryPurpose::kBlockCache));
  }
  ASSIGN_OR_RETURN(absent_, AbsentPages::Create(device_, stream_, plane_.arena_pages()));
  ASSIGN_OR_RETURN(host_control_, device_.AllocateHost(sizeof(LookupControl)));
  ASSIGN_OR_RETURN(host_cursors_, device_.AllocateHost((kMaxReleases + 1) * sizeof(uint32_t)));
  ASSIGN_OR_RETURN(host_counts_, device_.AllocateHost(sizeof(Counts)));
  ASSIGN_OR_RETURN(counted_, device_.CreateEvent());
  ASSIGN_OR_RETURN(task_done_, device_.CreateEvent());
  return absl::OkStatus();
}

absl::Status BlockCache::Clear() {
  const auto upload = [this](const auto& values, const DeviceBuffer& buffer) -> absl::Status {
    const auto bytes = std::as_bytes(std::span(values));
    RETURN_IF_ERROR(device_.Upload(stream_, bytes, buffer.bytes().first(bytes.size())));
    return stream_.Synchronize();
  };
  const size_t slots = sizes_.num_slots;
  // The stack's top is slot 0.
  std::vector<SlotId> free(slots);
  std::iota(free.rbegin(), free.rend(), SlotId{0});
  RETURN_IF_ERROR(upload(free, free_slots_));
  RETURN_IF_ERROR(upload(std::vector<PageId>(slots, kNoPage), slot_page_));
  RETURN_IF_ERROR(upload(std::vector<StepStamp>(slots, 0), stamps_));
  RETURN_IF_ERROR(
      upload(std::vector<SlotId>(static_cast<size_t>(plane_.arena_pages()), kNoSlot), page_slot_));
  RETURN_IF_ERROR(upload(std::vector<BlockCacheCounters>(1), counters_));
  RETURN_IF_ERROR(upload(std::vector<LookupControl>(1), control_));
  RETURN_IF_ERROR(upload(std::vector<LookupState>(1), lookup_));
  counts_.num_free = sizes_.num_slots;
  return upload(std::vector<uint32_t>{sizes_.num_slots}, num_free_);
}

BlockCacheView BlockCache::view() const {
  auto* control = reinterpret_cast<DataPlaneControl*>(device_plane_.device_data());
  const DataPlaneHeader& header = plane_.header();
  return {.page_bytes = sizes_.page_bytes,
          .slots = slots_.bytes(),
          .transient = transient_.bytes(),
          .arena = device_arena_.first(header.arena_pages * sizes_.page_bytes),
          .page_slot = page_slot_.as<SlotId>(),
          .slot_page = slot_page_.as<PageId>(),
          .slot_stamp = stamps_.as<StepStamp>(),
          .free_slots = free_slots_.as<SlotId>(),
          .num_free = num_free_.as<uint32_t>().device_data(),
          .control = control_.as<LookupControl>().device_data(),
          .misses = misses_.as<PageMiss>(),
          .lookup = lookup_.as<LookupState>().device_data(),
          .log = {reinterpret_cast<LogEntry*>(device_plane_.device_data() + header.log_offset),
                  header.log_capacity},
          .log_head = &control->log_head,
          .log_tail = &control->log_tail,
          .absent = absent_->view()};
}

BlockCacheCounters* BlockCache::counters() const {
  return counters_.as<BlockCacheCounters>().device_data();
}

absl::Status BlockCache::BeginStep() {
  ++step_;
  plane_.worker_step().store(step_, std::memory_order_release);
  RETURN_IF_ERROR(absent_->BeginStep(stream_));
  return WriteControl();
}

void BlockCache::Describe(CacheState& state) const {
  state.is_busy = !under_way_.empty();
  state.wants_snapshot = snapshot_requested_.load(std::memory_order_acquire);
  state.is_snapshot_running = is_snapshot_running_;
  state.num_slots = sizes_.num_slots;
  state.log_capacity = plane_.log().capacity();
  state.log_free_entries = plane_.log().FreeEntries();
  state.fills.clear();
  for (const FillTicket ticket : ended_fills_) state.fills.push_back(fills_.at(ticket).max_slots);
  state.releases.clear();
  for (const Range& range : releases_) {
    if (state.releases.size() == kMaxReleases) break;
    state.releases.push_back(range.end - range.next_page);
  }
  const size_t under_way = under_way_.evictions;
  state.eviction_requests = std::max(plane_.requests().Depth(), under_way) - under_way;
  const StampControl& stamps = plane_.stamp_control();
  state.wants_stamps = stamps.requested.value.load(std::memory_order_acquire) !=
                       stamps.published.value.load(std::memory_order_relaxed);
}

absl::Status BlockCache::Tend() {
  Describe(state_);
  return CarryOut(PlanUpkeep(state_));
}

// Each part counts as under way once it is enqueued as a whole.
absl::Status BlockCache::CarryOut(const CacheUpkeep& upkeep) {
  const auto enqueue = [&]() -> absl::Status {
    if (upkeep.snapshot != CacheUpkeep::Snapshot::kNone) return Snapshot(upkeep.snapshot);
    RETURN_IF_ERROR(AdmitFills(upkeep.fills));
    RETURN_IF_ERROR(ReleaseRanges(upkeep.releases));
    RETURN_IF_ERROR(Evict(upkeep.evictions));
    return upkeep.stamps ? PublishStamps() : absl::OkStatus();
  };
  const absl::Status status = enqueue();
  if (!under_way_.empty()) RETURN_IF_ERROR(Record());
  RETURN_IF_ERROR(status);
  return WriteControl();
}

absl::Status BlockCache::Record() {
  RETURN_IF_ERROR(stream_.Record(*task_done_));
  is_recorded_ = true;
  return absl::OkStatus();
}

absl::Status BlockCache::Settle() {
  if (under_way_.empty()) return absl::OkStatus();
  if (!is_recorded_) RETURN_IF_ERROR(Record());
  ASSIGN_OR_RETURN(const bool is_done, device_.IsDone(*task_done_));
  if (is_done) Finish();
  return absl::OkStatus();
}

void BlockCache::Finish() {
  const std::span<const uint32_t> cursors = host_cursors_.as<uint32_t>();
  if (under_way_.snapshot != CacheUpkeep::Snapshot::kNone) {
    snapshot_next_slot_ = cursors[0];
    if (snapshot_next_slot_ >= sizes_.num_slots) {
      is_snapshot_running_ = false;
      ++num_snapshots_;
    }
  }
  for (; under_way_.fills > 0; --under_way_.fills) {
    fills_.erase(ended_fills_.front());
    ended_fills_.pop_front();
    ++num_fills_done_;
  }
  for (size_t i = 0; i < under_way_.releases.size(); ++i) releases_[i].next_page = cursors[i];
  while (!releases_.empty() && releases_.front().next_page == releases_.front().end) {
    releases_.pop_front();
    ++num_released_;
  }
  plane_.requests().Drop(under_way_.evictions);
  if (under_way_.stamps) {
    plane_.stamp_control().published.value.store(stamps_requested_, std::memory_order_release);
  }
  under_way_ = {};
  is_recorded_ = false;
}

BlockCache::ReleaseTicket BlockCache::Release(PageId first_page, uint32_t num_pages) {
  releases_.push_back({first_page, first_page + num_pages});
  return ++num_queued_;
}

SlotList BlockCache::ListOf(FillTicket ticket, const Fill& fill) const {
  const auto place = static_cast<size_t>(ticket);
  return {.head = lists_.as<SlotListHead>().device_data() + place,
          .slots = lists_.as<SlotId>().subspan((place + 1) * kSlotsPerPlace, fill.max_slots)};
}

absl::StatusOr<BlockCache::FillTicket> BlockCache::BeginFill(uint32_t num_pages) {
  const uint32_t num_kept = (sizes_.num_slots + kOneInKept - 1) / kOneInKept;
  const uint32_t num_wanted = std::min(num_pages, sizes_.num_slots - num_kept);
  if (num_wanted == 0 || fills_.size() == kMaxFills) return kNoFill;
  const size_t num_places = 1 + (num_wanted + kSlotsPerPlace - 1) / kSlotsPerPlace;
  size_t place = 0;  // the first gap that is large enough
  for (const auto& [ticket, fill] : fills_) {
    if (static_cast<size_t>(ticket) >= place + num_places) break;
    place = static_cast<size_t>(ticket) + fill.num_places;
  }
  if (place + num_places > NumListPlaces(sizes_.num_slots)) return kNoFill;
  const auto ticket = static_cast<FillTicket>(place);
  const Fill fill{.num_places = num_places, .max_slots = num_wanted};
  RETURN_IF_ERROR(ops_.TakeSlots(stream_, {.cache = view(),
                                           .list = ListOf(ticket, fill),
                                           .num_wanted = num_wanted,
                                           .num_kept = num_kept}));
  fills_[ticket] = fill;
  return ticket;
}

SlotFill BlockCache::fill(FillTicket ticket) const {
  if (ticket == kNoFill) return {};
  return {.slots = slots_.bytes(), .list = ListOf(ticket, fills_.at(ticket))};
}

BlockCache::EndedFill BlockCache::EndFill(FillTicket ticket, PageId first_page,
                                          uint32_t num_pages) {
  if (ticket == kNoFill) return 0;
  Fill& fill = fills_.at(ticket);
  fill.first_page = first_page;
  fill.num_pages = num_pages;
  ended_fills_.push_back(ticket);
  return ++num_fills_ended_;
}

absl::Status BlockCache::AdmitFills(uint32_t num_fills) {
  for (; under_way_.fills < num_fills; ++under_way_.fills) {
    const FillTicket ticket = ended_fills_[under_way_.fills];
    const Fill& fill = fills_.at(ticket);
    RETURN_IF_ERROR(ops_.AdmitSlots(stream_, {.cache = view(),
                                              .counters = counters(),
                                              .step = step(),
                                              .list = ListOf(ticket, fill),
                                              .first_page = fill.first_page,
                                              .num_pages = fill.num_pages}));
  }
  return absl::OkStatus();
}

absl::Status BlockCache::Snapshot(CacheUpkeep::Snapshot snapshot) {
  if (snapshot == CacheUpkeep::Snapshot::kBegin) {
    // Entries up to here are ignored by the new store.
    const LogEntry reset{static_cast<uint32_t>(LogKind::kReset), kNoPage, kNoSlot, step()};
    if (!plane_.log().TryPush(reset)) return absl::OkStatus();
    snapshot_requested_.store(false, std::memory_order_relaxed);
    is_snapshot_running_ = true;
    snapshot_next_slot_ = 0;
  }
  const std::span<std::byte> begin = host_cursors_.bytes().last(sizeof(uint32_t));
  host_cursors_.as<uint32_t>().back() = snapshot_next_slot_;
  RETURN_IF_ERROR(device_.Upload(stream_, begin, cursors_.bytes().first(begin.size())));
  RETURN_IF_ERROR(ops_.LogSnapshot(
      stream_,
      {.cache = view(), .step = step(), .next_slot = cursors_.as<SlotId>().device_data()}));
  RETURN_IF_ERROR(ReadCursors(1));
  under_way_.snapshot = snapshot;
  return absl::OkStatus();
}

// Where the log is full, the ranges behind end at their first page that is in a slot.
absl::Status BlockCache::ReleaseRanges(std::span<const uint32_t> num_pages) {
  if (num_pages.empty()) return absl::OkStatus();
  for (size_t i = 0; i < num_pages.size(); ++i) {
    RETURN_IF_ERROR(
        ops_.ReleasePages(stream_, {.cache = view(),
                                    .counters = counters(),
                                    .step = step(),
                                    .first_page = releases_[i].next_page,
                                    .num_pages = num_pages[i],
                                    .next_page = cursors_.as<PageId>().device_data() + i}));
  }
  RETURN_IF_ERROR(ReadCursors(num_pages.size()));
  under_way_.releases.assign(num_pages.begin(), num_pages.end());
  return absl::OkStatus();
}

// The device copies requests out of the ring itself: tens of thousands a step would take the
// engine's thread a millisecond. Their places are freed when that is done (Finish), so those of a
// failed round come again.
absl::Status BlockCache::Evict(uint32_t num_requests) {
  if (num_requests == 0) return absl::OkStatus();
  const auto parts = plane_.requests().Peek(num_requests);
  if (!parts.ok()) {
    // The store has written nonsense. Evictions stop; hits suffer, nothing else does.
    ++num_ring_errors_;
    return absl::OkStatus();
  }
  if (parts->size() == 0) return absl::OkStatus();
  const DeviceSpan<EvictionRequest> copy = requests_.as<EvictionRequest>().first(parts->size());
  const DeviceSpan<std::byte> bytes = requests_.bytes();
  const auto first = std::as_bytes(parts->first);
  const auto second = std::as_bytes(parts->second);
  RETURN_IF_ERROR(device_.Upload(stream_, first, bytes.first(first.size())));
  if (!second.empty()) {
    RETURN_IF_ERROR(device_.Upload(stream_, second, bytes.subspan(first.size(), second.size())));
  }
  RETURN_IF_ERROR(ops_.ApplyEvictions(
      stream_, {.cache = view(), .counters = counters(), .step = step(), .requests = copy}));
  under_way_.evictions = static_cast<uint32_t>(parts->size());
  return absl::OkStatus();
}

absl::Status BlockCache::PublishStamps() {
  stamps_requested_ = plane_.stamp_control().requested.value.load(std::memory_order_acquire);
  RETURN_IF_ERROR(device_.Download(stream_, stamps_.bytes().first(plane_.stamps().size_bytes()),
                                   std::as_writable_bytes(plane_.stamps())));
  under_way_.stamps = true;
  return absl::OkStatus();
}

// A copy that is still under way takes the newer values, which is as good.
absl::Status BlockCache::WriteControl() {
  LookupControl& image = host_control_.as<LookupControl>()[0];
  const LookupControl control{step(), is_snapshot_running_ ? 1u : 0u, absent_->any() ? 1u : 0u};
  if (control.step == image.step && control.is_closed == image.is_closed &&
      control.any_absent == image.any_absent) {
    return absl::OkStatus();
  }
  image = control;
  return device_.Upload(stream_, host_control_.bytes(),
                        control_.bytes().first(host_control_.size_bytes()));
}

absl::Status BlockCache::ReadCursors(size_t count) {
  const size_t bytes = count * sizeof(uint32_t);
  return device_.Download(stream_, cursors_.bytes().first(bytes),
                          host_cursors_.bytes().first(bytes));
}

absl::Status BlockCache::FetchCounts() {
  const std::span<std::byte> image = host_counts_.bytes();
  RETURN_IF_ERROR(device_.Download(stream_, counters_.bytes().first(sizeof(BlockCacheCounters)),
                                   image.first(sizeof(BlockCacheCounters))));
  RETURN_IF_ERROR(device_.Download(stream_, num_free_.bytes().first(sizeof(uint32_t)),
                                   image.subspan(offsetof(Counts, num_free), sizeof(uint32_t))));
  RETURN_IF_ERROR(stream_.Record(*counted_));
  are_counts_under_way_ = true;
  return absl::OkStatus();
}

absl::StatusOr<BlockCacheStats> BlockCache::Stats() {
  if (!are_counts_under_way_) RETURN_IF_ERROR(FetchCounts());
  ASSIGN_OR_RETURN(const bool is_done, device_.IsDone(*counted_));
  return StatsOf(is_done);
}

absl::StatusOr<BlockCacheStats> BlockCache::StatsNow() {
  // Behind a download that is under way, into the same place.
  RETURN_IF_ERROR(FetchCounts());
  RETURN_IF_ERROR(device_.Synchronize(*counted_));
  return StatsOf(true);
}

BlockCacheStats BlockCache::StatsOf(bool have_come) {
  if (have_come) {
    counts_ = host_counts_.as<Counts>()[0];
    are_counts_under_way_ = false;
    ++num_counts_;
  }
  BlockCacheStats stats{.counters = counts_.counters,
                        .num_slots = sizes_.num_slots,
                        .num_used_slots = sizes_.num_slots - counts_.num_free,
                        .snapshots = num_snapshots_,
                        .ring_errors = num_ring_errors_,
                        .num_counts = num_counts_,
                        .is_snapshot_running = is_snapshot_running_};
  for (const Range& range : releases_) stats.pages_to_release += range.end - range.next_page;
  return stats;
}

}  // namespace retroinfer
