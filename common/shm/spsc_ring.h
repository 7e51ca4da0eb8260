// A single-producer single-consumer ring over memory that another process may share.
//
// Threads: one producer and one consumer, in the same or in different processes. Lock-free.
// Owns:    nothing; cursors and entries belong to the mapping.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/shm/data_plane_layout.h"

namespace retroinfer {

template <typename T>
class SpscRing {
 public:
  SpscRing() = default;
  // REQUIRES: entries.size() is a power of two; cursors and entries outlive the ring.
  SpscRing(RingCursor* head, RingCursor* tail, std::span<T> entries)
      : head_(head), tail_(tail), entries_(entries) {}

  size_t capacity() const { return entries_.size(); }

  // Producer: number of entries that can be pushed now. A consumer that writes nonsense into its
  // cursor makes this 0, never more than capacity.
  size_t FreeEntries() const {
    const uint64_t used =
        head_->value.load(std::memory_order_relaxed) - tail_->value.load(std::memory_order_acquire);
    return used <= capacity() ? capacity() - used : 0;
  }

  // Producer: appends `entry` and publishes it. Returns false if the ring is full.
  bool TryPush(const T& entry) {
    if (FreeEntries() == 0) return false;
    const uint64_t head = head_->value.load(std::memory_order_relaxed);
    entries_[head & (capacity() - 1)] = entry;
    head_->value.store(head + 1, std::memory_order_release);
    return true;
  }

  // Consumer: copies up to out.size() entries and frees their places. Returns how many, or
  // DATA_LOSS if the producer's cursor is impossible (more than capacity ahead); the ring is then
  // unusable.
  absl::StatusOr<size_t> Pop(std::span<T> out) {
    const absl::StatusOr<Parts> parts = Peek(out.size());
    if (!parts.ok()) return parts.status();
    std::copy(parts->first.begin(), parts->first.end(), out.begin());
    std::copy(parts->second.begin(), parts->second.end(),
              out.begin() + static_cast<ptrdiff_t>(parts->first.size()));
    Drop(parts->size());
    return parts->size();
  }

  // Entries where they lie, in two parts where they go round the ring's end.
  struct Parts {
    std::span<const T> first, second;
    size_t size() const { return first.size() + second.size(); }
  };
  // Consumer: the next entries, up to `max`, which stay until Drop(): for copies that a device
  // makes. Returns as Pop(). A hostile producer may go on changing them: look at each byte of a
  // copy.
  absl::StatusOr<Parts> Peek(size_t max) const {
    const uint64_t tail = tail_->value.load(std::memory_order_relaxed);
    const uint64_t available = head_->value.load(std::memory_order_acquire) - tail;
    if (available > capacity()) {
      return absl::DataLossError(absl::StrCat("shared ring: the producer's cursor is ", available,
                                              " entries ahead, capacity is ", capacity()));
    }
    const size_t count = std::min<size_t>(available, max);
    const size_t begin = tail & (capacity() - 1);
    const size_t first = std::min(count, capacity() - begin);
    return Parts{entries_.subspan(begin, first), entries_.first(count - first)};
  }
  // Consumer: frees the places of the next `count` entries. REQUIRES: Peek() has shown them.
  void Drop(size_t count) {
    const uint64_t tail = tail_->value.load(std::memory_order_relaxed);
    tail_->value.store(tail + count, std::memory_order_release);
  }

  // Number of entries between the cursors; for metrics.
  size_t Depth() const {
    const uint64_t depth =
        head_->value.load(std::memory_order_acquire) - tail_->value.load(std::memory_order_acquire);
    return depth <= capacity() ? depth : capacity();
  }

 private:
  RingCursor* head_ = nullptr;  // next entry to write
  RingCursor* tail_ = nullptr;  // next entry to read
  std::span<T> entries_;
};

}  // namespace retroinfer
