#include "gpu_worker/store_link/extent_ledger.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace retroinfer {

void ExtentLedger::Reserve(const ReserveRequest& request, const std::vector<Extent>& extents) {
  std::vector<LedgerExtent> entries;
  uint64_t token_begin = kSinkTokens;
  for (size_t i = 0; i < extents.size(); ++i) {
    DropRetained(extents[i]);
    LedgerExtent& entry = entries.emplace_back(LedgerExtent{extents[i], std::nullopt});
    if (extents[i].cached) {
      entry.token_begin = token_begin;
      entry.identity = std::make_shared<const SegmentIdentity>(*request.segments[i].identity);
    }
    token_begin += extents[i].num_tokens;
  }
  if (!entries.empty()) sequences_[request.sequence_id] = std::move(entries);
}

void ExtentLedger::Commit(uint64_t sequence_id, uint64_t extent_id, uint64_t token_begin,
                          uint32_t num_pages, std::shared_ptr<const SegmentIdentity> identity) {
  const auto sequence = sequences_.find(sequence_id);
  if (sequence == sequences_.end()) return;
  for (LedgerExtent& entry : sequence->second) {
    if (entry.extent.id != extent_id) continue;
    entry.token_begin = token_begin;
    entry.extent.num_pages = num_pages;
    if (identity != nullptr) entry.identity = std::move(identity);
  }
}

void ExtentLedger::Release(uint64_t sequence_id) {
  const auto sequence = sequences_.find(sequence_id);
  if (sequence == sequences_.end()) return;
  std::vector<LedgerExtent>& entries = sequence->second;
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (entry->identity == nullptr || !retains_) continue;
    const PageId first_page = entry->extent.first_page;
    retained_[first_page] = {std::move(*entry), ++last_release_};
  }
  sequences_.erase(sequence);
}

void ExtentLedger::StopRetaining() {
  retains_ = false;
  retained_.clear();
}

void ExtentLedger::DropRetained(const Extent& extent) {
  auto at = retained_.lower_bound(extent.first_page);
  if (at != retained_.begin()) {
    const auto before = std::prev(at);
    if (uint64_t{before->first} + before->second.entry.extent.num_pages > extent.first_page) {
      at = before;
    }
  }
  const uint64_t end = uint64_t{extent.first_page} + extent.num_pages;
  while (at != retained_.end() && at->first < end) at = retained_.erase(at);
}

const LedgerExtent* ExtentLedger::Find(uint64_t sequence_id, uint64_t extent_id) const {
  const auto sequence = sequences_.find(sequence_id);
  if (sequence == sequences_.end()) return nullptr;
  const auto entry = std::find_if(
      sequence->second.begin(), sequence->second.end(),
      [extent_id](const LedgerExtent& candidate) { return candidate.extent.id == extent_id; });
  return entry == sequence->second.end() ? nullptr : &*entry;
}

std::vector<const LedgerExtent*> ExtentLedger::ReferencedSegments() const {
  std::set<uint64_t> seen;
  std::vector<const LedgerExtent*> referenced;
  for (const auto& [id, entries] : sequences_) {
    for (const LedgerExtent& entry : entries) {
      if (entry.identity == nullptr || !seen.insert(entry.extent.id).second) continue;
      referenced.push_back(&entry);
    }
  }
  return referenced;
}

std::vector<const LedgerExtent*> ExtentLedger::RetainedSegments() const {
  std::set<uint64_t> referenced;
  for (const LedgerExtent* entry : ReferencedSegments()) referenced.insert(entry->extent.id);
  std::map<uint64_t, const LedgerExtent*> in_order;
  for (const auto& [page, segment] : retained_) {
    if (!referenced.contains(segment.entry.extent.id)) in_order[segment.released] = &segment.entry;
  }
  std::vector<const LedgerExtent*> retained;
  for (const auto& [released, entry] : in_order) retained.push_back(entry);
  return retained;
}

}  // namespace retroinfer
