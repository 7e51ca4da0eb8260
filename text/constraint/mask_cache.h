// Masks that were made, by what they were made for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace retroinfer::constraint {

using Mask = std::vector<uint32_t>;

// The least recently used masks go where there are too many bytes.
//
// Threads: one at a time.
class MaskCache {
 public:
  explicit MaskCache(size_t bytes_max) : bytes_max_(bytes_max) {}

  // nullptr if there is none.
  std::shared_ptr<const Mask> Find(uint32_t key);
  void Insert(uint32_t key, std::shared_ptr<const Mask> mask);
  void Clear();
  size_t memory_bytes() const { return bytes_; }

 private:
  using Entries = std::list<std::pair<uint32_t, std::shared_ptr<const Mask>>>;

  static size_t BytesOf(const Mask& mask);

  size_t bytes_max_;
  size_t bytes_ = 0;
  Entries entries_;  // the most recently used first
  absl::flat_hash_map<uint32_t, Entries::iterator> by_key_;
};

}  // namespace retroinfer::constraint
