#include "gpu_worker/store_link/extent_ledger.h"

#include <algorithm>

namespace retroinfer {

void ExtentLedger::Reserve(uint64_t sequence_id, const std::vector<Extent>& extents) {
  std::vector<LedgerExtent>& sequence = sequences_[sequence_id];
  sequence.clear();
  for (const Extent& extent : extents) sequence.push_back({extent, std::nullopt});
}

void ExtentLedger::Commit(uint64_t sequence_id, uint64_t extent_id, uint64_t token_begin,
                          uint32_t num_pages) {
  const auto sequence = sequences_.find(sequence_id);
  if (sequence == sequences_.end()) return;
  for (LedgerExtent& entry : sequence->second) {
    if (entry.extent.id != extent_id) continue;
    entry.token_begin = token_begin;
    entry.extent.num_pages = num_pages;
  }
}

void ExtentLedger::Release(uint64_t sequence_id) { sequences_.erase(sequence_id); }

const LedgerExtent* ExtentLedger::Find(uint64_t sequence_id, uint64_t extent_id) const {
  const auto sequence = sequences_.find(sequence_id);
  if (sequence == sequences_.end()) return nullptr;
  const auto entry = std::find_if(
      sequence->second.begin(), sequence->second.end(),
      [extent_id](const LedgerExtent& candidate) { return candidate.extent.id == extent_id; });
  return entry == sequence->second.end() ? nullptr : &*entry;
}

}  // namespace retroinfer
