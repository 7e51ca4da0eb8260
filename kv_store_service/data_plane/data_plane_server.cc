#include "kv_store_service/data_plane/data_plane_server.h"

#include <pthread.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock/steady_now.h"
#include "common/process/start_thread.h"
#include "common/status/status_macros.h"

namespace retroinfer::kvstore {
namespace {

constexpr size_t kBatchEntries = 1024;

}  // namespace

DataPlaneServer::DataPlaneServer(const DataPlane& plane, const Options& options)
    : options_(options),
      plane_(plane),
      table_(static_cast<uint32_t>(plane.arena_pages()), plane.num_slots(), options.await_reset),
      admission_(plane.num_slots(), options.watermarks),
      batch_(kBatchEntries) {}

DataPlaneServer::~DataPlaneServer() { Stop(); }

absl::Status DataPlaneServer::Start() {
  stop_ = false;
  ASSIGN_OR_RETURN(thread_, common::StartThread([this] { Loop(); }));
  return absl::OkStatus();
}

void DataPlaneServer::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void DataPlaneServer::Loop() {
  ::pthread_setname_np(::pthread_self(), "data-plane");
  absl::Duration sleep = options_.sleep_min;
  while (!stop_) {
    if (RunOnce()) {
      sleep = options_.sleep_min;
    } else {
      absl::SleepFor(sleep);
      sleep = std::min(2 * sleep, options_.sleep_max);
    }
  }
}

bool DataPlaneServer::RunOnce() {
  bool worked = ReplayLog() > 0;
  if (!table_.awaits_reset()) {
    worked = OrderSlots() || worked;
    worked = PostRequests() || worked;
  }
  PublishStats();
  num_rounds_.fetch_add(1, std::memory_order_relaxed);
  return worked;
}

// Of a batch.
struct DataPlaneServer::Replayed {
  uint64_t entries = 0;
  uint64_t evicted = 0;
  uint64_t kept = 0;
};

size_t DataPlaneServer::ReplayLog() {
  size_t total = 0;
  while (total < options_.entries_per_round) {
    const absl::StatusOr<size_t> count = plane_.log().Pop(std::span(batch_));
    if (!count.ok()) {
      // Nothing was taken; a cursor that becomes possible again is followed again.
      published_.cursors_refused.fetch_add(1, std::memory_order_relaxed);
      LogGarbage(std::string(count.status().message()));
      return 0;
    }
    if (*count == 0) break;
    total += *count;
    // Bound by the latency of memory: what the batch touches comes at once.
    for (size_t j = 0; j < *count; ++j) table_.Prefetch(batch_[j]);
    Replayed replayed;
    for (size_t j = 0; j < *count; ++j) Replay(batch_[j], replayed);
    published_.entries_replayed.fetch_add(replayed.entries, std::memory_order_relaxed);
    published_.evictions_applied.fetch_add(replayed.evicted, std::memory_order_relaxed);
    published_.evictions_kept.fetch_add(replayed.kept, std::memory_order_relaxed);
  }
  return total;
}

void DataPlaneServer::Replay(const LogEntry& entry, Replayed& replayed) {
  const PageTable::Replay outcome = table_.Apply(entry);
  if (outcome == PageTable::Replay::kIgnored) return;
  if (outcome == PageTable::Replay::kRefused) {
    published_.entries_refused.fetch_add(1, std::memory_order_relaxed);
    LogGarbage(absl::StrCat("log entry of kind ", entry.kind, ", page ", entry.page, ", slot ",
                            entry.slot, ", step ", entry.step, " does not fit the table"));
    return;
  }
  ++replayed.entries;
  switch (static_cast<LogKind>(entry.kind)) {
    case LogKind::kReset:
      admission_.Reset();
      break;
    case LogKind::kAdmit:
      admission_.Admitted(entry.step);
      break;
    case LogKind::kEvict:
      admission_.Answered(entry.slot, true);
      ++replayed.evicted;
      break;
    case LogKind::kKeep:
      admission_.Answered(entry.slot, false);
      ++replayed.kept;
      break;
    default:
      break;
  }
}

// Stamps are asked for when a new order is due. What is left of the last one goes on being posted
// until the new one is made.
bool DataPlaneServer::OrderSlots() {
  const auto now = static_cast<StepStamp>(plane_.worker_step().load(std::memory_order_acquire));
  std::atomic<uint64_t>& requested = plane_.stamp_control().requested.value;
  if (!admission_.is_ordering()) {
    if (!stamps_awaited_) {
      if (!admission_.WantsOrder(table_.free_slots(), now)) return false;
      requested.fetch_add(1, std::memory_order_release);
      stamps_awaited_ = true;
      asked_at_ = now;
      return true;
    }
    if (plane_.stamp_control().published.value.load(std::memory_order_acquire) !=
        requested.load(std::memory_order_relaxed)) {
      return false;
    }
    stamps_awaited_ = false;
    admission_.BeginOrder(now, asked_at_);
  }
  published_.slots_examined.fetch_add(
      admission_.ContinueOrder(table_, plane_.stamps(), options_.slots_per_round),
      std::memory_order_relaxed);
  return true;
}

bool DataPlaneServer::PostRequests() {
  const auto room = static_cast<uint32_t>(plane_.requests().FreeEntries());
  const uint32_t count =
      std::min({admission_.NumToEvict(table_.free_slots()), room, options_.slots_per_round});
  uint32_t posted = 0;
  while (posted < count) {
    const auto chosen = admission_.Choose(table_);
    if (!chosen.has_value()) break;
    if (!plane_.requests().TryPush({chosen->slot, table_.PageIn(chosen->slot), chosen->stamp, 0})) {
      break;  // A worker wrote nonsense to its cursor: no answer will come, until a reset.
    }
    ++posted;
  }
  published_.requests_posted.fetch_add(posted, std::memory_order_relaxed);
  return posted > 0;
}

void DataPlaneServer::PublishStats() {
  published_.used_slots.store(table_.used_slots(), std::memory_order_relaxed);
  published_.in_flight.store(admission_.num_in_flight(), std::memory_order_relaxed);
  published_.log_depth.store(plane_.log().Depth(), std::memory_order_relaxed);
}

void DataPlaneServer::LogGarbage(const std::string& what) {
  const auto suppressed = garbage_log_.Admit(common::SteadyNow());
  if (!suppressed.has_value()) return;
  spdlog::error("data plane: refused garbage from the worker: {} ({} similar messages left out)",
                what, *suppressed);
}

DataPlaneStats DataPlaneServer::stats() const {
  DataPlaneStats stats;
  stats.entries_replayed = published_.entries_replayed.load(std::memory_order_relaxed);
  stats.entries_refused = published_.entries_refused.load(std::memory_order_relaxed);
  stats.cursors_refused = published_.cursors_refused.load(std::memory_order_relaxed);
  stats.requests_posted = published_.requests_posted.load(std::memory_order_relaxed);
  stats.evictions_applied = published_.evictions_applied.load(std::memory_order_relaxed);
  stats.evictions_kept = published_.evictions_kept.load(std::memory_order_relaxed);
  stats.used_slots = published_.used_slots.load(std::memory_order_relaxed);
  stats.in_flight = published_.in_flight.load(std::memory_order_relaxed);
  stats.log_depth = published_.log_depth.load(std::memory_order_relaxed);
  stats.slots_examined = published_.slots_examined.load(std::memory_order_relaxed);
  stats.num_slots = table_.num_slots();
  return stats;
}

}  // namespace retroinfer::kvstore
