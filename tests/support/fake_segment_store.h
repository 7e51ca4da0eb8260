// A SegmentStore in this process, with an arena of ordinary memory: what the kv_store_service does
// for the engine, without the service. It can be stopped, and keeps count of everything.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/kv/segment_layout.h"
#include "gpu_worker/engine/segment_store.h"

namespace retroinfer::test_support {

class FakeSegmentStore final : public SegmentStore {
 public:
  FakeSegmentStore(const KvGeometry& geometry, uint32_t arena_pages)
      : geometry_(geometry), arena_(size_t{arena_pages} * kPageBytes), free_{{0, arena_pages}} {}

  std::span<std::byte> arena() { return arena_; }

  uint32_t arena_pages() const override {
    return static_cast<uint32_t>(arena_.size() / kPageBytes);
  }
  bool attached() const override {
    absl::MutexLock lock(&mutex_);
    return attached_;
  }
  uint64_t num_reattached() const override { return 0; }
  void set_attached(bool attached) {
    absl::MutexLock lock(&mutex_);
    attached_ = attached;
  }

  void Reserve(ReserveRequest request, ReserveCallback callback) override {
    callback(TryReserve(request));
  }

  void Commit(uint64_t /*sequence_id*/, CommittedSegment segment) override {
    absl::MutexLock lock(&mutex_);
    committed_[segment.extent_id] = segment.token_begin;
  }

  void Release(uint64_t sequence_id) override {
    absl::MutexLock lock(&mutex_);
    for (const Extent& extent : held_[sequence_id]) Free(extent.first_page, extent.num_pages);
    held_.erase(sequence_id);
  }

  size_t num_sequences() const {
    absl::MutexLock lock(&mutex_);
    return held_.size();
  }
  size_t num_committed() const {
    absl::MutexLock lock(&mutex_);
    return committed_.size();
  }
  uint32_t free_pages() const {
    absl::MutexLock lock(&mutex_);
    uint32_t total = 0;
    for (const auto& [first, count] : free_) total += count;
    return total;
  }

 private:
  absl::StatusOr<std::vector<Extent>> TryReserve(const ReserveRequest& request) {
    absl::MutexLock lock(&mutex_);
    if (!attached_) return absl::UnavailableError("the kv store does not answer");
    std::vector<Extent> extents;
    for (const SegmentWanted& wanted : request.segments) {
      const uint32_t tokens = wanted.num_tokens;
      const uint32_t pages = SegmentLayout(geometry_, tokens).max_pages;
      auto hole = free_.begin();
      while (hole != free_.end() && hole->second < pages) ++hole;
      if (hole == free_.end()) {
        for (const Extent& extent : extents) Free(extent.first_page, extent.num_pages);
        return absl::ResourceExhaustedError(absl::StrCat("no room for ", pages, " pages"));
      }
      const auto [first, count] = *hole;
      free_.erase(hole);
      if (count > pages) free_[first + pages] = count - pages;
      extents.push_back({next_id_++, first, pages, tokens});
    }
    held_[request.sequence_id] = extents;
    return extents;
  }

  void Free(PageId first, uint32_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto next = free_.lower_bound(first);
    if (next != free_.end() && next->first == first + count) {
      count += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      auto previous = std::prev(next);
      if (previous->first + previous->second == first) {
        previous->second += count;
        return;
      }
    }
    free_[first] = count;
  }

  const KvGeometry geometry_;
  std::vector<std::byte> arena_;
  mutable absl::Mutex mutex_;
  bool attached_ ABSL_GUARDED_BY(mutex_) = true;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<PageId, uint32_t> free_ ABSL_GUARDED_BY(mutex_);  // first page -> pages
  std::map<uint64_t, std::vector<Extent>> held_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, uint64_t> committed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace retroinfer::test_support
