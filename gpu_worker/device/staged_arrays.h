// Small arrays that host and device exchange every step: an image in host memory that copies do not
// wait for, and the same arrays in device memory. One copy moves all of them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"

namespace retroinfer {

// Threads: as Device. The image must stay unchanged until the stream has passed a copy.
// Owns:    both sides.
class StagedArrays {
 public:
  StagedArrays() = default;
  // Arrays of `sizes` bytes each, zeroed in the image only.
  static absl::StatusOr<StagedArrays> Create(Device& device, std::span<const size_t> sizes,
                                             MemoryPurpose purpose);
  // Bytes of device memory that Create takes.
  static size_t Bytes(std::span<const size_t> sizes);

  // The elements of array `index`; a remainder of bytes is left out.
  template <typename T>
  std::span<T> Host(size_t index) const {
    const std::span<std::byte> bytes =
        host_.bytes().subspan(places_[index].first, places_[index].size);
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  template <typename T>
  DeviceSpan<T> On(size_t index) const {
    const DeviceSpan<std::byte> bytes =
        device_memory_.bytes().subspan(places_[index].first, places_[index].size);
    return {reinterpret_cast<T*>(bytes.device_data()), bytes.size() / sizeof(T)};
  }

  // Enqueue a copy of the whole image, or of its first `num_arrays` arrays, to the device or from
  // it.
  absl::Status Upload(Stream& stream) const;
  absl::Status Upload(Stream& stream, size_t num_arrays) const;
  absl::Status Download(Stream& stream, size_t num_arrays) const;

 private:
  size_t BytesOf(size_t num_arrays) const;

  struct Place {
    size_t first;  // bytes
    size_t size;
  };

  Device* device_ = nullptr;
  std::vector<Place> places_;
  HostBuffer host_;
  DeviceBuffer device_memory_;
};

}  // namespace retroinfer
