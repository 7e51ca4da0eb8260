// The page half of the cluster mapping table: page <-> slot of the block cache, kept by replaying
// the access log.
#pragma once

#include <cstdint>
#include <vector>

#include "common/kv/kv_geometry.h"
#include "common/shm/data_plane_layout.h"

namespace retroinfer::kvstore {

// The store's mirror of the worker's block cache.
//
// Threads: one at a time.
// Owns:    4 bytes a page of the arena, 8 bytes a slot.
class PageTable {
 public:
  enum class Replay {
    kApplied,
    kIgnored,  // entries before the first kReset of a table that starts in the middle of a log
    kRefused,  // garbage: unknown kind, ids outside their limits, or not what the table knows; the
               // table is unchanged
  };

  // `await_reset`: the log's beginning is not known; entries are ignored until a kReset.
  PageTable(uint32_t num_pages, uint32_t num_slots, bool await_reset);

  // Replays one entry. kKeep changes nothing.
  //
  // Cost: O(1); kReset O(slots).
  Replay Apply(const LogEntry& entry);

  // Begin to bring what Apply(entry), or PageIn(slot), reads from memory: tables of long contexts
  // are far larger than a processor's caches. Ids outside their limits are ignored.
  void Prefetch(const LogEntry& entry) const {
    if (entry.kind == static_cast<uint32_t>(LogKind::kKeep)) return;
    if (entry.page < slot_of_page_.size()) __builtin_prefetch(&slot_of_page_[entry.page], 1);
    Prefetch(entry.slot);
  }
  void Prefetch(SlotId slot) const {
    if (slot < slots_.size()) __builtin_prefetch(&slots_[slot], 1);
  }

  bool awaits_reset() const { return await_reset_; }
  uint32_t num_slots() const { return static_cast<uint32_t>(slots_.size()); }
  uint32_t used_slots() const { return used_slots_; }
  uint32_t free_slots() const { return num_slots() - used_slots_; }

  // REQUIRES: slot < num_slots().  Returns: kNoPage if the slot is free.
  PageId PageIn(SlotId slot) const { return slots_[slot].page; }
  // REQUIRES: slot < num_slots().  Returns: the step in which the slot was filled or freed last.
  StepStamp ChangedAt(SlotId slot) const { return slots_[slot].changed_at; }
  // REQUIRES: page < the table's number of pages.  Returns: kNoSlot if it is not in the cache.
  SlotId SlotOf(PageId page) const { return slot_of_page_[page]; }

 private:
  struct Slot {
    PageId page = kNoPage;
    StepStamp changed_at = 0;
  };
  bool Admit(PageId page, SlotId slot);
  bool Remove(PageId page, SlotId slot);
  void Reset();

  bool await_reset_;
  std::vector<SlotId> slot_of_page_;
  std::vector<Slot> slots_;
  uint32_t used_slots_ = 0;
};

}  // namespace retroinfer::kvstore
