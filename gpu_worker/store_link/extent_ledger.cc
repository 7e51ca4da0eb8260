#include "gpu_worker/store_link/extent_ledger.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

namespace retroinfer {

void ExtentLedger::Reserve(const ReserveRequest& request, const std::vector<Extent>& extents) {
  std::vector<LedgerExtent> entries;
  absl::flat_hash_map<uint64_t, size_t> places;
  uint64_t token_begin = request.rows.has_value() ? request.rows->token_begin : request.token_begin;
  for (size_t i = 0; i < extents.size(); ++i) {
    places.emplace(extents[i].id, i);
    LedgerExtent& entry = entries.emplace_back(LedgerExtent{extents[i], std::nullopt});
    // A partial one is nobody else's after a restart: the new store does not know the rest.
    if (extents[i].cached && extents[i].part_bytes == 0) {
      entry.token_begin = token_begin;
      entry.identity = IdentityOf(request, i, extents[i]);
      NoteKnown(extents[i], entry.identity);
      NoteWhole(entry);
    } else {
      known_.erase(extents[i].id);
    }
    DropRetained(extents[i]);
    token_begin += extents[i].num_tokens;
  }
  if (entries.empty()) return;
  ForgetPartial(request.sequence_id);
  for (const LedgerExtent& entry : entries) {
    if (entry.extent.part_bytes != 0) partial_.emplace(entry.extent.id, request.sequence_id);
  }
  sequences_[request.sequence_id] = std::move(entries);
  places_[request.sequence_id] = std::move(places);
}

std::shared_ptr<const SegmentIdentity> ExtentLedger::IdentityOf(const ReserveRequest& request,
                                                                size_t index,
                                                                const Extent& extent) const {
  const auto has_name = [&extent](const SegmentIdentity& identity) {
    return extent.generated.has_value() ? identity.name == *extent.generated
                                        : !identity.provenance.has_value();
  };
  const auto known = known_.find(extent.id);
  if (known != known_.end() && known->second.first_page == extent.first_page) {
    std::shared_ptr<const SegmentIdentity> identity = known->second.identity.lock();
    const bool is_it = identity != nullptr && has_name(*identity) &&
                       identity->token_ids.size() == extent.num_tokens;
    const bool is_wanted = request.rows.has_value() || extent.generated.has_value() ||
                           (is_it && identity->name == request.segments[index].identity->name);
    if (is_it && is_wanted) return identity;
  }
  if (request.rows.has_value() || !has_name(*request.segments[index].identity)) return nullptr;
  return std::make_shared<const SegmentIdentity>(*request.segments[index].identity);
}

void ExtentLedger::NoteKnown(const Extent& extent,
                             const std::shared_ptr<const SegmentIdentity>& identity) {
  if (identity == nullptr) return;
  known_[extent.id] = {identity, extent.first_page};
  if (known_.size() <= known_max_) return;
  absl::erase_if(known_, [](const auto& entry) { return entry.second.identity.expired(); });
  known_max_ = std::max<size_t>(1024, 2 * known_.size());
}

void ExtentLedger::NoteWhole(const LedgerExtent& whole) {
  const auto first = partial_.lower_bound({whole.extent.id, 0});
  auto end = first;
  for (; end != partial_.end() && end->first == whole.extent.id; ++end) {
    sequences_.at(end->second)[*PlaceOf(end->second, whole.extent.id)] = whole;
  }
  partial_.erase(first, end);
}

void ExtentLedger::ForgetPartial(uint64_t sequence_id) {
  const auto sequence = sequences_.find(sequence_id);
  if (sequence == sequences_.end()) return;
  for (const LedgerExtent& entry : sequence->second) {
    if (entry.extent.part_bytes != 0) partial_.erase({entry.extent.id, sequence_id});
  }
}

std::optional<size_t> ExtentLedger::PlaceOf(uint64_t sequence_id, uint64_t extent_id) const {
  const auto places = places_.find(sequence_id);
  if (places == places_.end()) return std::nullopt;
  const auto place = places->second.find(extent_id);
  if (place == places->second.end()) return std::nullopt;
  return place->second;
}

void ExtentLedger::Commit(uint64_t sequence_id, uint64_t extent_id, uint64_t token_begin,
                          uint32_t num_pages, std::shared_ptr<const SegmentIdentity> identity) {
  const std::optional<size_t> place = PlaceOf(sequence_id, extent_id);
  if (!place.has_value()) return;
  LedgerExtent& entry = sequences_.at(sequence_id)[*place];
  entry.token_begin = token_begin;
  entry.extent.num_pages = num_pages;
  if (identity == nullptr) return;
  entry.identity = std::move(identity);
  NoteKnown(entry.extent, entry.identity);
}

void ExtentLedger::Release(uint64_t sequence_id) {
  const auto sequence = sequences_.find(sequence_id);
  if (sequence == sequences_.end()) return;
  ForgetPartial(sequence_id);
  std::vector<LedgerExtent>& entries = sequence->second;
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (entry->identity == nullptr || !retains_) continue;
    const PageId first_page = entry->extent.first_page;
    retained_[first_page] = {std::move(*entry), ++last_release_};
  }
  sequences_.erase(sequence);
  places_.erase(sequence_id);
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
  const std::optional<size_t> place = PlaceOf(sequence_id, extent_id);
  return place.has_value() ? &sequences_.at(sequence_id)[*place] : nullptr;
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
