// Invariant: slots_[s].page == p exactly if slot_of_page_[p] == s, and used_slots_ counts them.
#include "kv_store_service/mapping/page_table.h"

#include <sys/mman.h>

#include <cstddef>

namespace retroinfer::kvstore {
namespace {

// A table that is read at random places, in large pages of memory where the system has them: with
// small ones, finding out where a place lies takes longer than reading it.
template <typename T>
std::vector<T> MakeTable(size_t size, const T& value) {
  constexpr uintptr_t kLargePage = uintptr_t{2} << 20;
  std::vector<T> table;
  table.reserve(size);
  const auto begin = reinterpret_cast<uintptr_t>(table.data());
  const uintptr_t end = (begin + size * sizeof(T)) / kLargePage * kLargePage;
  const uintptr_t first = (begin + kLargePage - 1) / kLargePage * kLargePage;
  if (first < end) (void)::madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
  table.resize(size, value);
  return table;
}

}  // namespace

PageTable::PageTable(uint32_t num_pages, uint32_t num_slots, bool await_reset)
    : await_reset_(await_reset),
      slot_of_page_(MakeTable<SlotId>(num_pages, kNoSlot)),
      slots_(MakeTable(num_slots, Slot())) {}

PageTable::Replay PageTable::Apply(const LogEntry& entry) {
  const auto kind = static_cast<LogKind>(entry.kind);
  if (kind == LogKind::kReset) {
    Reset();
    return Replay::kApplied;
  }
  if (await_reset_) return Replay::kIgnored;
  if (entry.page >= slot_of_page_.size() || entry.slot >= slots_.size()) {
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
  if (applied && kind != LogKind::kKeep) slots_[entry.slot].changed_at = entry.step;
  return applied ? Replay::kApplied : Replay::kRefused;
}

bool PageTable::Admit(PageId page, SlotId slot) {
  if (slot_of_page_[page] != kNoSlot || slots_[slot].page != kNoPage) return false;
  slot_of_page_[page] = slot;
  slots_[slot].page = page;
  ++used_slots_;
  return true;
}

bool PageTable::Remove(PageId page, SlotId slot) {
  if (slot_of_page_[page] != slot || slots_[slot].page != page) return false;
  slot_of_page_[page] = kNoSlot;
  slots_[slot].page = kNoPage;
  --used_slots_;
  return true;
}

void PageTable::Reset() {
  await_reset_ = false;
  for (Slot& slot : slots_) {
    if (slot.page == kNoPage) continue;
    slot_of_page_[slot.page] = kNoSlot;
    slot.page = kNoPage;
  }
  used_slots_ = 0;
}

}  // namespace retroinfer::kvstore
