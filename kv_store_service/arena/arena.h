// The shared memory of all segments, which lives as long as anybody works with its bytes.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "common/kv/kv_geometry.h"
#include "common/shm/sealed_memory.h"
#include "kv_store_service/arena/extent_allocator.h"

namespace retroinfer::kvstore {

// Who reads or writes the bytes of an arena outside the store's lock holds an ArenaRef meanwhile:
// the store may take another arena at any time, and the mapping of this one stays until the last
// reference is gone.
//
// Threads: all methods on any thread. The bytes belong to whoever holds their extent.
// Owns:    the mapping and the descriptor.
class Arena {
 public:
  // REQUIRES: memory.valid().
  explicit Arena(common::SealedMemory memory) : memory_(std::move(memory)) {}

  uint64_t num_bytes() const { return memory_.bytes().size(); }
  uint32_t num_pages() const { return static_cast<uint32_t>(num_bytes() / kPageBytes); }
  int fd() const { return memory_.fd(); }

  // REQUIRES: the run is inside the arena.
  std::span<std::byte> BytesOf(PageRun pages) const {
    return memory_.bytes().subspan(size_t{pages.first} * kPageBytes,
                                   size_t{pages.count} * kPageBytes);
  }

  // Whether both are mappings of the same memory, perhaps by different descriptors.
  bool IsSameMemory(const Arena& other) const {
    struct stat mine {
    }, theirs{};
    return ::fstat(fd(), &mine) == 0 && ::fstat(other.fd(), &theirs) == 0 &&
           mine.st_dev == theirs.st_dev && mine.st_ino == theirs.st_ino;
  }

 private:
  const common::SealedMemory memory_;
};

using ArenaRef = std::shared_ptr<const Arena>;

}  // namespace retroinfer::kvstore
