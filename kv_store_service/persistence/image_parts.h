// The image of a segment on the disk, read in parts: what is wanted first, and no more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

namespace retroinfer::kvstore {

// Neighbouring parts of an image.
struct PartRun {
  uint32_t first = 0;
  uint32_t count = 0;

  friend bool operator==(const PartRun&, const PartRun&) = default;
};

// An image is cut into parts of part_bytes from its beginning; the last one may be shorter. Each
// has a checksum of its own.
//
// Threads: all methods on any thread.
class ImageParts {
 public:
  virtual ~ImageParts() = default;

  virtual uint32_t part_bytes() const = 0;
  virtual uint64_t image_bytes() const = 0;
  virtual const std::vector<int32_t>& token_ids() const = 0;  // of the segment
  uint32_t num_parts() const {
    return static_cast<uint32_t>((image_bytes() + part_bytes() - 1) / part_bytes());
  }

  // Reads parts into their places of `image`, with several threads, and checks each.
  //
  // REQUIRES: the runs are among num_parts(); image.size() is image_bytes().
  // Returns:  as SegmentStorage::Read(). After an error the bytes of these parts are unspecified.
  virtual absl::Status Read(std::span<const PartRun> runs, std::span<std::byte> image) = 0;
};

}  // namespace retroinfer::kvstore
