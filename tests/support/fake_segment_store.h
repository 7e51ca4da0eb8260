// A SegmentStore in this process, with an arena of ordinary memory: the kv_store_service's own
// directory, without the service. It can be stopped, and keeps count of everything.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <list>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/kv/segment_layout.h"
#include "common/log/check.h"
#include "common/status/error_reason.h"
#include "gpu_worker/engine/segment_store.h"
#include "kv_store_service/directory/arena_segments.h"

namespace retroinfer::test_support {

// Threads: as SegmentStore. Callbacks come on the thread of the call that has decided them.
class FakeSegmentStore final : public SegmentStore {
 public:
  FakeSegmentStore(const KvGeometry& geometry, uint32_t arena_pages, bool serves_parts = false)
      : serves_parts_(serves_parts),
        arena_(size_t{arena_pages} * kPageBytes),
        segments_(arena_pages, geometry) {}

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

  void Commit(uint64_t sequence_id, CommittedSegment segment) override {
    std::vector<CommittedSegment> segments;
    segments.push_back(std::move(segment));
    Commit(sequence_id, std::move(segments));
  }

  void Commit(uint64_t sequence_id, std::vector<CommittedSegment> segments) override {
    Run([&] {
      mutex_.AssertHeld();
      std::vector<kvstore::SegmentToCommit> to_commit;
      for (CommittedSegment& segment : segments) {
        const kvstore::ExtentRecord* extent = segments_.directory().FindExtent(segment.extent_id);
        RI_CHECK(extent != nullptr && !extent->committed());
        to_commit.push_back({segment.extent_id, segment.token_begin, extent->reserved_tokens,
                             std::move(segment.identity)});
      }
      const auto images = segments_.ImagesToCommit(sequence_id, to_commit);
      RequireOk(images.status());
      Pages before;
      for (const kvstore::ImageToRead& image : *images) {
        before.emplace_back(image.extent_id, image.pages);
      }
      const auto committed = segments_.Commit(sequence_id, to_commit, ReadAll(*images));
      RequireOk(committed.status());
      num_committed_ += to_commit.size();
      PoisonFreed(before);
    });
  }

  void Release(uint64_t sequence_id) override {
    Run([&] {
      mutex_.AssertHeld();
      const Pages pages = PagesOf(sequence_id);
      segments_.Release(sequence_id);
      PoisonFreed(pages);
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
    for (const kvstore::ExtentRecord* segment : segments_.directory().Unreferenced()) {
      const PageRun pages = segment->pages;
      RI_CHECK(segments_.EvictNamed(common::SegmentName(segment->key->identity.name)));
      ++num_evicted_by_hand_;
      Poison(pages);
    }
  }

  // --- Segments that are read from a disk.
  bool serves_parts() const override { return serves_parts_; }
  // From now on the segments that nobody uses have their indexes in the arena, and garbage in the
  // place of their pages until these are asked for. Who wants them whole gets them so.
  void PutOnDisk() {
    absl::MutexLock lock(&mutex_);
    for (const kvstore::ExtentRecord* segment : segments_.directory().Unreferenced()) {
      if (segment->reserved_tokens < kDecodeSegmentTokens) continue;
      const std::span<std::byte> image = BytesOf(segment->pages);
      const SegmentLayout layout(segments_.geometry(), segment->reserved_tokens);
      OnDisk& on_disk = on_disk_[segment->id];
      on_disk.image.assign(image.begin(), image.end());
      on_disk.pages = segment->pages;
      on_disk.num_parts = static_cast<uint32_t>((image.size() + kPart - 1) / kPart);
      std::ranges::fill(image.subspan(layout.first_kv_page * kPageBytes), std::byte{0xff});
    }
  }
  void FetchParts(std::vector<PartsOfExtent> wanted, PartsCallback callback) override {
    absl::StatusOr<std::vector<uint32_t>> there = std::vector<uint32_t>();
    {
      absl::MutexLock lock(&mutex_);
      ++num_fetches_;
      if (holds_parts_) {
        held_parts_.emplace_back(std::move(wanted), std::move(callback));
        return;
      }
      if (parts_error_.ok()) {
        for (const PartsOfExtent& parts : wanted) there->push_back(Bring(parts));
      } else {
        there = parts_error_;
      }
    }
    callback(std::move(there));
  }
  void HoldParts() {
    absl::MutexLock lock(&mutex_);
    holds_parts_ = true;
  }
  // Requests for parts end with this; OK: they come.
  void LetPartsGo(absl::Status error = absl::OkStatus()) {
    std::vector<std::pair<std::vector<PartsOfExtent>, PartsCallback>> held;
    {
      absl::MutexLock lock(&mutex_);
      holds_parts_ = false;
      parts_error_ = std::move(error);
      held.swap(held_parts_);
    }
    for (auto& [wanted, callback] : held) FetchParts(std::move(wanted), std::move(callback));
  }
  size_t num_fetches() const {
    absl::MutexLock lock(&mutex_);
    return num_fetches_;
  }
  uint64_t num_parts_fetched() const {
    absl::MutexLock lock(&mutex_);
    return num_parts_fetched_;
  }

  size_t num_sequences() const {
    absl::MutexLock lock(&mutex_);
    return segments_.directory().num_sequences();
  }
  // Segments and blocks committed since the start.
  size_t num_committed() const {
    absl::MutexLock lock(&mutex_);
    return num_committed_;
  }
  size_t num_named() const {
    absl::MutexLock lock(&mutex_);
    return segments_.directory().num_named();
  }
  size_t num_evicted() const {
    absl::MutexLock lock(&mutex_);
    return num_evicted_by_hand_ + segments_.counters().evictions;
  }
  // Requests whose answer waits for a segment that somebody else computes.
  size_t num_waiting() const {
    absl::MutexLock lock(&mutex_);
    return waiting_.size();
  }
  // Pages that are free or could be: of segments that nobody uses.
  uint32_t free_pages() const {
    absl::MutexLock lock(&mutex_);
    return static_cast<uint32_t>(segments_.allocator().free_pages() +
                                 segments_.directory().unreferenced_pages());
  }

 private:
  using PageRun = kvstore::PageRun;
  using Pages = std::vector<std::pair<uint64_t, PageRun>>;  // by extent id
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
        absl::StatusOr<std::vector<Extent>> result =
            waiting->is_cancelled ? absl::CancelledError("the sequence was released")
                                  : TryReserve(waiting->request);
        if (waiting->request.waits &&
            common::ReasonOf(result.status()).reason == kSegmentInProgressReason) {
          ++waiting;
          continue;
        }
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

  absl::StatusOr<std::vector<Extent>> TryReserve(const ReserveRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!attached_) return absl::UnavailableError("the kv store does not answer");
    const auto reservation = segments_.Reserve(request);
    if (!reservation.ok()) return reservation.status();
    RI_CHECK(reservation->num_to_compare == 0);  // requests here have all token ids
    std::vector<Extent> extents;
    for (size_t i = 0; i < reservation->extents.size(); ++i) {
      const kvstore::ExtentRecord& record = reservation->extents[i];
      Extent& extent = extents.emplace_back();
      extent = {record.id, record.pages.first, record.pages.count, record.reserved_tokens,
                i < reservation->num_cached};
      // What was evicted for it is garbage.
      if (!extent.cached) {
        on_disk_.erase(record.id);
        Poison(record.pages);
      } else if (on_disk_.contains(record.id) && request.takes_partial) {
        extent.part_bytes = kPart;
      } else if (on_disk_.contains(record.id)) {
        const OnDisk& on_disk = on_disk_.at(record.id);
        std::ranges::copy(on_disk.image, BytesOf(on_disk.pages).begin());
        on_disk_.erase(record.id);
      }
      if (extent.cached && record.key->identity.provenance.has_value()) {
        extent.generated = record.key->identity.name;
      }
    }
    return extents;
  }

  static constexpr uint32_t kPart = 4096;
  struct OnDisk {
    std::vector<std::byte> image;
    PageRun pages;
    uint32_t num_parts = 0;
  };
  // Returns how many leading parts are there: none are counted that others asked for.
  uint32_t Bring(const PartsOfExtent& parts) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = on_disk_.find(parts.extent_id);
    if (found == on_disk_.end()) return kAllParts;
    const OnDisk& on_disk = found->second;
    const std::span<std::byte> arena = BytesOf(on_disk.pages);
    for (size_t i = 0; i < parts.runs.size(); i += 2) {
      RI_CHECK(uint64_t{parts.runs[i]} + parts.runs[i + 1] <= on_disk.num_parts);
      const size_t begin = size_t{parts.runs[i]} * kPart;
      const size_t end = std::min(arena.size(), begin + size_t{parts.runs[i + 1]} * kPart);
      std::copy(on_disk.image.begin() + static_cast<std::ptrdiff_t>(begin),
                on_disk.image.begin() + static_cast<std::ptrdiff_t>(end),
                arena.begin() + static_cast<std::ptrdiff_t>(begin));
      num_parts_fetched_ += parts.runs[i + 1];
    }
    return 0;
  }

  kvstore::ReadImages ReadAll(std::span<const kvstore::ImageToRead> images)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    kvstore::ReadImages read;
    for (const kvstore::ImageToRead& image : images) {
      read.emplace(image.extent_id,
                   kvstore::ReadSegmentImage(BytesOf(image.pages), segments_.geometry(),
                                             image.token_begin, image.token_count));
    }
    return read;
  }

  Pages PagesOf(uint64_t sequence_id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Pages pages;
    const kvstore::SequenceRecord* sequence = segments_.directory().FindSequence(sequence_id);
    if (sequence == nullptr) return pages;
    for (const uint64_t id : sequence->extent_ids) {
      pages.emplace_back(id, segments_.directory().FindExtent(id)->pages);
    }
    return pages;
  }

  std::span<std::byte> BytesOf(PageRun pages) {
    return std::span(arena_).subspan(size_t{pages.first} * kPageBytes,
                                     size_t{pages.count} * kPageBytes);
  }
  // Whoever still reads these pages finds garbage.
  void Poison(PageRun pages) { std::ranges::fill(BytesOf(pages), std::byte{0x7f}); }
  // The same for those of the pages that their extents do not have any more.
  void PoisonFreed(const Pages& pages) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const auto& [id, run] : pages) {
      const kvstore::ExtentRecord* extent = segments_.directory().FindExtent(id);
      const uint32_t kept = extent == nullptr ? 0 : extent->pages.count;
      Poison({run.first + kept, run.count - kept});
    }
  }

  static void RequireOk(const absl::Status& status) {
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    RI_CHECK(status.ok());
  }

  const bool serves_parts_;
  std::vector<std::byte> arena_;
  mutable absl::Mutex mutex_;
  std::atomic<bool> memory_taken_{false};
  kvstore::ArenaSegments segments_ ABSL_GUARDED_BY(mutex_);
  bool attached_ ABSL_GUARDED_BY(mutex_) = true;
  std::map<uint64_t, OnDisk> on_disk_ ABSL_GUARDED_BY(mutex_);  // by extent id
  bool holds_parts_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status parts_error_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<std::vector<PartsOfExtent>, PartsCallback>> held_parts_
      ABSL_GUARDED_BY(mutex_);
  size_t num_fetches_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t num_parts_fetched_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t num_committed_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t num_evicted_by_hand_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  bool hold_answers_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Answer> held_answers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace retroinfer::test_support
