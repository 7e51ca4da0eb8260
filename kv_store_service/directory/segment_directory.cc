#include "kv_store_service/directory/segment_directory.h"

#include "absl/strings/str_cat.h"
#include "common/log/check.h"

namespace retroinfer::kvstore {

absl::Status SegmentDirectory::AddSequence(uint64_t sequence_id,
                                           const std::vector<ExtentRecord>& extents) {
  const auto [sequence, is_new] = sequences_.try_emplace(sequence_id);
  if (!is_new) {
    return absl::AlreadyExistsError(
        absl::StrCat("sequence ", sequence_id, " has already reserved its extents"));
  }
  for (const ExtentRecord& extent : extents) {
    RI_CHECK(extent.sequence_id == sequence_id);
    RI_CHECK(extents_.emplace(extent.id, extent).second);
    sequence->second.push_back(extent.id);
    num_committed_ += extent.committed() ? 1 : 0;
  }
  return absl::OkStatus();
}

const std::vector<uint64_t>* SegmentDirectory::FindSequence(uint64_t sequence_id) const {
  const auto sequence = sequences_.find(sequence_id);
  return sequence == sequences_.end() ? nullptr : &sequence->second;
}

const ExtentRecord* SegmentDirectory::FindExtent(uint64_t extent_id) const {
  const auto extent = extents_.find(extent_id);
  return extent == extents_.end() ? nullptr : &extent->second;
}

const ExtentRecord* SegmentDirectory::FindOverlap(uint64_t sequence_id, uint64_t token_begin,
                                                  uint32_t token_count) const {
  const std::vector<uint64_t>* ids = FindSequence(sequence_id);
  if (ids == nullptr) return nullptr;
  for (const uint64_t id : *ids) {
    const ExtentRecord& extent = extents_.at(id);
    if (extent.committed() && *extent.token_begin < token_begin + token_count &&
        token_begin < *extent.token_begin + extent.reserved_tokens) {
      return &extent;
    }
  }
  return nullptr;
}

PageRun SegmentDirectory::Commit(uint64_t extent_id, uint64_t token_begin, uint32_t num_pages) {
  ExtentRecord& extent = extents_.at(extent_id);
  RI_CHECK(!extent.committed() && num_pages > 0 && num_pages <= extent.pages.count);
  const PageRun tail{extent.pages.first + num_pages, extent.pages.count - num_pages};
  extent.pages.count = num_pages;
  extent.token_begin = token_begin;
  ++num_committed_;
  return tail;
}

std::vector<ExtentRecord> SegmentDirectory::RemoveSequence(uint64_t sequence_id) {
  std::vector<ExtentRecord> removed;
  const auto sequence = sequences_.find(sequence_id);
  if (sequence == sequences_.end()) return removed;
  for (const uint64_t id : sequence->second) {
    const auto extent = extents_.find(id);
    num_committed_ -= extent->second.committed() ? 1 : 0;
    removed.push_back(extent->second);
    extents_.erase(extent);
  }
  sequences_.erase(sequence);
  return removed;
}

std::vector<const ExtentRecord*> SegmentDirectory::List(uint64_t after, size_t limit) const {
  std::vector<const ExtentRecord*> records;
  for (auto extent = extents_.upper_bound(after);
       extent != extents_.end() && records.size() < limit; ++extent) {
    records.push_back(&extent->second);
  }
  return records;
}

}  // namespace retroinfer::kvstore
