#include "kv_store_service/tier/durable_tier.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <numeric>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/time/clock.h"
#include "common/clock/steady_now.h"
#include "common/status/status_macros.h"
#include "kv_store_service/persistence/payload_table.h"

namespace retroinfer::kvstore {
namespace {

// How often uses are written and limits are looked after while nothing happens.
constexpr absl::Duration kHousekeeping = absl::Seconds(30);

// Of what comes behind, read at a time: what is asked for waits for it.
constexpr uint32_t kPieceBytes = 4u << 20;
// Segments of a request for parts that are read at a time, each with several threads.
constexpr uint32_t kFetchesAtOnce = 4;

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
    std::optional<RestoreJob> job;
    bool timed_out, stopping;
    {
      absl::MutexLock lock(&mutex_);
      timed_out = !mutex_.AwaitWithTimeout(absl::Condition(this, &DurableTier::WorkOrStop),
                                           HousekeepingInterval(options_.limits));
      stopping = stopping_;
      if (!jobs_.empty()) {
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
    }
    if (job.has_value()) {
      stopping ? End(*job) : RunJob(*std::move(job));
    } else if (!rests_.empty() && (stopping || !timed_out)) {
      if (stopping || RunRest(rests_.front())) EndRest();
    } else if (stopping) {
      return;
    } else {
      TendFolder();
    }
  }
}

void DurableTier::TendFolder() {
  std::function<void()> when_idle;
  {
    absl::MutexLock lock(&mutex_);
    when_idle = when_idle_;
  }
  if (when_idle != nullptr) when_idle();
  absl::Status status = storage_->FlushTouches();
  status.Update(budget_.MakeRoom(0, Hash256{}, absl::Now()));
  if (!status.ok()) spdlog::warn("durable segments: {}", std::string(status.message()));
}

void DurableTier::End(RestoreJob& job) {
  job.done();
  absl::MutexLock lock(&mutex_);
  --num_jobs_;
}

void DurableTier::EndRest() {
  Rest& rest = rests_.front();
  for (const std::shared_ptr<PartialImage>& image : rest.images) {
    if (image != nullptr) image->Close(absl::AbortedError("the rest of it is not read any more"));
  }
  End(rest.job);
  rests_.pop_front();
  absl::MutexLock lock(&mutex_);
  --num_rests_;
}

void DurableTier::NoteUnread(const SegmentName& name, const absl::Status& status,
                             absl::Time begun) {
  if (!absl::IsNotFound(status)) return NoteFailure(name, status, begun);
  // The segment was evicted from the disk since it was found: no failure of the disk.
  spdlog::info("durable segments: {} any more; it is computed afresh",
               std::string(status.message()));
}

void DurableTier::NoteFailure(const SegmentName& name, const absl::Status& status,
                              absl::Time begun) {
  absl::MutexLock lock(&mutex_);
  ++failures_;
  std::erase_if(failed_, [begun](const auto& failed) { return failed.second <= begun; });
  failed_[name] = common::SteadyNow() + options_.retry_after;
  spdlog::error("durable segments: could not restore segment {}: {}; it is computed afresh",
                name.ToHex().substr(0, 16), std::string(status.message()));
}

void DurableTier::RunJob(RestoreJob job) {
  const auto is_in_parts = [](const SegmentToRead& segment) { return segment.index_bytes != 0; };
  if (std::ranges::all_of(job.segments, is_in_parts)) {
    rests_.push_back(ReadIndexes(std::move(job)));
    absl::MutexLock lock(&mutex_);
    ++num_rests_;
    return;
  }
  for (size_t i = 0; i < job.segments.size(); ++i) {
    const absl::Time begun = common::SteadyNow();
    std::vector<int32_t> token_ids;
    absl::Status status = ReadOne(job.segments[i], &token_ids);
    if (!status.ok()) {
      NoteUnread(job.segments[i].name, status, begun);
      break;
    }
    status = HandOver(job, i, std::move(token_ids));
    if (!status.ok()) {
      NoteFailure(job.segments[i].name, status, begun);
      break;
    }
    absl::MutexLock lock(&mutex_);
    ++restored_;
    restored_bytes_ += job.segments[i].image.size();
    restore_seconds_ += absl::ToDoubleSeconds(common::SteadyNow() - begun);
  }
  End(job);
}

DurableTier::Rest DurableTier::ReadIndexes(RestoreJob job) {
  Rest rest;
  {
    absl::MutexLock lock(&mutex_);
    rest.num_drops = num_drops_;
  }
  for (size_t i = 0; i < job.segments.size(); ++i) {
    const absl::Time begun = common::SteadyNow();
    std::shared_ptr<PartialImage> image;
    const absl::Status status = ReadIndex(job, i, &image);
    if (!status.ok()) {
      NoteUnread(job.segments[i].name, status, begun);
      if (image != nullptr) image->Close(status);
      // What follows a segment that is computed afresh is computed, too.
      for (size_t lost = i; lost < job.segments.size(); ++lost) job.on_lost(lost);
      job.segments.resize(i);
      break;
    }
    rest.images.push_back(std::move(image));
    absl::MutexLock lock(&mutex_);
    restore_seconds_ += absl::ToDoubleSeconds(common::SteadyNow() - begun);
  }
  rest.job = std::move(job);
  return rest;
}

// Where the disk has an image that can only be read as a whole, `image` stays null, and all of the
// segment is read.
absl::Status DurableTier::ReadIndex(RestoreJob& job, size_t index,
                                    std::shared_ptr<PartialImage>* image) {
  const SegmentToRead& segment = job.segments[index];
  ASSIGN_OR_RETURN(std::unique_ptr<ImageParts> parts, storage_->OpenParts(segment.name));
  uint64_t bytes = 0;
  if (parts == nullptr) {
    std::vector<int32_t> token_ids;
    RETURN_IF_ERROR(ReadOne(segment, &token_ids));
    RETURN_IF_ERROR(HandOver(job, index, std::move(token_ids)));
    absl::MutexLock lock(&mutex_);
    ++restored_;
    restored_bytes_ += segment.image.size();
    return absl::OkStatus();
  }
  if (parts->image_bytes() != segment.image.size() || segment.index_bytes > segment.image.size()) {
    return absl::InvalidArgumentError("its image has another size than its record says");
  }
  const auto num_parts =
      static_cast<uint32_t>((segment.index_bytes + parts->part_bytes() - 1) / parts->part_bytes());
  *image = std::make_shared<PartialImage>(std::move(parts), segment.image);
  RETURN_IF_ERROR((*image)->Fetch(std::vector<PartRun>{{0, num_parts}}, &bytes));
  absl::Status status = job.on_index(index, *image);
  if (absl::IsInvalidArgument(status)) {
    status.Update(storage_->Quarantine(segment.name, std::string(status.message())));
  }
  absl::MutexLock lock(&mutex_);
  index_bytes_ += bytes;
  return status;
}

bool DurableTier::IsDropped(const Rest& rest) {
  absl::MutexLock lock(&mutex_);
  return num_drops_ != rest.num_drops;
}

bool DurableTier::RunRest(Rest& rest) {
  while (rest.next < rest.images.size() && rest.images[rest.next] == nullptr) ++rest.next;
  if (rest.next == rest.images.size() || IsDropped(rest)) return true;
  const size_t index = rest.next;
  PartialImage& image = *rest.images[index];
  const SegmentName& name = rest.job.segments[index].name;
  const absl::Time begun = common::SteadyNow();
  uint64_t bytes = 0;
  const absl::StatusOr<bool> is_whole =
      image.FetchNext(std::max(1u, kPieceBytes / image.part_bytes()), &bytes);
  absl::Status status = is_whole.status();
  if (!status.ok()) {
    // Who asked for parts may have been told of the failure, and have noted it, before.
    const absl::Status untold = image.TakeFailure();
    if (!untold.ok()) NoteUnread(name, untold, begun);
  } else if (*is_whole) {
    status = HandOver(rest.job, index, image.token_ids());
    if (!status.ok()) NoteFailure(name, status, begun);
  }
  if (!status.ok()) {
    image.Close(status);
    rest.job.on_lost(index);
  }
  const bool is_done = !status.ok() || *is_whole;
  rest.next += is_done ? 1 : 0;
  absl::MutexLock lock(&mutex_);
  behind_bytes_ += bytes;
  restore_seconds_ += absl::ToDoubleSeconds(common::SteadyNow() - begun);
  if (status.ok() && is_done) {
    ++restored_;
    restored_bytes_ += rest.job.segments[index].image.size();
  }
  return false;
}

absl::Status DurableTier::Fetch(std::span<const PartsWanted> wanted) {
  const absl::Time begun = common::SteadyNow();
  {
    absl::MutexLock lock(&mutex_);
    ++num_fetches_;
  }
  std::atomic<uint64_t> bytes{0};
  std::vector<uint32_t> items(wanted.size());
  std::iota(items.begin(), items.end(), 0);
  const absl::Status status = ForEachInParallel(items, kFetchesAtOnce, [&](uint32_t item) {
    uint64_t of_image = 0;
    const absl::Status fetched = wanted[item].image->Fetch(wanted[item].runs, &of_image);
    bytes += of_image;
    return fetched;
  });
  for (const PartsWanted& parts : wanted) {
    const absl::Status untold = parts.image->TakeFailure();
    if (!untold.ok()) NoteUnread(parts.name, untold, begun);
  }
  absl::MutexLock lock(&mutex_);
  --num_fetches_;
  ++part_requests_;
  asked_bytes_ += bytes;
  part_request_seconds_ += absl::ToDoubleSeconds(common::SteadyNow() - begun);
  return status;
}

void DurableTier::DropRests() {
  absl::MutexLock lock(&mutex_);
  ++num_drops_;
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
  stats.index_bytes_total = index_bytes_;
  stats.asked_bytes_total = asked_bytes_;
  stats.behind_bytes_total = behind_bytes_;
  stats.part_requests_total = part_requests_;
  stats.part_request_seconds_total = part_request_seconds_;
  return stats;
}

}  // namespace retroinfer::kvstore
