// A cache of pages that forgets the least recently used one, and nothing else: what a block cache
// is compared with.
#pragma once

#include <cstdint>
#include <vector>

#include "common/kv/kv_geometry.h"

namespace retroinfer::test_support {

class LruPages {
 public:
  LruPages(uint32_t num_pages, uint32_t capacity)
      : capacity_(capacity), next_(num_pages + 1, kNone), previous_(num_pages + 1, kNone) {
    next_[num_pages] = previous_[num_pages] = num_pages;
  }

  // Uses a page. Returns whether it was there.
  bool Use(PageId page) {
    const bool was_there = next_[page] != kNone;
    if (was_there) {
      Unlink(page);
    } else if (size_ == capacity_) {
      Unlink(previous_.back());
    }
    const PageId end = static_cast<PageId>(next_.size() - 1);
    next_[page] = next_[end];
    previous_[page] = end;
    previous_[next_[end]] = page;
    next_[end] = page;
    ++size_;
    return was_there;
  }

 private:
  static constexpr PageId kNone = UINT32_MAX;

  void Unlink(PageId page) {
    next_[previous_[page]] = next_[page];
    previous_[next_[page]] = previous_[page];
    next_[page] = previous_[page] = kNone;
    --size_;
  }

  const uint32_t capacity_;
  uint32_t size_ = 0;
  // A ring through the pages that are there, the last one used first; its end is the last entry.
  std::vector<PageId> next_, previous_;
};

}  // namespace retroinfer::test_support
