// Typed view of the data-plane memory that one worker and the store share
// (common/shm/data_plane_layout.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "common/kv/kv_geometry.h"
#include "common/shm/data_plane_layout.h"
#include "common/shm/spsc_ring.h"

namespace retroinfer {

// The rings, stamps and cursors of a data plane.
//
// Threads: as its parts: each ring has one producer and one consumer. The getters may be called on
//          any thread.
// Owns:    nothing; the bytes belong to a mapping that outlives the view. Sizes are copied from the
//          header when the view is made, so that a peer that changes the header later changes
//          nothing.
class DataPlane {
 public:
  // Limits of what a worker may ask for.
  static constexpr uint32_t kSlotsMax = 1u << 27;  // 256 GiB of pages
  static constexpr uint32_t kLogCapacityMin = 64;
  static constexpr uint32_t kLogCapacityMax = 1u << 26;
  static constexpr uint32_t kRequestCapacityMin = 64;
  static constexpr uint32_t kRequestCapacityMax = 1u << 20;
  // Of the planes of one worker, one for each rank: all of them together have at most as many
  // slots and entries as kLargestPlanes of the largest size, so 6 GiB.
  static constexpr uint32_t kPlanesMax = 16;
  static constexpr uint32_t kLargestPlanes = 4;

  // Capacities that do not slow a cache of so many slots down. The log has room for a snapshot of
  // the whole cache and as many entries again; the ring for the requests of a step, some of which
  // will be refused. `num_planes`: of the worker, which bounds each.
  static uint32_t LogCapacityFor(uint32_t num_slots, uint32_t num_planes = 1);
  static uint32_t RequestCapacityFor(uint32_t num_slots, uint32_t num_planes = 1);

  // Returns INVALID_ARGUMENT unless the sizes are within the limits and capacities are powers of
  // two. The message names the field, its value and its limits.
  static absl::Status ValidateSizes(uint32_t num_slots, uint32_t log_capacity,
                                    uint32_t request_capacity);

  // The same of `num_planes` planes of these sizes each, which are bounded in sum.
  static absl::Status ValidatePlanes(uint32_t num_planes, uint32_t num_slots, uint32_t log_capacity,
                                     uint32_t request_capacity);

  // Writes the header for the given sizes into zeroed memory and returns the view.
  //
  // REQUIRES: the sizes are valid; memory.size() >= MakeDataPlaneHeader(...).total_bytes; memory is
  //           zero and aligned to 64 bytes.
  static DataPlane Format(std::span<std::byte> memory, const DataPlaneHeader& header);

  // Returns a view of memory that another process has formatted, which is hostile until checked.
  //
  // Returns: INVALID_ARGUMENT unless magic, version, limits, offsets and total size are exactly
  //          those that MakeDataPlaneHeader gives and fit into `memory`.
  static absl::StatusOr<DataPlane> Open(std::span<std::byte> memory);

  uint32_t num_slots() const { return header_.num_slots; }
  uint64_t arena_pages() const { return header_.arena_pages; }
  const DataPlaneHeader& header() const { return header_; }
  // All bytes of the plane, header included.
  std::span<std::byte> memory() const {
    return {reinterpret_cast<std::byte*>(control_), static_cast<size_t>(header_.total_bytes)};
  }

  // Access log, worker -> store.
  SpscRing<LogEntry>& log() { return log_; }
  // Eviction requests, store -> worker.
  SpscRing<EvictionRequest>& requests() { return requests_; }
  // Last-use stamps, [num_slots]: written by the worker between two steps when asked, see
  // StampControl; stable for the store while published == requested.
  std::span<StepStamp> stamps() const { return stamps_; }
  StampControl& stamp_control() { return control_->stamps; }
  // Number of the step last begun, written by the worker.
  std::atomic<uint64_t>& worker_step() { return control_->worker_step.value; }
  // Not 0 once another worker has the arena, see DataPlaneControl.
  std::atomic<uint64_t>& arena_taken() { return control_->arena_taken.value; }
  const std::atomic<uint64_t>& arena_taken() const { return control_->arena_taken.value; }

 private:
  DataPlane(std::span<std::byte> memory, const DataPlaneHeader& header);

  DataPlaneHeader header_{};
  DataPlaneControl* control_ = nullptr;
  SpscRing<LogEntry> log_;
  SpscRing<EvictionRequest> requests_;
  std::span<StepStamp> stamps_;
};

}  // namespace retroinfer
