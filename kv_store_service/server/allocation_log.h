// Lines that say how far the allocation of the arena is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace retroinfer::kvstore {

// Threads: one.
class AllocationLog {
 public:
  static constexpr absl::Duration kInterval = absl::Seconds(2);

  // Of an allocation of `bytes` that begins at `begin`.
  AllocationLog(uint64_t bytes, absl::Time begin) : bytes_(bytes), last_(begin) {}

  // Returns a line each time that kInterval has passed since the one before, or the beginning:
  // small arenas have none. `percent` is done at `now`.
  std::optional<std::string> Due(int percent, absl::Time now);

 private:
  const uint64_t bytes_;
  absl::Time last_;
};

}  // namespace retroinfer::kvstore
