#include "kv_store_service/lease/worker_plane.h"

#include <utility>

#include "common/status/status_macros.h"

namespace retroinfer::kvstore {
namespace {

DataPlaneHeader HeaderOf(const PlaneSizes& sizes, uint64_t arena_pages) {
  return MakeDataPlaneHeader(sizes.num_slots, sizes.log_capacity, sizes.request_capacity,
                             arena_pages);
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerPlane>> WorkerPlane::Make(const PlaneSizes& sizes,
                                                               uint64_t arena_pages,
                                                               const Watermarks& watermarks,
                                                               const MakeMemory& make_memory) {
  const DataPlaneHeader header = HeaderOf(sizes, arena_pages);
  ASSIGN_OR_RETURN(
      common::SealedMemory memory,
      make_memory ? make_memory(header.total_bytes)
                  : common::SealedMemory::Create("retroinfer data plane", header.total_bytes, 1));
  const DataPlane plane = DataPlane::Format(memory.bytes(), header);
  return std::unique_ptr<WorkerPlane>(
      new WorkerPlane(std::move(memory), plane, {.watermarks = watermarks}));
}

absl::StatusOr<std::unique_ptr<WorkerPlane>> WorkerPlane::Adopt(common::UniqueFd fd,
                                                                const PlaneSizes& sizes,
                                                                uint64_t arena_pages,
                                                                const Watermarks& watermarks) {
  const DataPlaneHeader expected = HeaderOf(sizes, arena_pages);
  ASSIGN_OR_RETURN(common::SealedMemory memory,
                   common::SealedMemory::Adopt(std::move(fd), expected.total_bytes));
  ASSIGN_OR_RETURN(DataPlane plane, DataPlane::Open(memory.bytes()));
  const DataPlaneHeader& header = plane.header();
  if (header.num_slots != sizes.num_slots || header.log_capacity != sizes.log_capacity ||
      header.request_capacity != sizes.request_capacity || header.arena_pages != arena_pages) {
    return absl::InvalidArgumentError(
        "the data plane that was handed back does not fit the arena and what was declared");
  }
  if (plane.arena_taken().load(std::memory_order_acquire) != 0) {
    return absl::FailedPreconditionError(
        "another worker has used the arena since: what this one kept there is lost; start it "
        "again");
  }
  return std::unique_ptr<WorkerPlane>(
      new WorkerPlane(std::move(memory), plane, {.watermarks = watermarks, .await_reset = true}));
}

}  // namespace retroinfer::kvstore
