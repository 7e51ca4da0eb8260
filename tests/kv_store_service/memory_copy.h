// Descriptors of a worker's memory, once more.
#pragma once

#include <unistd.h>

#include "kv_store_service/store/arena_leases.h"

namespace retroinfer::kvstore {

inline MemoryDescriptors CopyOf(const MemoryDescriptors& memory) {
  MemoryDescriptors copy{.arena = common::UniqueFd(::dup(memory.arena.get()))};
  for (const common::UniqueFd& plane : memory.data_planes) {
    copy.data_planes.emplace_back(::dup(plane.get()));
  }
  return copy;
}

}  // namespace retroinfer::kvstore
