// The store's side of the data plane: replays the access log and posts eviction requests.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/log/log_rate_limiter.h"
#include "common/shm/data_plane.h"
#include "kv_store_service/admission/lru_admission.h"
#include "kv_store_service/mapping/page_table.h"

namespace retroinfer::kvstore {

// Counters of one data plane since its attachment, and its present state.
struct DataPlaneStats {
  uint64_t entries_replayed = 0;
  uint64_t entries_refused = 0;  // garbage
  uint64_t cursors_refused = 0;  // times the log's cursor was found impossible
  uint64_t requests_posted = 0;
  uint64_t evictions_applied = 0;
  uint64_t evictions_kept = 0;  // refused by the worker
  uint64_t used_slots = 0;
  uint64_t num_slots = 0;
  uint64_t in_flight = 0;
  uint64_t log_depth = 0;       // entries not yet replayed
  uint64_t slots_examined = 0;  // places of stamps looked at, to order them
};

// Threads: RunOnce() on one thread, which Start() makes; stats() on any thread.
// Owns:    the page table and the LRU state; the data plane's memory must outlive it.
//
// Garbage in the shared memory is counted, logged at most every 5 s, and otherwise ignored: the
// worker's cache is then managed badly, and nothing else suffers.
class DataPlaneServer {
 public:
  struct Options {
    Watermarks watermarks;
    bool await_reset = false;  // the log's beginning is not known, see PageTable
    // After work. The worker never waits for the store, and a step lasts for longer: waking up more
    // often only takes processor time from the worker's compute threads.
    absl::Duration sleep_min = absl::Milliseconds(1);
    absl::Duration sleep_max = absl::Milliseconds(4);  // when idle; doubles up to here
    // Parts of RunOnce(), each below a millisecond or two: entries that are replayed, slots that
    // are put in order, requests that are posted.
    uint32_t entries_per_round = 1u << 16;
    uint32_t slots_per_round = 1u << 18;
  };

  DataPlaneServer(const DataPlane& plane, const Options& options);
  ~DataPlaneServer();  // stops
  DataPlaneServer(const DataPlaneServer&) = delete;
  DataPlaneServer& operator=(const DataPlaneServer&) = delete;

  // Returns: RESOURCE_EXHAUSTED if the system gives no thread.
  absl::Status Start();
  // Waits for the thread: at most one round and one sleep.
  void Stop();

  // Replays what is in the log, takes the order of slots a part further where a new one is due, and
  // posts eviction requests if slots are short: a part of each, so that none waits for the others.
  // Returns whether there was anything to do.
  bool RunOnce();

  DataPlaneStats stats() const;
  // Rounds of RunOnce() so far: one that stands still is stuck. On any thread.
  uint64_t num_rounds() const { return num_rounds_.load(std::memory_order_relaxed); }

  // REQUIRES: the thread does not run.
  const PageTable& table() const { return table_; }

 private:
  void Loop();
  size_t ReplayLog();
  struct Replayed;
  void Replay(const LogEntry& entry, Replayed& replayed);
  bool OrderSlots();
  bool AskForStamps(StepStamp now);
  void NoteStamps();
  bool PostRequests();
  void PublishStats();
  void LogGarbage(const std::string& what);

  const Options options_;
  DataPlane plane_;
  PageTable table_;
  LruAdmission admission_;
  std::vector<LogEntry> batch_;
  // Steps in which stamps were asked for that are not there yet, the first ones first.
  std::deque<StepStamp> asked_at_;
  std::optional<StepStamp> due_since_;  // less a few steps: since when an order is due
  std::optional<StepStamp> stamps_of_;  // when those that are there were asked for
  common::LogRateLimiter garbage_log_{absl::Seconds(5)};

  // Written by RunOnce(), read by stats().
  struct Published {
    std::atomic<uint64_t> entries_replayed{0};
    std::atomic<uint64_t> entries_refused{0};
    std::atomic<uint64_t> cursors_refused{0};
    std::atomic<uint64_t> requests_posted{0};
    std::atomic<uint64_t> evictions_applied{0};
    std::atomic<uint64_t> evictions_kept{0};
    std::atomic<uint64_t> used_slots{0};
    std::atomic<uint64_t> in_flight{0};
    std::atomic<uint64_t> log_depth{0};
    std::atomic<uint64_t> slots_examined{0};
  };
  Published published_;
  std::atomic<uint64_t> num_rounds_{0};

  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace retroinfer::kvstore
