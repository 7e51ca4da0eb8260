#include "text/constraint/mask_cache.h"

namespace retroinfer::constraint {

size_t MaskCache::BytesOf(const Mask& mask) {
  constexpr size_t kEntryBytes = 128;  // of list, map and shared pointer
  return mask.size() * sizeof(uint32_t) + kEntryBytes;
}

std::shared_ptr<const Mask> MaskCache::Find(uint32_t key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->second;
}

void MaskCache::Insert(uint32_t key, std::shared_ptr<const Mask> mask) {
  const size_t bytes = BytesOf(*mask);
  if (bytes > bytes_max_ || by_key_.contains(key)) return;
  while (bytes_ + bytes > bytes_max_) {
    bytes_ -= BytesOf(*entries_.back().second);
    by_key_.erase(entries_.back().first);
    entries_.pop_back();
  }
  entries_.emplace_front(key, std::move(mask));
  by_key_.emplace(key, entries_.begin());
  bytes_ += bytes;
}

void MaskCache::Clear() {
  entries_.clear();
  by_key_.clear();
  bytes_ = 0;
}

}  // namespace retroinfer::constraint
