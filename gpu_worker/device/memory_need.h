// Bytes of device memory by purpose, as a component says what it will allocate for given limits.
//
// A component has one list of its allocations: Create() goes through it, and MemoryOf() adds it up.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <numeric>

#include "gpu_worker/device/device.h"

namespace retroinfer {

class MemoryNeed {
 public:
  MemoryNeed() = default;
  MemoryNeed(MemoryPurpose purpose, size_t bytes) { (*this)[purpose] = bytes; }

  size_t& operator[](MemoryPurpose purpose) { return bytes_[static_cast<size_t>(purpose)]; }
  size_t operator[](MemoryPurpose purpose) const { return bytes_[static_cast<size_t>(purpose)]; }
  size_t total() const { return std::accumulate(bytes_.begin(), bytes_.end(), size_t{0}); }

  MemoryNeed& operator+=(const MemoryNeed& other) {
    std::transform(bytes_.begin(), bytes_.end(), other.bytes_.begin(), bytes_.begin(),
                   std::plus<size_t>());
    return *this;
  }
  friend MemoryNeed operator+(MemoryNeed a, const MemoryNeed& b) { return a += b; }
  friend bool operator==(const MemoryNeed&, const MemoryNeed&) = default;

 private:
  std::array<size_t, static_cast<size_t>(MemoryPurpose::kCount)> bytes_{};
};

}  // namespace retroinfer
