// Hands out the numbers of fixed-size blocks of a pool.
//
// Threads: one.
// Owns:    numbers only; the pool's memory belongs to somebody else.
#pragma once

#include <cstdint>
#include <vector>

#include "common/log/check.h"

namespace retroinfer {

class IdAllocator {
 public:
  explicit IdAllocator(int32_t num_ids) : in_use_(static_cast<size_t>(num_ids), false) {
    free_.reserve(static_cast<size_t>(num_ids));
    for (int32_t id = num_ids - 1; id >= 0; --id) free_.push_back(id);
  }

  int32_t total() const { return static_cast<int32_t>(in_use_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_used() const { return total() - num_free(); }

  // Appends `count` numbers to `out`. Returns false, having done nothing, if there are not so many.
  bool Allocate(int32_t count, std::vector<int32_t>& out) {
    if (count > num_free()) return false;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t id = free_.back();
      free_.pop_back();
      in_use_[static_cast<size_t>(id)] = true;
      out.push_back(id);
    }
    return true;
  }

  // Takes back `ids` and empties the vector. REQUIRES: each was handed out and not freed since.
  void Free(std::vector<int32_t>& ids) {
    for (const int32_t id : ids) {
      RI_CHECK(id >= 0 && id < total() && in_use_[static_cast<size_t>(id)]);
      in_use_[static_cast<size_t>(id)] = false;
      free_.push_back(id);
    }
    ids.clear();
  }

 private:
  std::vector<int32_t> free_;
  std::vector<bool> in_use_;
};

}  // namespace retroinfer
