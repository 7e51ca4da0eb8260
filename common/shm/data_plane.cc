#include "common/shm/data_plane.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

absl::Status ValidateCapacity(std::string_view name, uint32_t value, uint32_t min, uint32_t max) {
  if (value >= min && value <= max && (value & (value - 1)) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("data plane: ", std::string(name), " is ", value,
                                                 ", needs a power of two from ", min, " to ", max));
}

// Most entries that each of `num_planes` planes may have; `max`: that one may have.
uint32_t LargestOf(uint32_t max, uint32_t num_planes) {
  const uint64_t in_all = uint64_t{max} * DataPlane::kLargestPlanes;
  return static_cast<uint32_t>(
      std::min<uint64_t>(max, std::bit_floor(in_all / std::max(num_planes, 1u))));
}

template <typename T>
std::span<T> EntriesAt(std::span<std::byte> memory, uint64_t offset, uint32_t count) {
  return {reinterpret_cast<T*>(memory.data() + offset), count};
}

}  // namespace

uint32_t DataPlane::LogCapacityFor(uint32_t num_slots, uint32_t num_planes) {
  const uint64_t entries = std::bit_ceil(uint64_t{2} * num_slots + 64);
  return static_cast<uint32_t>(
      std::clamp<uint64_t>(entries, kLogCapacityMin, LargestOf(kLogCapacityMax, num_planes)));
}

uint32_t DataPlane::RequestCapacityFor(uint32_t num_slots, uint32_t num_planes) {
  constexpr uint32_t kOneInRequested = 8;  // more than the store keeps free by default
  constexpr uint32_t kLeast = 1u << 12;    // 64 KiB
  return std::bit_ceil(
      std::clamp(num_slots / kOneInRequested, kLeast, LargestOf(kRequestCapacityMax, num_planes)));
}

absl::Status DataPlane::ValidateSizes(uint32_t num_slots, uint32_t log_capacity,
                                      uint32_t request_capacity) {
  if (num_slots > kSlotsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("data plane: num_slots is ", num_slots, ", needs 0 to ", kSlotsMax));
  }
  RETURN_IF_ERROR(ValidateCapacity("log_capacity", log_capacity, kLogCapacityMin, kLogCapacityMax));
  return ValidateCapacity("request_capacity", request_capacity, kRequestCapacityMin,
                          kRequestCapacityMax);
}

absl::Status DataPlane::ValidatePlanes(uint32_t num_planes, uint32_t num_slots,
                                       uint32_t log_capacity, uint32_t request_capacity) {
  if (num_planes < 1 || num_planes > kPlanesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("data planes: num_planes is ", num_planes, ", needs 1 to ", kPlanesMax));
  }
  RETURN_IF_ERROR(ValidateSizes(num_slots, log_capacity, request_capacity));
  const auto check = [num_planes](std::string_view name, uint32_t value, uint32_t max) {
    const uint64_t in_all = uint64_t{max} * kLargestPlanes;
    if (uint64_t{value} * num_planes <= in_all) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("data planes: ", std::string(name), " is ",
                                                   value, " in each of ", num_planes,
                                                   ", which may have ", in_all, " in all"));
  };
  RETURN_IF_ERROR(check("num_slots", num_slots, kSlotsMax));
  RETURN_IF_ERROR(check("log_capacity", log_capacity, kLogCapacityMax));
  return check("request_capacity", request_capacity, kRequestCapacityMax);
}

DataPlane::DataPlane(std::span<std::byte> memory, const DataPlaneHeader& header)
    : header_(header),
      control_(reinterpret_cast<DataPlaneControl*>(memory.data())),
      log_(&control_->log_head, &control_->log_tail,
           EntriesAt<LogEntry>(memory, header.log_offset, header.log_capacity)),
      requests_(
          &control_->request_head, &control_->request_tail,
          EntriesAt<EvictionRequest>(memory, header.requests_offset, header.request_capacity)),
      stamps_(EntriesAt<StepStamp>(memory, header.stamps_offset, header.num_slots)) {}

DataPlane DataPlane::Format(std::span<std::byte> memory, const DataPlaneHeader& header) {
  RI_CHECK(memory.size() >= header.total_bytes);
  RI_CHECK(reinterpret_cast<uintptr_t>(memory.data()) % alignof(DataPlaneControl) == 0);
  std::memcpy(memory.data(), &header, sizeof(header));
  return DataPlane(memory, header);
}

absl::StatusOr<DataPlane> DataPlane::Open(std::span<std::byte> memory) {
  if (memory.size() < sizeof(DataPlaneControl)) {
    return absl::InvalidArgumentError(absl::StrCat("data plane: ", memory.size(),
                                                   " bytes, the header alone needs ",
                                                   sizeof(DataPlaneControl)));
  }
  DataPlaneHeader header;
  std::memcpy(&header, memory.data(), sizeof(header));
  if (header.magic != kDataPlaneMagic || header.version != kDataPlaneVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("data plane: magic ", absl::Hex(header.magic), " version ", header.version,
                     ", needs ", absl::Hex(kDataPlaneMagic), " version ", kDataPlaneVersion));
  }
  RETURN_IF_ERROR(ValidateSizes(header.num_slots, header.log_capacity, header.request_capacity));
  const DataPlaneHeader expected = MakeDataPlaneHeader(header.num_slots, header.log_capacity,
                                                       header.request_capacity, header.arena_pages);
  if (std::memcmp(&header, &expected, sizeof(header)) != 0) {
    return absl::InvalidArgumentError(
        "data plane: the header's offsets do not follow from its sizes");
  }
  if (header.total_bytes > memory.size()) {
    return absl::InvalidArgumentError(absl::StrCat("data plane: the header's total_bytes is ",
                                                   header.total_bytes, ", the memory has ",
                                                   memory.size()));
  }
  if (header.arena_pages == 0 || header.arena_pages >= kNoPage) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data plane: arena_pages is ", header.arena_pages, ", needs 1 to ", kNoPage - 1));
  }
  return DataPlane(memory, header);
}

}  // namespace retroinfer
