// A SegmentStore in this process, with an arena of ordinary memory: what the kv_store_service does
// for the engine, without the service. It can be stopped, and keeps count of everything.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <list>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/kv/segment_layout.h"
#include "common/log/check.h"
#include "gpu_worker/engine/segment_store.h"

namespace retroinfer::test_support {

// Threads: as SegmentStore. Callbacks come on the thread of the call that has decided them.
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
  bool memory_taken() const override { return memory_taken_; }
  void TakeMemory() { memory_taken_ = true; }
  void set_attached(bool attached) {
    absl::MutexLock lock(&mutex_);
    attached_ = attached;
  }

  void Reserve(ReserveRequest request, ReserveCallback callback) override {
    Run([&] {
      mutex_.AssertHeld();
      waiting_.push_back({std::move(request), std::move(callback)});
    });
  }

  using SegmentStore::Commit;
  void Commit(uint64_t sequence_id, std::vector<CommittedSegment> segments) override {
    for (CommittedSegment& segment : segments) CommitOne(sequence_id, std::move(segment));
  }

  void CommitOne(uint64_t sequence_id, CommittedSegment segment) {
    Run([&] {
      mutex_.AssertHeld();
      Entry& entry = entries_.at(segment.extent_id);
      RI_CHECK(!entry.committed);
      entry.committed = true;
      ++num_committed_;
      if (!segment.identity.has_value()) return;
      const auto computing = computing_.find(segment.identity->name);
      if (computing != computing_.end() && computing->second == sequence_id) {
        computing_.erase(computing);
      }
      if (named_.emplace(segment.identity->name, segment.extent_id).second) {
        entry.identity = std::move(segment.identity);
      }
    });
  }

  void Release(uint64_t sequence_id) override {
    Run([&] {
      mutex_.AssertHeld();
      for (const uint64_t id : held_[sequence_id]) Unreference(id);
      held_.erase(sequence_id);
      std::erase_if(computing_, [&](const auto& item) { return item.second == sequence_id; });
      for (Waiting& waiting : waiting_) {
        if (waiting.request.sequence_id == sequence_id) waiting.is_cancelled = true;
      }
    });
  }

  // Answers to reservations wait, as behind a slow link, until LetAnswersGo().
  void HoldAnswers() {
    absl::MutexLock lock(&mutex_);
    hold_answers_ = true;
  }
  void LetAnswersGo() {
    std::vector<Answer> answers;
    {
      absl::MutexLock lock(&mutex_);
      hold_answers_ = false;
      answers.swap(held_answers_);
    }
    for (Answer& answer : answers) answer.first(std::move(answer.second));
  }
  size_t num_held_answers() const {
    absl::MutexLock lock(&mutex_);
    return held_answers_.size();
  }

  // Forgets every named segment that nobody uses.
  void EvictUnused() {
    absl::MutexLock lock(&mutex_);
    while (EvictOne()) {
    }
  }

  size_t num_sequences() const {
    absl::MutexLock lock(&mutex_);
    return held_.size();
  }
  // Segments committed since the start.
  size_t num_committed() const {
    absl::MutexLock lock(&mutex_);
    return num_committed_;
  }
  size_t num_named() const {
    absl::MutexLock lock(&mutex_);
    return named_.size();
  }
  size_t num_evicted() const {
    absl::MutexLock lock(&mutex_);
    return num_evicted_;
  }
  // Requests whose answer waits for a segment that somebody else computes.
  size_t num_waiting() const {
    absl::MutexLock lock(&mutex_);
    return waiting_.size();
  }
  // Pages that are free or could be: of segments that nobody uses.
  uint32_t free_pages() const {
    absl::MutexLock lock(&mutex_);
    uint32_t total = 0;
    for (const auto& [first, count] : free_) total += count;
    for (const auto& [id, entry] : entries_) {
      if (entry.num_references == 0) total += entry.extent.num_pages;
    }
    return total;
  }

 private:
  struct Entry {
    Extent extent;
    std::optional<SegmentIdentity> identity = std::nullopt;  // set: named_ has it
    bool committed = false;
    int num_references = 0;
    uint64_t last_use = 0;
  };
  struct Waiting {
    ReserveRequest request;
    ReserveCallback callback;
    bool is_cancelled = false;
  };
  using Answer = std::pair<ReserveCallback, absl::StatusOr<std::vector<Extent>>>;

  // Changes the state, then answers what can be answered now, without the lock.
  template <typename Change>
  void Run(const Change& change) {
    std::vector<Answer> answers;
    {
      absl::MutexLock lock(&mutex_);
      change();
      for (auto waiting = waiting_.begin(); waiting != waiting_.end();) {
        if (!waiting->is_cancelled && MustWait(waiting->request)) {
          ++waiting;
          continue;
        }
        absl::StatusOr<std::vector<Extent>> result =
            waiting->is_cancelled ? absl::CancelledError("the sequence was released")
                                  : TryReserve(waiting->request);
        answers.emplace_back(std::move(waiting->callback), std::move(result));
        waiting = waiting_.erase(waiting);
      }
      if (hold_answers_) {
        std::move(answers.begin(), answers.end(), std::back_inserter(held_answers_));
        answers.clear();
      }
    }
    for (Answer& answer : answers) answer.first(std::move(answer.second));
  }

  // Ids of the longest prefix that is committed.
  std::vector<uint64_t> Cached(const ReserveRequest& request) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<uint64_t> ids;
    for (const SegmentWanted& wanted : request.segments) {
      if (!wanted.identity.has_value()) break;
      const auto found = named_.find(wanted.identity->name);
      if (found == named_.end()) break;
      RI_CHECK(entries_.at(found->second).identity->token_ids == wanted.identity->token_ids);
      ids.push_back(found->second);
    }
    return ids;
  }

  bool MustWait(const ReserveRequest& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!attached_ || request.cached_only) return false;
    const size_t next = Cached(request).size();
    return next < request.segments.size() && request.segments[next].identity.has_value() &&
           computing_.contains(request.segments[next].identity->name);
  }

  absl::StatusOr<std::vector<Extent>> TryReserve(const ReserveRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!attached_) return absl::UnavailableError("the kv store does not answer");
    std::vector<uint64_t> held = Cached(request);
    std::vector<Extent> extents;
    for (const uint64_t id : held) {
      Entry& entry = entries_.at(id);
      ++entry.num_references;
      entry.last_use = ++clock_;
      extents.push_back(entry.extent);
      extents.back().cached = true;
    }
    const size_t num_cached = held.size();
    for (size_t i = num_cached; i < request.segments.size() && !request.cached_only; ++i) {
      const uint32_t tokens = request.segments[i].num_tokens;
      const uint32_t pages = SegmentLayout(geometry_, tokens).max_pages;
      const std::optional<PageId> first = Allocate(pages);
      if (!first.has_value()) {
        for (const uint64_t id : held) Unreference(id);
        return absl::ResourceExhaustedError(absl::StrCat("no room for ", pages, " pages"));
      }
      const Extent extent{next_id_++, *first, pages, tokens};
      entries_[extent.id] = {.extent = extent, .num_references = 1, .last_use = ++clock_};
      held.push_back(extent.id);
      extents.push_back(extent);
    }
    for (size_t i = num_cached; i < extents.size(); ++i) {
      const auto& identity = request.segments[i].identity;
      if (identity.has_value()) computing_.emplace(identity->name, request.sequence_id);
    }
    held_[request.sequence_id] = std::move(held);
    return extents;
  }

  // Evicts what nobody uses, the least recently used first, until there is room.
  std::optional<PageId> Allocate(uint32_t pages) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (true) {
      auto hole = free_.begin();
      while (hole != free_.end() && hole->second < pages) ++hole;
      if (hole != free_.end()) {
        const auto [first, count] = *hole;
        free_.erase(hole);
        if (count > pages) free_[first + pages] = count - pages;
        return first;
      }
      if (!EvictOne()) return std::nullopt;
    }
  }

  bool EvictOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto victim = entries_.end();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (entry->second.num_references > 0) continue;
      if (victim == entries_.end() || entry->second.last_use < victim->second.last_use) {
        victim = entry;
      }
    }
    if (victim == entries_.end()) return false;
    named_.erase(victim->second.identity->name);
    Free(victim->second.extent.first_page, victim->second.extent.num_pages);
    entries_.erase(victim);
    ++num_evicted_;
    return true;
  }

  void Unreference(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Entry& entry = entries_.at(id);
    entry.last_use = ++clock_;
    if (--entry.num_references > 0 || entry.identity.has_value()) return;
    Free(entry.extent.first_page, entry.extent.num_pages);
    entries_.erase(id);
  }

  void Free(PageId first, uint32_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // Whoever still reads these pages finds garbage.
    std::memset(arena_.data() + size_t{first} * kPageBytes, 0x7f, size_t{count} * kPageBytes);
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
  std::atomic<bool> memory_taken_{false};
  bool attached_ ABSL_GUARDED_BY(mutex_) = true;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t clock_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t num_committed_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t num_evicted_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<PageId, uint32_t> free_ ABSL_GUARDED_BY(mutex_);  // first page -> pages
  std::map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::vector<uint64_t>> held_ ABSL_GUARDED_BY(mutex_);  // by sequence
  std::map<common::SegmentName, uint64_t> named_ ABSL_GUARDED_BY(mutex_);   // committed -> extent
  std::map<common::SegmentName, uint64_t> computing_ ABSL_GUARDED_BY(mutex_);  // -> sequence
  std::list<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  bool hold_answers_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Answer> held_answers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace retroinfer::test_support
