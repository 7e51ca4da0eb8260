// Keeps the sinks (the first 4 tokens' KV) that prefill has computed for prompts of which all else
// was cached. Such a prompt waits for nothing but these 4 rows, which read all weights: 25 ms with
// an 8B model on one H200. A sink's KV follows from its tokens alone, and prompts of one chat
// template, or about one text, begin alike; so a few are enough.
//
// Threads: the engine's thread.
// Owns:    dense blocks (ops/dense_pool.h), a sink in each.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/memory_need.h"
#include "gpu_worker/ops/backend/ops.h"

namespace retroinfer {

class SinkCache {
 public:
  static constexpr size_t kSinks = 4;  // most sinks that the cache keeps

  // All parts outlive the cache.
  struct Parts {
    Device* device = nullptr;
    Ops* ops = nullptr;
    Stream* stream = nullptr;  // compute
  };

  static absl::StatusOr<SinkCache> Create(const Parts& parts, const KvGeometry& geometry);
  static MemoryNeed MemoryOf(const KvGeometry& geometry);

  // A group begins, of which only the sinks of these prompts are computed; no prompts: any other
  // group. What the last group has written is forgotten unless that group has ended.
  // REQUIRES: each prompt has the tokens of a sink.
  void Begin(std::span<const std::span<const int32_t>> prompts);
  // Whether all sinks of the group are known: Read() instead of computing. Not of a group that has
  // none.
  bool knows_all() const { return knows_all_; }

  // Enqueues the copy of a layer of the group's i-th sink to four rows of `out` from `row` on.
  // REQUIRES: knows_all().
  absl::Status Read(size_t i, uint32_t layer, const LayerKv& out, int64_t row);
  // Enqueues the reverse, where there is room for the sink. REQUIRES: the rows are computed.
  absl::Status Write(size_t i, uint32_t layer, const LayerKv& in, int64_t row);
  // All layers of the group have been written.
  void End();

 private:
  using Tokens = std::array<int32_t, kSinkTokens>;
  struct Sink {
    Tokens tokens{};
    bool is_whole = false;
    uint64_t last_use = 0;
  };

  SinkCache(const Parts& parts, const KvGeometry& geometry) : parts_(parts), geometry_(geometry) {}
  std::optional<size_t> PlaceOf(const Tokens& tokens) const;
  size_t LeastRecentlyUsed() const;
  DensePoolView Pool() const { return {blocks_.bytes(), geometry_}; }
  DeviceSpan<const DenseBlockId> IdOf(size_t place) const {
    return ids_.as<const DenseBlockId>().subspan(place, 1);
  }

  Parts parts_;
  KvGeometry geometry_;
  DeviceBuffer blocks_;
  HostBuffer host_ids_;  // 0, 1 ...
  DeviceBuffer ids_;     // the same
  std::array<Sink, kSinks> sinks_;
  std::vector<std::optional<size_t>> group_;  // places of the group's sinks; none: no room
  bool knows_all_ = false;
  uint64_t num_groups_ = 0;
};

}  // namespace retroinfer
