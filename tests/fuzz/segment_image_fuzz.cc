// A worker that was taken over may write anything into a segment. The input replaces bytes of a
// right segment: for each group of 7 bytes an offset (3 bytes) and what stands there (4).
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kv_store_service/mapping/cluster_map.h"
#include "kv_store_service/mapping/segment_image.h"
#include "tests/kv_store_service/segment_writer.h"

namespace {

using namespace retroinfer;           // NOLINT: one file
using namespace retroinfer::kvstore;  // NOLINT

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr uint32_t kTokens = 1024;
  constexpr size_t kChange = 7;
  static const std::vector<std::byte> kRight = [] {
    std::vector<std::byte> bytes(SegmentLayout(kTinyGeometry, kTokens).max_pages * kPageBytes);
    WriteSegment(bytes, kTinyGeometry, kSinkTokens, kTokens);
    return bytes;
  }();
  std::vector<std::byte> bytes = kRight;
  for (; size >= kChange; data += kChange, size -= kChange) {
    const size_t offset = (data[0] | data[1] << 8 | data[2] << 16) % (bytes.size() - 4);
    std::memcpy(bytes.data() + offset, data + 3, 4);
  }
  const auto image = ReadSegmentImage(bytes, kTinyGeometry, kSinkTokens, kTokens);
  if (!image.ok()) return 0;
  const SegmentLayout layout(kTinyGeometry, kTokens);
  Require(image->used_pages <= layout.max_pages);
  // What the check has passed, the cluster mapping table finds, and no two clusters share a page.
  const ClusterMap map(bytes, 0, kTinyGeometry, kTokens);
  std::vector<bool> taken(bytes.size() / kPageBytes);
  uint64_t tokens = 0;
  for (size_t head = 0; head < map.num_heads(); ++head) {
    const auto clusters = map.Find(head, &taken);
    Require(clusters.ok());
    for (const ClusterPages& cluster : *clusters) {
      if (cluster.num_tokens == 0) continue;
      Require(cluster.pages.first >= layout.first_kv_page);
      Require(uint64_t{cluster.pages.first} + cluster.pages.count <= image->used_pages);
      tokens += cluster.num_tokens;
    }
  }
  Require(tokens == uint64_t{kTokens} * kTinyGeometry.num_layers * kTinyGeometry.num_kv_heads);
  return 0;
}
