// A span of device memory. Unlike std::span it cannot be dereferenced, so that a host pointer is
// never passed where a device pointer is meant.
#pragma once

#include <cstddef>
#include <type_traits>

#include "common/log/check.h"

namespace retroinfer {

template <typename T>
class DeviceSpan {
 public:
  DeviceSpan() = default;
  DeviceSpan(T* device_data, size_t size) : data_(device_data), size_(size) {}
  // From a span of non-const elements.
  template <typename U>
  requires(std::is_same_v<const U, T>)
      DeviceSpan(DeviceSpan<U> other)  // NOLINT(google-explicit-constructor): as std::span
      : data_(other.device_data()), size_(other.size()) {}

  // An address that only kernels of this device may follow.
  T* device_data() const { return data_; }
  size_t size() const { return size_; }
  size_t size_bytes() const { return size_ * sizeof(T); }
  bool empty() const { return size_ == 0; }

  DeviceSpan subspan(size_t offset, size_t count) const {
    RI_DCHECK(offset + count <= size_);
    return DeviceSpan(data_ + offset, count);
  }
  DeviceSpan first(size_t count) const { return subspan(0, count); }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace retroinfer
