// A small block cache with an arena whose pages carry a pattern.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "gpu_worker/ops/block_cache/page_lookup.h"
#include "tests/support/device_data.h"

namespace retroinfer {

inline bool operator==(const LogEntry& entry, const LogEntry& other) {
  return entry.kind == other.kind && entry.page == other.page && entry.slot == other.slot &&
         entry.step == other.step;
}

namespace test_support {

// The bytes of page `page`, unless it has been written again: `version` counts that.
inline void FillPattern(PageId page, uint32_t version, std::byte* bytes) {
  for (uint32_t i = 0; i < kPageBytes / 4; ++i) {
    const uint32_t word = page * 2654435761u + version * 40503u + i;
    std::memcpy(bytes + i * 4, &word, 4);
  }
}
inline bool HasPattern(PageId page, uint32_t version, const std::byte* bytes) {
  std::byte want[kPageBytes];
  FillPattern(page, version, want);
  return std::memcmp(want, bytes, kPageBytes) == 0;
}

// Device memory of a block cache. The log's cursors and entries lie in memory that the backend has
// mapped, as in the data plane.
class BlockCacheImage {
 public:
  BlockCacheImage(Backend& backend, uint32_t num_slots, uint32_t num_transient,
                  uint32_t arena_pages, uint32_t log_capacity)
      : data_(backend),
        backend_(backend),
        shared_bytes_((sizeof(Shared) + log_capacity * sizeof(LogEntry) + 4095) / 4096 * 4096),
        shared_(static_cast<std::byte*>(std::aligned_alloc(4096, shared_bytes_))) {
    std::vector<std::byte> arena(size_t{arena_pages} * kPageBytes);
    for (PageId page = 0; page < arena_pages; ++page) {
      FillPattern(page, 0, arena.data() + size_t{page} * kPageBytes);
    }
    arena_ = data_.Upload(arena);
    slots_ = data_.Upload(std::vector<std::byte>(size_t{num_slots} * kPageBytes, std::byte{0xee}));
    transient_ =
        data_.Upload(std::vector<std::byte>(size_t{num_transient} * kPageBytes, std::byte{0xee}));
    page_slot_ = data_.Upload(std::vector<SlotId>(arena_pages, kNoSlot));
    slot_page_ = data_.Upload(std::vector<PageId>(num_slots, kNoPage));
    stamps_ = data_.Upload(std::vector<StepStamp>(num_slots, 0));
    std::vector<SlotId> free;
    for (SlotId slot = num_slots; slot > 0; --slot) free.push_back(slot - 1);
    free_ = data_.Upload(free);
    num_free_ = data_.Upload(std::vector<uint32_t>{num_slots});
    counters_ = data_.Upload(std::vector<BlockCacheCounters>(1));
    control_ = data_.Upload(std::vector<LookupControl>(1));
    misses_ = data_.Allocate(kMaxListedMisses * sizeof(PageMiss));
    lookup_ = data_.Upload(std::vector<LookupState>(1));
    host_ = new (shared_.get()) Shared{};
    host_log_ = reinterpret_cast<LogEntry*>(shared_.get() + sizeof(Shared));
    auto mapped = backend.device->MapHost({shared_.get(), shared_bytes_});
    RI_CHECK(mapped.ok());
    auto* on_device = reinterpret_cast<Shared*>(mapped->device_data());
    view_ = {
        .slots = slots_.bytes(),
        .transient = transient_.bytes(),
        .arena = arena_.bytes(),
        .page_slot = page_slot_.as<SlotId>(),
        .slot_page = slot_page_.as<PageId>(),
        .slot_stamp = stamps_.as<StepStamp>(),
        .free_slots = free_.as<SlotId>(),
        .num_free = num_free_.as<uint32_t>().device_data(),
        .control = control_.as<LookupControl>().device_data(),
        .misses = misses_.as<PageMiss>(),
        .lookup = lookup_.as<LookupState>().device_data(),
        .log = {reinterpret_cast<LogEntry*>(mapped->device_data() + sizeof(Shared)), log_capacity},
        .log_head = &on_device->head,
        .log_tail = &on_device->tail};
  }

  ~BlockCacheImage() {
    RI_CHECK(backend_.stream->Synchronize().ok());
    backend_.device->UnmapHost({shared_.get(), shared_bytes_});
  }

  // These pages are absent from the next step on; look-ups can list `max_asked` of them.
  void MarkAbsent(const std::vector<PageId>& pages, size_t max_rows, size_t max_asked) {
    std::vector<AbsentWord> words((view_.page_slot.size() + 31) / 32);
    for (const PageId page : pages) words[page / 32].absent |= 1u << (page % 32);
    absent_words_ = data_.Upload(words);
    absent_rows_ = data_.Upload(std::vector<uint32_t>(max_rows, 0));
    asked_ = data_.Upload(std::vector<PageId>(max_asked, kNoPage));
    num_asked_ = data_.Upload(std::vector<uint32_t>{0});
    view_.absent = {.words = absent_words_.as<AbsentWord>(),
                    .rows = absent_rows_.as<uint32_t>(),
                    .asked = asked_.as<PageId>(),
                    .num_asked = num_asked_.as<uint32_t>().device_data()};
    any_absent_ = !pages.empty();
  }
  std::vector<uint32_t> rows_lacking() { return data_.Download<uint32_t>(absent_rows_); }
  uint32_t num_asked() { return data_.Download<uint32_t>(num_asked_)[0]; }
  std::vector<PageId> asked() { return data_.Download<PageId>(asked_); }

  // What the next look-ups are told.
  void BeginStep(StepStamp step, bool is_closed = false) {
    const LookupControl control{step, is_closed ? 1u : 0u, any_absent_ ? 1u : 0u};
    RI_CHECK(backend_.device
                 ->Upload(*backend_.stream, std::as_bytes(std::span(&control, 1)),
                          control_.bytes().first(sizeof(control)))
                 .ok());
    RI_CHECK(backend_.stream->Synchronize().ok());
  }

  const BlockCacheView& view() const { return view_; }
  BlockCacheCounters* device_counters() { return counters_.as<BlockCacheCounters>().device_data(); }
  BlockCacheCounters counters() { return data_.Download<BlockCacheCounters>(counters_)[0]; }
  std::vector<SlotId> page_slot() { return data_.Download<SlotId>(page_slot_); }
  std::vector<PageId> slot_page() { return data_.Download<PageId>(slot_page_); }
  std::vector<StepStamp> stamps() { return data_.Download<StepStamp>(stamps_); }
  uint32_t num_free() { return data_.Download<uint32_t>(num_free_)[0]; }

  // Takes all entries off the log, as the store does.
  std::vector<LogEntry> DrainLog() {
    RI_CHECK(backend_.stream->Synchronize().ok());
    std::vector<LogEntry> entries;
    const uint64_t head = host_->head.value.load();
    for (uint64_t i = host_->tail.value.load(); i < head; ++i) {
      entries.push_back(host_log_[i & (view_.log.size() - 1)]);
    }
    host_->tail.value = head;
    return entries;
  }
  RingCursor& log_tail() { return host_->tail; }
  // Makes the log look as if only `entries` more fitted; what it claims to hold is undefined.
  void LeaveLogRoom(uint64_t entries) {
    host_->head.value = host_->tail.value + view_.log.size() - entries;
  }

 private:
  struct Shared {
    RingCursor head;
    RingCursor tail;
  };

  DeviceData data_;
  Backend& backend_;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  const size_t shared_bytes_;  // whole memory pages: nothing else is mapped with them
  const std::unique_ptr<std::byte, Free> shared_;
  Shared* host_ = nullptr;
  bool any_absent_ = false;
  DeviceBuffer absent_words_, absent_rows_, asked_, num_asked_;
  LogEntry* host_log_ = nullptr;
  static constexpr size_t kMaxListedMisses = 4096;

  DeviceBuffer arena_, slots_, transient_, page_slot_, slot_page_, stamps_, free_, num_free_,
      counters_, control_, misses_, lookup_;
  BlockCacheView view_;
};

inline LogEntry Entry(LogKind kind, PageId page, SlotId slot, StepStamp step) {
  return {static_cast<uint32_t>(kind), page, slot, step};
}

}  // namespace test_support
}  // namespace retroinfer
