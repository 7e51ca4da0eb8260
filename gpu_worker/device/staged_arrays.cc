#include "gpu_worker/device/staged_arrays.h"

#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

constexpr size_t kAlignment = 64;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

size_t StagedArrays::Bytes(std::span<const size_t> sizes) {
  size_t end = 0;
  for (const size_t size : sizes) end += Aligned(size);
  return end;
}

absl::StatusOr<StagedArrays> StagedArrays::Create(Device& device, std::span<const size_t> sizes,
                                                  MemoryPurpose purpose) {
  StagedArrays arrays;
  arrays.device_ = &device;
  size_t end = 0;
  for (const size_t size : sizes) {
    arrays.places_.push_back({end, size});
    end += Aligned(size);
  }
  ASSIGN_OR_RETURN(arrays.host_, device.AllocateHost(end));
  ASSIGN_OR_RETURN(arrays.device_memory_, device.Allocate(end, purpose));
  return arrays;
}

absl::Status StagedArrays::Upload(Stream& stream) const {
  return device_->Upload(stream, host_.bytes(), device_memory_.bytes());
}

size_t StagedArrays::BytesOf(size_t num_arrays) const {
  const Place& last = places_[num_arrays - 1];
  return last.first + last.size;
}

absl::Status StagedArrays::Upload(Stream& stream, size_t num_arrays) const {
  const size_t bytes = BytesOf(num_arrays);
  return device_->Upload(stream, host_.bytes().first(bytes), device_memory_.bytes().first(bytes));
}

absl::Status StagedArrays::Download(Stream& stream, size_t num_arrays) const {
  const size_t bytes = BytesOf(num_arrays);
  return device_->Download(stream, device_memory_.bytes().first(bytes), host_.bytes().first(bytes));
}

}  // namespace retroinfer
