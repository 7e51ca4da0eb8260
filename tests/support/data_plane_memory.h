// A data plane in ordinary memory, formatted as the store does it.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "common/shm/data_plane.h"

namespace retroinfer::test_support {

class DataPlaneMemory {
 public:
  DataPlaneMemory(uint32_t num_slots, uint32_t log_capacity, uint32_t request_capacity,
                  uint64_t arena_pages)
      : header_(MakeDataPlaneHeader(num_slots, log_capacity, request_capacity, arena_pages)),
        memory_(static_cast<std::byte*>(std::aligned_alloc(4096, header_.total_bytes))) {
    std::memset(memory_.get(), 0, header_.total_bytes);
    DataPlane::Format(bytes(), header_);
  }

  std::span<std::byte> bytes() { return {memory_.get(), header_.total_bytes}; }
  // A view for the store's side.
  DataPlane view() { return *DataPlane::Open(bytes()); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  const DataPlaneHeader header_;
  const std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace retroinfer::test_support
