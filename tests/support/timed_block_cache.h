// A block cache and the store's half of it under decode steps with drawn page use
// (drawn_page_use.h): the worker's own look-ups and upkeep, the store's own choice, and a clock
// that says how far the store has come when a step begins. The clock is made up, so that a model of
// few layers behaves as an 8B shape on a GPU, and the same on any machine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "gpu_worker/wave_buffer/block_cache.h"
#include "kv_store_service/data_plane/data_plane_server.h"
#include "tests/support/backends.h"
#include "tests/support/data_plane_memory.h"
#include "tests/support/drawn_page_use.h"
#include "tests/support/lru_pages.h"

namespace retroinfer::test_support {

// What things take, for all layers of the shape that is modelled.
struct ModelledTimes {
  uint32_t num_layers = 32;
  double step_ms = 9.1;    // that misses nothing
  double miss_ns = 41;     // a page that a step misses
  double entry_ns = 30;    // an entry of the log that the store replays
  double kept_ns = 8;      // the same, of a page that was kept: it changes no table
  double request_ns = 12;  // a request that it posts
  double slot_ns = 3;      // a slot that it looks at when it chooses
  double sleep_ms = 1;     // when it has nothing to do
  double stamp_ns = 0.08;  // a stamp that a step copies out: 4 bytes at 50 GB/s
};

class TimedBlockCache {
 public:
  struct Options {
    double cache_share = 0.1;  // slots, of all pages
    ModelledTimes times;
    kvstore::Watermarks watermarks = {};
  };

  TimedBlockCache(const DrawnPageUse& use, const Options& options);
  ~TimedBlockCache();

  void Step();

  // Of what was looked up since the last call.
  struct Interval {
    uint64_t steps = 0;
    uint64_t lookups = 0;
    uint64_t lru_hits = 0;                  // of an LRU with as many slots and the same look-ups
    uint64_t steps_without_free_slots = 0;  // at their end
    double model_ms = 0;
    double store_ms = 0;  // that the store was busy, of that
    BlockCacheCounters counters{};
    kvstore::DataPlaneStats store;
    double Share(uint64_t count) const {
      return static_cast<double>(count) / static_cast<double>(lookups);
    }
    double PerStep(uint64_t count) const {
      return static_cast<double>(count) / static_cast<double>(steps);
    }
  };
  Interval Take();

  uint32_t num_slots() const { return num_slots_; }
  BlockCache& cache() { return *cache_; }

 private:
  static constexpr size_t kModelledPageBytes = 16;  // nobody reads them

  void MakeIndexes();
  void FillSlots();
  void LookUp(uint32_t layer);
  void RunStoreUntil(double ms);
  void RunStore();
  double Scaled(double value) const { return value * scale_; }
  MetaPoolView pool() const;

  const DrawnPageUse& use_;
  const Options options_;
  const double scale_;  // of times: the layers that there are, of those that are modelled
  const uint32_t num_slots_;
  std::unique_ptr<Backend> backend_;
  DataPlaneMemory plane_memory_;
  DataPlane plane_;
  std::span<std::byte> arena_, pool_bytes_;
  std::unique_ptr<BlockCache> cache_;
  std::unique_ptr<kvstore::DataPlaneServer> store_;
  LruPages lru_;
  std::vector<MetaBlockId> block_ids_;
  std::vector<MetaIndexView> indexes_;
  std::vector<int32_t> retrieved_, num_retrieved_, num_pages_;
  std::vector<PageRef> refs_;

  uint64_t step_ = 0;
  double worker_ms_ = 0;
  double store_ms_ = 0;
  double last_misses_ = 0;
  uint64_t last_published_ = 0;
  // Requests that the store has written and that are not visible before it is done with its round.
  std::optional<uint64_t> hidden_head_;
  Interval since_, total_;
};

}  // namespace retroinfer::test_support
