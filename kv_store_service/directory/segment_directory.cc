// Invariants: a record is in unreferenced_ if and only if it is named and has no references; one
// that has neither a name nor references does not exist; by_name_ holds the records with a key, and
// in_progress_ only uncommitted ones; children_ has what IsFoundByParent() of the records with a
// key and of the uncommitted ones that are reserved for a name. unreferenced_by_page_ holds what
// unreferenced_ does.
#include "kv_store_service/directory/segment_directory.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/check.h"

namespace retroinfer::kvstore {

absl::Status SegmentDirectory::AddSequence(uint64_t sequence_id,
                                           const std::vector<ExtentRecord>& extents,
                                           size_t num_shared) {
  for (size_t i = 0; i < extents.size(); ++i) {
    const bool shared = i < num_shared;
    RI_CHECK(shared ? extents[i].found_as() != nullptr : extents[i].sequence_id == sequence_id);
    RI_CHECK(extents_.contains(extents[i].id) == shared);
  }
  return DeclareSequence(sequence_id, extents, num_shared);
}

absl::Status SegmentDirectory::DeclareSequence(uint64_t sequence_id,
                                               const std::vector<ExtentRecord>& extents,
                                               size_t num_cached) {
  const auto [sequence, is_new] = sequences_.try_emplace(sequence_id);
  if (!is_new) {
    return absl::AlreadyExistsError(
        absl::StrCat("sequence ", sequence_id, " has already reserved its extents"));
  }
  sequence->second.num_cached = num_cached;
  for (const ExtentRecord& extent : extents) {
    if (!extents_.contains(extent.id)) AddExtent(extent).sequence_id = sequence_id;
    ExtentRecord& known = extents_.at(extent.id);
    Reference(known);
    sequence->second.extent_ids.push_back(extent.id);
    sequence->second.id_set.insert(extent.id);
    if (known.committed()) sequence->second.by_begin.emplace(*known.token_begin, extent.id);
  }
  return absl::OkStatus();
}

void SegmentDirectory::AddNamed(ExtentRecord segment) {
  RI_CHECK(segment.committed() && segment.key != nullptr);
  const uint64_t id = segment.id;
  RI_CHECK(by_name_.try_emplace(segment.key->identity.name, id).second);
  named_pages_ += segment.pages.count;
  ExtentRecord& added = AddExtent(segment);
  AddChild(added.key->identity, added);
  added.references = 1;
  Unreference(added);
}

ExtentRecord& SegmentDirectory::AddExtent(const ExtentRecord& extent) {
  const auto [added, is_new] = extents_.emplace(extent.id, extent);
  RI_CHECK(is_new);
  added->second.references = 0;
  num_committed_ += extent.committed() ? 1 : 0;
  if (extent.wanted != nullptr && !extent.committed()) {
    in_progress_.try_emplace(extent.wanted->name, extent.id);
    AddChild(*extent.wanted, extent);
  }
  return added->second;
}

void SegmentDirectory::AddChild(const SegmentIdentity& identity, const ExtentRecord& extent) {
  if (!IsFoundByParent(identity, extent.reserved_tokens)) return;
  children_[identity.parent].insert(extent.id);
}

void SegmentDirectory::RemoveChild(const SegmentIdentity& identity, uint64_t extent_id) {
  const auto children = children_.find(identity.parent);
  if (children == children_.end()) return;
  children->second.erase(extent_id);
  if (children->second.empty()) children_.erase(children);
}

std::vector<const ExtentRecord*> SegmentDirectory::FindChildren(
    const common::SegmentName& parent) const {
  std::vector<const ExtentRecord*> found;
  const auto children = children_.find(parent);
  if (children == children_.end()) return found;
  for (auto id = children->second.rbegin();
       id != children->second.rend() && found.size() < kChildrenMax; ++id) {
    found.push_back(&extents_.at(*id));
  }
  return found;
}

void SegmentDirectory::Reference(ExtentRecord& extent) {
  if (extent.references++ > 0 || extent.key == nullptr) return;
  unreferenced_.erase(extent.unreferenced_since);
  unreferenced_by_page_.erase(extent.pages.first);
  unreferenced_pages_ -= extent.pages.count;
}

void SegmentDirectory::Unreference(ExtentRecord& extent) {
  RI_CHECK(extent.references > 0);
  if (--extent.references > 0 || extent.key == nullptr) return;
  extent.unreferenced_since = ++last_release_;
  unreferenced_.emplace(extent.unreferenced_since, extent.id);
  unreferenced_by_page_[extent.pages.first] = {extent.id, extent.pages.count, last_release_};
  unreferenced_pages_ += extent.pages.count;
}

void SegmentDirectory::Pin(uint64_t extent_id) {
  ExtentRecord& extent = extents_.at(extent_id);
  RI_CHECK(extent.key != nullptr);
  Reference(extent);
  pinned_pages_ += extent.pages.count;
}

void SegmentDirectory::Unpin(uint64_t extent_id) {
  ExtentRecord& extent = extents_.at(extent_id);
  pinned_pages_ -= extent.pages.count;
  ++num_unpinned_;
  Unreference(extent);
}

const SequenceRecord* SegmentDirectory::FindSequence(uint64_t sequence_id) const {
  const auto sequence = sequences_.find(sequence_id);
  return sequence == sequences_.end() ? nullptr : &sequence->second;
}

const ExtentRecord* SegmentDirectory::FindExtent(uint64_t extent_id) const {
  const auto extent = extents_.find(extent_id);
  return extent == extents_.end() ? nullptr : &extent->second;
}

const ExtentRecord* SegmentDirectory::FindNamed(const common::SegmentName& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &extents_.at(found->second);
}

const ExtentRecord* SegmentDirectory::FindInProgress(const common::SegmentName& name) const {
  const auto found = in_progress_.find(name);
  return found == in_progress_.end() ? nullptr : &extents_.at(found->second);
}

bool SegmentDirectory::References(uint64_t sequence_id, uint64_t extent_id) const {
  const SequenceRecord* sequence = FindSequence(sequence_id);
  return sequence != nullptr && sequence->id_set.contains(extent_id);
}

const ExtentRecord* SegmentDirectory::FindOverlap(uint64_t sequence_id, uint64_t token_begin,
                                                  uint32_t token_count) const {
  const SequenceRecord* sequence = FindSequence(sequence_id);
  if (sequence == nullptr) return nullptr;
  // No two of a sequence overlap: only the last one that begins before the end can.
  auto last = sequence->by_begin.lower_bound(token_begin + token_count);
  if (last == sequence->by_begin.begin()) return nullptr;
  const ExtentRecord& extent = extents_.at(std::prev(last)->second);
  return token_begin < *extent.token_begin + extent.reserved_tokens ? &extent : nullptr;
}

PageRun SegmentDirectory::Commit(uint64_t extent_id, uint64_t token_begin, uint32_t num_pages,
                                 std::shared_ptr<const SegmentKey> key) {
  ExtentRecord& extent = extents_.at(extent_id);
  RI_CHECK(!extent.committed() && num_pages > 0 && num_pages <= extent.pages.count);
  AbandonWanted(extent_id);
  const PageRun tail{extent.pages.first + num_pages, extent.pages.count - num_pages};
  extent.pages.count = num_pages;
  extent.token_begin = token_begin;
  extent.partial = nullptr;
  extent.part_bytes = 0;
  ++num_committed_;
  const auto owner = sequences_.find(extent.sequence_id);
  if (owner != sequences_.end()) owner->second.by_begin.emplace(token_begin, extent_id);
  if (key != nullptr && by_name_.try_emplace(key->identity.name, extent_id).second) {
    extent.key = std::move(key);
    named_pages_ += num_pages;
    AddChild(extent.key->identity, extent);
  }
  return tail;
}

PageRun SegmentDirectory::MarkPartial(uint64_t extent_id, uint64_t token_begin, uint32_t num_pages,
                                      uint32_t part_bytes, std::shared_ptr<const SegmentKey> key) {
  ExtentRecord& extent = extents_.at(extent_id);
  RI_CHECK(!extent.committed() && num_pages > 0 && num_pages <= extent.pages.count);
  const PageRun tail{extent.pages.first + num_pages, extent.pages.count - num_pages};
  extent.pages.count = num_pages;
  extent.partial = std::move(key);
  extent.partial_begin = token_begin;
  extent.part_bytes = part_bytes;
  return tail;
}

void SegmentDirectory::AbandonWanted(uint64_t extent_id) {
  const auto extent = extents_.find(extent_id);
  if (extent == extents_.end()) return;
  extent->second.partial = nullptr;
  if (extent->second.wanted == nullptr) return;
  const std::shared_ptr<const SegmentIdentity> wanted = std::move(extent->second.wanted);
  extent->second.wanted = nullptr;
  if (extent->second.committed()) return;
  const auto entry = in_progress_.find(wanted->name);
  if (entry != in_progress_.end() && entry->second == extent_id) in_progress_.erase(entry);
  RemoveChild(*wanted, extent_id);
}

ExtentRecord SegmentDirectory::Remove(uint64_t extent_id) {
  AbandonWanted(extent_id);
  const auto extent = extents_.find(extent_id);
  ExtentRecord record = std::move(extent->second);
  num_committed_ -= record.committed() ? 1 : 0;
  extents_.erase(extent);
  return record;
}

std::vector<ExtentRecord> SegmentDirectory::RemoveSequence(uint64_t sequence_id) {
  std::vector<ExtentRecord> removed;
  const auto sequence = sequences_.find(sequence_id);
  if (sequence == sequences_.end()) return removed;
  std::vector<uint64_t>& ids = sequence->second.extent_ids;
  for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
    ExtentRecord& extent = extents_.at(*id);
    Unreference(extent);
    if (extent.references == 0 && extent.key == nullptr) removed.push_back(Remove(*id));
  }
  sequences_.erase(sequence);
  std::reverse(removed.begin(), removed.end());
  return removed;
}

std::vector<const ExtentRecord*> SegmentDirectory::Unreferenced() const {
  std::vector<const ExtentRecord*> records;
  for (const auto& [since, id] : unreferenced_) records.push_back(&extents_.at(id));
  return records;
}

ExtentRecord SegmentDirectory::Evict(uint64_t extent_id) {
  const ExtentRecord& extent = extents_.at(extent_id);
  RI_CHECK(extent.key != nullptr && extent.references == 0);
  unreferenced_.erase(extent.unreferenced_since);
  unreferenced_by_page_.erase(extent.pages.first);
  by_name_.erase(extent.key->identity.name);
  RemoveChild(extent.key->identity, extent_id);
  unreferenced_pages_ -= extent.pages.count;
  named_pages_ -= extent.pages.count;
  return Remove(extent_id);
}

std::vector<const ExtentRecord*> SegmentDirectory::List(uint64_t after, size_t limit) const {
  std::vector<const ExtentRecord*> records;
  for (auto extent = extents_.upper_bound(after);
       extent != extents_.end() && records.size() < limit; ++extent) {
    records.push_back(&extent->second);
  }
  return records;
}

std::vector<uint64_t> SegmentDirectory::SequenceIds() const {
  std::vector<uint64_t> ids;
  for (const auto& [id, sequence] : sequences_) ids.push_back(id);
  return ids;
}

}  // namespace retroinfer::kvstore
