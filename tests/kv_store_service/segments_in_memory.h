// ArenaSegments over plain memory, whose images are read in the same call, for tests.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "common/status/status_macros.h"
#include "kv_store_service/directory/arena_segments.h"

namespace retroinfer::kvstore {

class SegmentsInMemory : public ArenaSegments {
 public:
  SegmentsInMemory(std::span<const std::byte> arena, const KvGeometry& geometry)
      : ArenaSegments(static_cast<uint32_t>(arena.size() / kPageBytes), geometry), arena_(arena) {}

  absl::StatusOr<std::vector<ExtentRecord>> Commit(uint64_t sequence_id,
                                                   std::span<const SegmentToCommit> segments) {
    ASSIGN_OR_RETURN(const std::vector<ImageToRead> images, ImagesToCommit(sequence_id, segments));
    return ArenaSegments::Commit(sequence_id, segments, Read(images));
  }
  // All in one part; after an error nothing of sequences is left.
  absl::Status Declare(const Declaration& part) {
    const absl::Status status = ArenaSegments::Declare(part, Read(ImagesToDeclare(part)));
    if (!status.ok()) ReleaseAll();
    return status;
  }

 private:
  ReadImages Read(const std::vector<ImageToRead>& images) const {
    ReadImages read;
    for (const ImageToRead& image : images) {
      read.emplace(image.extent_id,
                   ReadSegmentImage(arena_.subspan(size_t{image.pages.first} * kPageBytes,
                                                   size_t{image.pages.count} * kPageBytes),
                                    geometry(), image.token_begin, image.token_count));
    }
    return read;
  }

  const std::span<const std::byte> arena_;
};

}  // namespace retroinfer::kvstore
