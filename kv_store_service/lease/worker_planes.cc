#include "kv_store_service/lease/worker_planes.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer::kvstore {
namespace {

DataPlaneHeader HeaderOf(const PlaneSizes& sizes, uint64_t arena_pages) {
  return MakeDataPlaneHeader(sizes.num_slots, sizes.log_capacity, sizes.request_capacity,
                             arena_pages);
}

absl::Status CheckAdopted(const DataPlane& plane, const PlaneSizes& sizes, uint64_t arena_pages) {
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
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerPlanes>> WorkerPlanes::Make(const PlaneSizes& sizes,
                                                                 uint64_t arena_pages,
                                                                 const Watermarks& watermarks,
                                                                 const MakeMemory& make_memory) {
  const DataPlaneHeader header = HeaderOf(sizes, arena_pages);
  auto planes = absl::WrapUnique(new WorkerPlanes());
  for (uint32_t rank = 0; rank < sizes.num_planes; ++rank) {
    ASSIGN_OR_RETURN(
        common::SealedMemory memory,
        make_memory ? make_memory(header.total_bytes)
                    : common::SealedMemory::Create("retroinfer data plane", header.total_bytes, 1));
    const DataPlane plane = DataPlane::Format(memory.bytes(), header);
    planes->planes_.push_back(std::make_unique<Plane>(
        std::move(memory), plane, DataPlaneServer::Options{.watermarks = watermarks}));
  }
  return planes;
}

absl::StatusOr<std::unique_ptr<WorkerPlanes>> WorkerPlanes::Adopt(std::vector<common::UniqueFd> fds,
                                                                  const PlaneSizes& sizes,
                                                                  uint64_t arena_pages,
                                                                  const Watermarks& watermarks) {
  if (fds.size() != sizes.num_planes) {
    return absl::InvalidArgumentError(absl::StrCat(fds.size(), " data planes were handed back, ",
                                                   sizes.num_planes, " were declared"));
  }
  auto planes = absl::WrapUnique(new WorkerPlanes());
  for (common::UniqueFd& fd : fds) {
    ASSIGN_OR_RETURN(
        common::SealedMemory memory,
        common::SealedMemory::Adopt(std::move(fd), HeaderOf(sizes, arena_pages).total_bytes));
    ASSIGN_OR_RETURN(const DataPlane plane, DataPlane::Open(memory.bytes()));
    RETURN_IF_ERROR(CheckAdopted(plane, sizes, arena_pages));
    planes->planes_.push_back(std::make_unique<Plane>(
        std::move(memory), plane,
        DataPlaneServer::Options{.watermarks = watermarks, .await_reset = true}));
  }
  return planes;
}

absl::Status WorkerPlanes::Start() {
  for (const auto& plane : planes_) {
    const absl::Status status = plane->server.Start();
    if (status.ok()) continue;
    Stop();
    return status;
  }
  return absl::OkStatus();
}

void WorkerPlanes::Stop() {
  for (const auto& plane : planes_) plane->server.Stop();
}

void WorkerPlanes::NotifyArenaTaken() {
  for (const auto& plane : planes_) {
    plane->view.arena_taken().store(1, std::memory_order_seq_cst);
  }
}

uint64_t WorkerPlanes::num_bytes() const { return planes_.front()->view.header().total_bytes; }

std::vector<DataPlaneStats> WorkerPlanes::stats() const {
  std::vector<DataPlaneStats> stats;
  for (const auto& plane : planes_) stats.push_back(plane->server.stats());
  return stats;
}

std::vector<uint64_t> WorkerPlanes::num_rounds() const {
  std::vector<uint64_t> rounds;
  for (const auto& plane : planes_) rounds.push_back(plane->server.num_rounds());
  return rounds;
}

}  // namespace retroinfer::kvstore
