#include "gpu_worker/engine/prefix_directory.h"

namespace retroinfer {

uint64_t PrefixDirectory::Acquire(const NamedPrefix& prefix) {
  if (prefix.names.empty()) return 0;
  Entry& entry = entries_[prefix.names[0]];
  if (entry.number == 0) entry.number = ++last_number_;
  if (entry.requests++ == 0) std::erase(idle_, prefix.names[0]);
  return entry.number;
}

void PrefixDirectory::Release(const NamedPrefix& prefix) {
  if (prefix.names.empty()) return;
  if (--entries_[prefix.names[0]].requests > 0) return;
  idle_.push_back(prefix.names[0]);
  if (idle_.size() <= kRemembered) return;
  entries_.erase(idle_.front());
  idle_.pop_front();
}

}  // namespace retroinfer
