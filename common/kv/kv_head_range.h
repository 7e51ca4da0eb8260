// Which of a model's KV heads a process holds, where several share a model.
//
// Memory of the process (pools, slots, dense blocks: its KvGeometry) has `count` heads, which are
// heads first .. first + count - 1 of the `total` that the arena has: a segment and a saved block
// are the same whoever writes and reads them, and each process touches the parts of its own heads.
// A head that several processes hold is written by each of them, with the same bytes.
#pragma once

#include <cstdint>

#include "common/kv/kv_geometry.h"

namespace retroinfer {

struct KvHeadRange {
  uint32_t first = 0;
  uint32_t count = 0;
  uint32_t total = 0;  // 0, as are the others: all heads that memory has

  constexpr bool is_all() const { return count == total; }
  // Whether the process writes what there is once for all heads: headers.
  constexpr bool is_first() const { return first == 0; }

  // Returns the range in numbers, for memory of this geometry.
  constexpr KvHeadRange Of(const KvGeometry& memory) const {
    return total == 0 ? KvHeadRange{0, memory.num_kv_heads, memory.num_kv_heads} : *this;
  }
  // Whether memory of this geometry can hold the range.
  constexpr bool Fits(const KvGeometry& memory) const {
    if (total == 0) return first == 0 && count == 0;
    return count == memory.num_kv_heads && count <= total && first <= total - count;
  }
  // Returns the geometry of the arena, for memory of this geometry.
  constexpr KvGeometry ArenaOf(KvGeometry memory) const {
    memory.num_kv_heads = Of(memory).total;
    return memory;
  }

  friend bool operator==(const KvHeadRange&, const KvHeadRange&) = default;
};

}  // namespace retroinfer
