#include "gpu_worker/device/device.h"

#include <utility>

namespace retroinfer {

std::string_view MemoryPurposeName(MemoryPurpose purpose) {
  switch (purpose) {
    case MemoryPurpose::kWeights:
      return "weights";
    case MemoryPurpose::kActivations:
      return "activations";
    case MemoryPurpose::kDenseKv:
      return "dense_kv";
    case MemoryPurpose::kMetaIndex:
      return "meta_index";
    case MemoryPurpose::kBlockCache:
      return "block_cache";
    case MemoryPurpose::kCount:
      break;
  }
  return "unknown";
}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  if (this == &other) return *this;
  if (data_ != nullptr) device_->Free(data_, bytes_, purpose_);
  device_ = std::exchange(other.device_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  purpose_ = other.purpose_;
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) device_->Free(data_, bytes_, purpose_);
}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  if (this == &other) return *this;
  if (data_ != nullptr) device_->FreeHost(data_, bytes_);
  device_ = std::exchange(other.device_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

HostBuffer::~HostBuffer() {
  if (data_ != nullptr) device_->FreeHost(data_, bytes_);
}

}  // namespace retroinfer
