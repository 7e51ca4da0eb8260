// A tensor of a checkpoint, whatever format its file has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "gpu_worker/ops/model/weight_type.h"

namespace retroinfer {

// How the bytes that a file stores become those of HostTensor::type, in files whose tensors are
// coded or in another order.
//
// Threads: immutable; any number of callers.
class TensorCoding {
 public:
  struct Extent {
    size_t begin = 0;  // of what is stored
    size_t size = 0;
  };

  virtual ~TensorCoding() = default;

  // What of the stored bytes tells the tensor's bytes [begin, begin + size).
  virtual Extent StoredExtent(size_t begin, size_t size) const = 0;
  // Writes the tensor's bytes [begin, begin + out.size()).
  //
  // REQUIRES: `stored` is StoredExtent(begin, out.size()).
  virtual void Decode(std::span<const std::byte> stored, size_t begin,
                      std::span<std::byte> out) const = 0;
  // Reads what else decides the tensor's numbers than what is stored of it (scales), if anything.
  //
  // Returns: INVALID_ARGUMENT, naming the tensor that holds it, for what gives no finite numbers.
  virtual absl::Status Check() const { return absl::OkStatus(); }
};

// Row-major.
struct HostTensor {
  WeightType type = WeightType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> stored;  // in the mapped file; has no particular alignment
  // Where its file has the same bytes.
  int fd = -1;
  uint64_t file_offset = 0;
  std::shared_ptr<const TensorCoding> coding = {};  // none: `stored` are the tensor's bytes

  // Of the tensor, not of what is stored.
  size_t num_bytes() const {
    if (coding == nullptr) return stored.size();
    size_t size = WeightTypeBytes(type);
    for (const int64_t extent : shape) size *= static_cast<size_t>(extent);
    return size;
  }

  // The tensor's bytes [begin, begin + size): in the mapped file, or, where they are coded, in
  // `memory`, which they replace.
  std::span<const std::byte> Bytes(size_t begin, size_t size,
                                   std::vector<std::byte>& memory) const {
    if (coding == nullptr) return stored.subspan(begin, size);
    const TensorCoding::Extent extent = coding->StoredExtent(begin, size);
    memory.resize(size);
    coding->Decode(stored.subspan(extent.begin, extent.size), begin, memory);
    return memory;
  }
};

}  // namespace retroinfer
