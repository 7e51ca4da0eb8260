#include "kv_store_service/tier/durable_tier.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/time/clock.h"
#include "common/clock/steady_now.h"
#include "common/status/status_macros.h"

namespace retroinfer::kvstore {
namespace {

// How often uses are written and limits are looked after while nothing happens.
constexpr absl::Duration kHousekeeping = absl::Seconds(30);

// A shorter time to live is looked after twice within it, so that it lasts half as long again at
// most.
absl::Duration HousekeepingInterval(const DiskLimits& limits) {
  return std::clamp(limits.idle_ttl / 2, absl::Milliseconds(100), kHousekeeping);
}

PersisterOptions ForPersister(const DurableTierOptions& options) {
  PersisterOptions persister;
  persister.mode = options.mode;
  persister.stop_timeout = options.stop_timeout;
  return persister;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DurableTier>> DurableTier::Open(
    const DurableTierOptions& options, std::function<bool(const SegmentName&)> is_referenced) {
  RocksDbStorageOptions storage_options;
  storage_options.folder = options.folder;
  storage_options.read_threads = options.restore_threads;
  storage_options.reserve_bytes = options.reserve_bytes;
  ASSIGN_OR_RETURN(std::unique_ptr<SegmentStorage> storage,
                   options.open_storage(std::move(storage_options)));
  return std::make_unique<DurableTier>(options, std::move(storage), std::move(is_referenced));
}

DurableTier::DurableTier(const DurableTierOptions& options, std::unique_ptr<SegmentStorage> storage,
                         std::function<bool(const SegmentName&)> is_referenced)
    : options_(options),
      storage_(std::move(storage)),
      budget_(storage_.get(), options.limits, std::move(is_referenced)),
      persister_(ForPersister(options), storage_.get(), &budget_) {
  thread_ = std::thread([this] { Run(); });
}

DurableTier::~DurableTier() { Close(); }

void DurableTier::Close() {
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(stopping_, true)) return;
  }
  persister_.Stop();
  const absl::Status status = storage_->FlushTouches();
  if (!status.ok()) spdlog::warn("durable segments: {}", std::string(status.message()));
  storage_->Close();
  thread_.join();  // last: the thread may be reading from a disk that does not answer
}

bool DurableTier::HasFailed(const SegmentName& name) {
  absl::MutexLock lock(&mutex_);
  const auto failed = failed_.find(name);
  if (failed == failed_.end()) return false;
  if (common::SteadyNow() < failed->second) return true;
  failed_.erase(failed);
  return false;
}

std::optional<SegmentRecord> DurableTier::Peek(const SegmentName& name) {
  if (HasFailed(name)) return std::nullopt;
  return storage_->Peek(name);
}

std::vector<SegmentRecord> DurableTier::Children(const SegmentName& parent) {
  std::vector<SegmentRecord> children = storage_->Children(parent);
  std::erase_if(children, [this](const SegmentRecord& child) { return HasFailed(child.name); });
  return children;
}

std::vector<SegmentRecord> DurableTier::List() {
  std::vector<SegmentRecord> records = storage_->List();
  std::sort(records.begin(), records.end(),
            [](const SegmentRecord& a, const SegmentRecord& b) { return a.name < b.name; });
  return records;
}

void DurableTier::Touch(std::span<const SegmentName> names) { storage_->Touch(names, absl::Now()); }

void DurableTier::Restore(RestoreJob job) {
  absl::MutexLock lock(&mutex_);
  ++num_jobs_;
  jobs_.push_back(std::move(job));
}

void DurableTier::WhenIdle(std::function<void()> work) {
  absl::MutexLock lock(&mutex_);
  when_idle_ = std::move(work);
}

bool DurableTier::is_closing() const {
  absl::MutexLock lock(&mutex_);
  return stopping_;
}

bool DurableTier::Drain(absl::Duration timeout) {
  const absl::Time deadline = common::SteadyNow() + timeout;
  {
    absl::MutexLock lock(&mutex_);
    if (!mutex_.AwaitWithTimeout(absl::Condition(this, &DurableTier::NoJobs), timeout)) {
      return false;
    }
  }
  return persister_.Drain(deadline - common::SteadyNow());
}

void DurableTier::Run() {
  while (true) {
    RestoreJob job;
    bool idle;
    bool stopping;
    std::function<void()> when_idle;
    {
      absl::MutexLock lock(&mutex_);
      idle = !mutex_.AwaitWithTimeout(absl::Condition(this, &DurableTier::WorkOrStop),
                                      HousekeepingInterval(options_.limits));
      stopping = stopping_;
      when_idle = when_idle_;
      if (!idle && jobs_.empty()) return;
      if (!idle) {
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
    }
    if (idle) {
      if (when_idle != nullptr) when_idle();
      absl::Status status = storage_->FlushTouches();
      status.Update(budget_.MakeRoom(0, Hash256{}, absl::Now()));
      if (!status.ok()) spdlog::warn("durable segments: {}", std::string(status.message()));
      continue;
    }
    if (!stopping) RunJob(job);
    job.done();
    absl::MutexLock lock(&mutex_);
    --num_jobs_;
  }
}

void DurableTier::RunJob(RestoreJob& job) {
  for (size_t i = 0; i < job.segments.size(); ++i) {
    const absl::Time begin = common::SteadyNow();
    std::vector<int32_t> token_ids;
    absl::Status status = ReadOne(job.segments[i], &token_ids);
    if (absl::IsNotFound(status)) {
      // The segment was evicted from the disk since it was found: no failure of the disk.
      spdlog::info("durable segments: {} any more; it is computed afresh",
                   std::string(status.message()));
      return;
    }
    if (status.ok()) status = HandOver(job, i, std::move(token_ids));
    absl::MutexLock lock(&mutex_);
    if (!status.ok()) {
      ++failures_;
      std::erase_if(failed_, [begin](const auto& failed) { return failed.second <= begin; });
      failed_[job.segments[i].name] = common::SteadyNow() + options_.retry_after;
      spdlog::error("durable segments: could not restore segment {}: {}; it is computed afresh",
                    job.segments[i].name.ToHex().substr(0, 16), std::string(status.message()));
      return;
    }
    ++restored_;
    restored_bytes_ += job.segments[i].image.size();
    restore_seconds_ += absl::ToDoubleSeconds(common::SteadyNow() - begin);
  }
}

absl::Status DurableTier::ReadOne(const SegmentToRead& segment, std::vector<int32_t>* token_ids) {
  ASSIGN_OR_RETURN(*token_ids, storage_->ReadTokens(segment.name));
  return storage_->Read(segment.name, segment.image);
}

absl::Status DurableTier::HandOver(RestoreJob& job, size_t index, std::vector<int32_t> token_ids) {
  absl::Status status = job.on_read(index, std::move(token_ids));
  if (absl::IsInvalidArgument(status)) {
    status.Update(storage_->Quarantine(job.segments[index].name, std::string(status.message())));
  }
  return status;
}

DurableTier::Stats DurableTier::stats() {
  Stats stats;
  stats.storage = storage_->Stats();
  stats.persister = persister_.stats();
  stats.budget = budget_.stats();
  stats.limit_bytes = budget_.limits().cap_bytes;
  std::error_code error;
  const auto disk = std::filesystem::space(options_.folder, error);
  if (!error) {
    stats.disk_bytes = disk.capacity;
    stats.disk_free_bytes = disk.available;
  }
  absl::flat_hash_set<SegmentName> pinned;
  for (const ContextRecord& context : storage_->ListContexts()) {
    if (!context.pinned) continue;
    ++stats.pinned_contexts;
    for (const SegmentName& name : context.segments) {
      if (!pinned.insert(name).second) continue;
      const auto record = storage_->Peek(name);
      if (record.has_value()) stats.pinned_bytes += record->image_bytes;
    }
  }
  absl::MutexLock lock(&mutex_);
  stats.restored_total = restored_;
  stats.restored_bytes_total = restored_bytes_;
  stats.restore_failures_total = failures_;
  stats.restore_seconds_total = restore_seconds_;
  return stats;
}

}  // namespace retroinfer::kvstore
