// Invariants:
// * The log in order is the state of the cache. So while a snapshot runs, which describes the slots
//   one after the other, nothing else may change the table: no admission, release or eviction.
// * Releases are first in, first out: a ticket is done when as many have been completed.
#include "gpu_worker/wave_buffer/block_cache.h"

#include <algorithm>
#include <numeric>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

constexpr size_t kMaxRequestsPerStep = 4096;
constexpr uint32_t kMaxPagesPerRelease = 1u << 20;  // examined between two steps
constexpr size_t kMaxListedMisses = 1u << 16;       // of one look-up: 128 MiB of pages

}  // namespace

absl::StatusOr<std::unique_ptr<BlockCache>> BlockCache::Create(
    Device& device, Ops& ops, Stream& stream, const Sizes& sizes, std::span<std::byte> arena,
    std::span<std::byte> data_plane_memory) {
  ASSIGN_OR_RETURN(DataPlane plane, DataPlane::Open(data_plane_memory));
  if (plane.num_slots() != sizes.num_slots || plane.arena_pages() * kPageBytes > arena.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("block cache: the data plane is for ", plane.num_slots(), " slots and ",
                     plane.arena_pages(), " arena pages, the worker has ", sizes.num_slots,
                     " slots and ", arena.size() / kPageBytes, " arena pages"));
  }
  auto cache =
      absl::WrapUnique(new BlockCache(device, ops, stream, sizes, plane, arena, data_plane_memory));
  RETURN_IF_ERROR(cache->Allocate());
  RETURN_IF_ERROR(cache->Clear());
  return cache;
}

BlockCache::BlockCache(Device& device, Ops& ops, Stream& stream, const Sizes& sizes,
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

absl::Status BlockCache::Allocate() {
  ASSIGN_OR_RETURN(device_arena_, device_.MapHost(arena_));
  ASSIGN_OR_RETURN(device_plane_, device_.MapHost(data_plane_memory_));
  const auto allocate = [this](size_t bytes, DeviceBuffer& buffer) -> absl::Status {
    ASSIGN_OR_RETURN(buffer, device_.Allocate(bytes, MemoryPurpose::kBlockCache));
    return absl::OkStatus();
  };
  const size_t slots = sizes_.num_slots;
  RETURN_IF_ERROR(allocate(slots * kPageBytes, slots_));
  RETURN_IF_ERROR(allocate(size_t{sizes_.num_transient} * kPageBytes, transient_));
  RETURN_IF_ERROR(allocate(plane_.arena_pages() * sizeof(SlotId), page_slot_));
  RETURN_IF_ERROR(allocate(slots * sizeof(PageId), slot_page_));
  RETURN_IF_ERROR(allocate(slots * sizeof(StepStamp), stamps_));
  RETURN_IF_ERROR(allocate(slots * sizeof(SlotId), free_slots_));
  RETURN_IF_ERROR(allocate(sizeof(uint32_t), num_free_));
  RETURN_IF_ERROR(allocate(sizeof(LookupControl), control_));
  RETURN_IF_ERROR(allocate(kMaxListedMisses * sizeof(PageMiss), misses_));
  RETURN_IF_ERROR(allocate(sizeof(LookupState), lookup_));
  RETURN_IF_ERROR(allocate(sizeof(BlockCacheCounters), counters_));
  RETURN_IF_ERROR(allocate(kMaxRequestsPerStep * sizeof(EvictionRequest), requests_));
  RETURN_IF_ERROR(allocate(sizeof(uint32_t), cursor_));
  host_requests_.resize(kMaxRequestsPerStep);
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
  RETURN_IF_ERROR(upload(std::vector<LookupControl>{host_control_}, control_));
  RETURN_IF_ERROR(upload(std::vector<LookupState>(1), lookup_));
  return Write(num_free_, sizes_.num_slots);
}

BlockCacheView BlockCache::view() const {
  auto* control = reinterpret_cast<DataPlaneControl*>(device_plane_.device_data());
  const DataPlaneHeader& header = plane_.header();
  return {.slots = slots_.bytes(),
          .transient = transient_.bytes(),
          .arena = device_arena_.first(static_cast<size_t>(header.arena_pages) * kPageBytes),
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
          .log_tail = &control->log_tail};
}

BlockCacheCounters* BlockCache::counters() const {
  return counters_.as<BlockCacheCounters>().device_data();
}

absl::Status BlockCache::BeginStep() {
  ++step_;
  plane_.worker_step().store(step_, std::memory_order_release);
  return Tend();
}

absl::Status BlockCache::Tend() {
  RETURN_IF_ERROR(TendSnapshot());
  RETURN_IF_ERROR(WriteControl());
  if (is_snapshot_running_) return absl::OkStatus();
  RETURN_IF_ERROR(TendReleases());
  RETURN_IF_ERROR(TendEvictions());
  return TendStamps();
}

BlockCache::ReleaseTicket BlockCache::Release(PageId first_page, uint32_t num_pages) {
  releases_.push_back({first_page, first_page + num_pages});
  return ++num_queued_;
}

absl::Status BlockCache::TendSnapshot() {
  if (snapshot_requested_.load(std::memory_order_acquire)) {
    // Entries up to here are ignored by the new store.
    const LogEntry reset{static_cast<uint32_t>(LogKind::kReset), kNoPage, kNoSlot, step()};
    if (!plane_.log().TryPush(reset)) return absl::OkStatus();
    snapshot_requested_.store(false, std::memory_order_relaxed);
    is_snapshot_running_ = true;
    snapshot_next_slot_ = 0;
  }
  if (!is_snapshot_running_) return absl::OkStatus();
  RETURN_IF_ERROR(Write(cursor_, snapshot_next_slot_));
  RETURN_IF_ERROR(ops_.LogSnapshot(
      stream_, {.cache = view(), .step = step(), .next_slot = cursor_.as<SlotId>().device_data()}));
  ASSIGN_OR_RETURN(snapshot_next_slot_, ReadBack(cursor_));
  if (snapshot_next_slot_ < sizes_.num_slots) return absl::OkStatus();
  is_snapshot_running_ = false;
  ++num_snapshots_;
  return absl::OkStatus();
}

absl::Status BlockCache::TendReleases() {
  uint32_t budget = kMaxPagesPerRelease;
  while (!releases_.empty() && budget > 0) {
    Range& range = releases_.front();
    const uint32_t num_pages = std::min(budget, range.end - range.next_page);
    RETURN_IF_ERROR(ops_.ReleasePages(stream_, {.cache = view(),
                                                .counters = counters(),
                                                .step = step(),
                                                .first_page = range.next_page,
                                                .num_pages = num_pages,
                                                .next_page = cursor_.as<PageId>().device_data()}));
    ASSIGN_OR_RETURN(const PageId next_page, ReadBack(cursor_));
    const bool is_log_full = next_page < range.next_page + num_pages;
    budget -= num_pages;
    range.next_page = next_page;
    if (range.next_page == range.end) {
      releases_.pop_front();
      ++num_released_;
    }
    if (is_log_full) break;
  }
  return absl::OkStatus();
}

absl::Status BlockCache::TendEvictions() {
  const size_t room = std::min(plane_.log().FreeEntries(), host_requests_.size());
  if (room == 0) return absl::OkStatus();
  const absl::StatusOr<size_t> count = plane_.requests().Pop(std::span(host_requests_).first(room));
  if (!count.ok()) {
    // The store has written nonsense. Evictions stop; hits suffer, nothing else does.
    ++num_ring_errors_;
    return absl::OkStatus();
  }
  if (*count == 0) return absl::OkStatus();
  RETURN_IF_ERROR(device_.Upload(stream_, std::as_bytes(std::span(host_requests_).first(*count)),
                                 requests_.bytes().first(*count * sizeof(EvictionRequest))));
  return ops_.ApplyEvictions(stream_,
                             {.cache = view(),
                              .counters = counters(),
                              .step = step(),
                              .requests = requests_.as<const EvictionRequest>().first(*count)});
}

absl::Status BlockCache::TendStamps() {
  StampControl& control = plane_.stamp_control();
  const uint64_t requested = control.requested.value.load(std::memory_order_acquire);
  if (requested == control.published.value.load(std::memory_order_relaxed)) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(device_.Download(stream_, stamps_.bytes().first(plane_.stamps().size_bytes()),
                                   std::as_writable_bytes(plane_.stamps())));
  RETURN_IF_ERROR(stream_.Synchronize());
  control.published.value.store(requested, std::memory_order_release);
  return absl::OkStatus();
}

absl::Status BlockCache::WriteControl() {
  const LookupControl control{step(), is_snapshot_running_ ? 1u : 0u};
  if (control.step == host_control_.step && control.is_closed == host_control_.is_closed) {
    return absl::OkStatus();
  }
  host_control_ = control;
  return device_.Upload(stream_, std::as_bytes(std::span(&host_control_, 1)),
                        control_.bytes().first(sizeof(host_control_)));
}

absl::StatusOr<uint32_t> BlockCache::ReadBack(const DeviceBuffer& buffer) {
  RETURN_IF_ERROR(device_.Download(stream_, buffer.bytes().first(sizeof(uint32_t)),
                                   std::as_writable_bytes(std::span(&host_word_, 1))));
  RETURN_IF_ERROR(stream_.Synchronize());
  return host_word_;
}

absl::Status BlockCache::Write(const DeviceBuffer& buffer, uint32_t value) {
  host_word_ = value;
  RETURN_IF_ERROR(device_.Upload(stream_, std::as_bytes(std::span(&host_word_, 1)),
                                 buffer.bytes().first(sizeof(uint32_t))));
  return stream_.Synchronize();
}

absl::StatusOr<BlockCacheStats> BlockCache::Stats() {
  BlockCacheStats stats{.num_slots = sizes_.num_slots,
                        .snapshots = num_snapshots_,
                        .ring_errors = num_ring_errors_,
                        .is_snapshot_running = is_snapshot_running_};
  RETURN_IF_ERROR(device_.Download(stream_, counters_.bytes().first(sizeof(stats.counters)),
                                   std::as_writable_bytes(std::span(&stats.counters, 1))));
  ASSIGN_OR_RETURN(const uint32_t num_free, ReadBack(num_free_));
  stats.num_used_slots = sizes_.num_slots - num_free;
  for (const Range& range : releases_) stats.pages_to_release += range.end - range.next_page;
  return stats;
}

}  // namespace retroinfer
