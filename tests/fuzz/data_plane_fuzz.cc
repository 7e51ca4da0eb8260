// The memory that a worker and the store share, which either may fill with anything at any time.
// The input replaces words of a right plane before it is opened, and again while its rings are
// read: groups of an offset in words (3 bytes), the time (1) and what stands there (8).
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/shm/data_plane.h"

namespace {

using namespace retroinfer;  // NOLINT: one file

void Require(bool condition) {
  if (!condition) std::abort();
}

struct alignas(64) Line {
  std::byte bytes[64];
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kChange = 12;
  const DataPlaneHeader header = MakeDataPlaneHeader(1024, 256, 64, 64);
  static std::vector<Line> lines((header.total_bytes + 63) / 64);
  std::memset(lines.data(), 0, lines.size() * sizeof(Line));
  const std::span<std::byte> memory(lines[0].bytes, lines.size() * sizeof(Line));
  DataPlane::Format(memory, header);

  const auto change = [&](uint8_t time) {
    for (size_t at = 0; at + kChange <= size; at += kChange) {
      if (data[at + 3] % 4 != time) continue;
      const size_t word = data[at] | data[at + 1] << 8 | data[at + 2] << 16;
      std::memcpy(memory.data() + word % (memory.size() / 8) * 8, data + at + 4, 8);
    }
  };
  change(0);
  auto plane = DataPlane::Open(memory);
  if (!plane.ok()) return 0;
  Require(plane->memory().size() <= memory.size());
  Require(plane->stamps().size() == plane->num_slots());
  for (uint8_t time = 1; time < 4; ++time) {
    change(time);
    std::vector<LogEntry> log(plane->log().capacity());
    const auto popped = plane->log().Pop(log);
    if (popped.ok()) Require(*popped <= log.size());
    std::vector<EvictionRequest> requests(plane->requests().capacity());
    const auto taken = plane->requests().Pop(requests);
    if (taken.ok()) Require(*taken <= requests.size());
    Require(plane->log().FreeEntries() <= plane->log().capacity());
    Require(plane->requests().Depth() <= plane->requests().capacity());
    plane->requests().TryPush({});
    plane->log().TryPush({});
  }
  return 0;
}
