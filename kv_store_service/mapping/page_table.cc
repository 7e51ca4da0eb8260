// Invariant: page_of_slot_[s] == p exactly if slot_of_page_[p] == s, and used_slots_ counts them.
#include "kv_store_service/mapping/page_table.h"

namespace retroinfer::kvstore {

PageTable::PageTable(uint32_t num_pages, uint32_t num_slots, bool await_reset)
    : await_reset_(await_reset),
      slot_of_page_(num_pages, kNoSlot),
      page_of_slot_(num_slots, kNoPage) {}

PageTable::Replay PageTable::Apply(const LogEntry& entry) {
  const auto kind = static_cast<LogKind>(entry.kind);
  if (kind == LogKind::kReset) {
    Reset();
    return Replay::kApplied;
  }
  if (await_reset_) return Replay::kIgnored;
  if (entry.page >= slot_of_page_.size() || entry.slot >= page_of_slot_.size()) {
    return Replay::kRefused;
  }
  bool applied = false;
  switch (kind) {
    case LogKind::kAdmit:
      applied = Admit(entry.page, entry.slot);
      break;
    case LogKind::kEvict:
    case LogKind::kRelease:
      applied = Remove(entry.page, entry.slot);
      break;
    case LogKind::kKeep:
      applied = true;
      break;
    default:
      break;
  }
  return applied ? Replay::kApplied : Replay::kRefused;
}

bool PageTable::Admit(PageId page, SlotId slot) {
  if (slot_of_page_[page] != kNoSlot || page_of_slot_[slot] != kNoPage) return false;
  slot_of_page_[page] = slot;
  page_of_slot_[slot] = page;
  ++used_slots_;
  return true;
}

bool PageTable::Remove(PageId page, SlotId slot) {
  if (slot_of_page_[page] != slot || page_of_slot_[slot] != page) return false;
  slot_of_page_[page] = kNoSlot;
  page_of_slot_[slot] = kNoPage;
  --used_slots_;
  return true;
}

void PageTable::Reset() {
  await_reset_ = false;
  for (PageId& page : page_of_slot_) {
    if (page == kNoPage) continue;
    slot_of_page_[page] = kNoSlot;
    page = kNoPage;
  }
  used_slots_ = 0;
}

}  // namespace retroinfer::kvstore
