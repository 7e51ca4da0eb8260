#include "kv_store_service/contexts/contexts.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock/steady_now.h"
#include "common/hash/segment_name.h"
#include "common/kv/segment_layout.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"

namespace retroinfer::kvstore {
namespace {

constexpr absl::Duration kHoldTime = absl::Seconds(60);
constexpr size_t kMaxFailures = 65536;  // that nobody has asked for

absl::Status TooManyPins(uint64_t pinned, uint64_t bytes, uint64_t arena) {
  return common::WithReason(
      absl::ResourceExhaustedError(absl::StrCat(
          "pinned contexts have ", pinned, " bytes already, this one ", bytes,
          " more: at most half of the arena (", arena,
          " bytes) can be pinned; unpin another or start the store with a larger --arena-bytes")),
      "PIN_LIMIT");
}

absl::Status CacheFull(const absl::Status& status) {
  return common::WithReason(absl::FailedPreconditionError(status.message()), "CACHE_FULL");
}

}  // namespace

struct Contexts::Failures {
  absl::Mutex mutex;
  absl::flat_hash_map<SegmentName, absl::Status> of ABSL_GUARDED_BY(mutex);

  // Returns the first failure of the segments and forgets theirs.
  absl::Status Take(std::span<const SegmentName> names) {
    absl::MutexLock lock(&mutex);
    absl::Status first;
    for (const SegmentName& name : names) {
      const auto found = of.find(name);
      if (found == of.end()) continue;
      first.Update(found->second);
      of.erase(found);
    }
    return first;
  }
};

Contexts::Contexts(KvStore* store) : store_(*store), failures_(std::make_shared<Failures>()) {
  if (store_.tier() != nullptr) RefreshPins();
}

absl::StatusOr<DurableTier*> Contexts::RequireTier() const {
  if (store_.tier() != nullptr) return store_.tier();
  const absl::Status& missing = store_.missing_tier();
  return common::WithReason(
      absl::FailedPreconditionError(
          missing.ok()
              ? "the kv_store_service keeps nothing on disk: start it with --cache-dir"
              : absl::StrCat("the kv_store_service keeps nothing on disk, --cache-dir could not be "
                             "used when it started: ",
                             std::string(missing.message()))),
      "NO_DURABLE_TIER");
}

absl::StatusOr<ContextRecord> Contexts::Find(const Hash256& salt_hash,
                                             std::string_view name) const {
  RETURN_IF_ERROR(RequireTier().status());
  auto record = store_.tier()->storage().FindContext(salt_hash, name);
  if (record.ok() && record->expires > absl::Now()) return record;
  return common::WithReason(
      absl::NotFoundError(absl::StrCat("there is no context '", std::string(name), "'")),
      "NO_SUCH_CONTEXT");
}

ContextListing Contexts::Describe(ContextRecord record) const {
  ContextListing listing;
  listing.record = std::move(record);
  const std::vector<SegmentName>& names = listing.record.segments;
  const std::vector<uint64_t> pages = store_.context_segments().PagesInArena(names);
  for (size_t i = 0; i < names.size(); ++i) {
    const auto on_disk = store_.tier()->storage().Peek(names[i]);
    listing.in_arena += pages[i] > 0 ? 1 : 0;
    listing.on_disk += on_disk.has_value() ? 1 : 0;
    listing.missing += pages[i] == 0 && !on_disk.has_value() ? 1 : 0;
    listing.bytes += on_disk.has_value() ? on_disk->image_bytes : pages[i] * kPageBytes;
    if (!on_disk.has_value()) continue;
    listing.last_use = std::max(listing.last_use, on_disk->last_use);
    listing.reusable_tokens =
        std::max(listing.reusable_tokens, on_disk->token_begin + on_disk->num_tokens - kSinkTokens);
  }
  listing.last_use = std::max(listing.last_use, listing.record.created);
  return listing;
}

void Contexts::RefreshPins() {
  ContextSegments::NameSet names;
  for (const ContextRecord& context : store_.tier()->storage().ListContexts()) {
    if (!context.pinned || context.expires <= absl::Now()) continue;
    names.insert(context.segments.begin(), context.segments.end());
  }
  store_.context_segments().PinNames(std::move(names));
}

absl::Status Contexts::CheckPinLimit(const ContextRecord& record) const {
  SegmentStorage& storage = store_.tier()->storage();
  const auto bytes_of = [&storage](const SegmentName& name) {
    const auto segment = storage.Peek(name);
    return segment.has_value() ? segment->image_bytes : 0;
  };
  ContextSegments::NameSet names;
  uint64_t pinned = 0;
  for (const ContextRecord& other : storage.ListContexts()) {
    if (!other.pinned) continue;
    for (const SegmentName& name : other.segments) {
      if (names.insert(name).second) pinned += bytes_of(name);
    }
  }
  uint64_t added = 0;
  for (const SegmentName& name : record.segments) {
    if (names.insert(name).second) added += bytes_of(name);
  }
  const uint64_t arena = store_.context_segments().arena_bytes();
  if (added == 0 || pinned + added <= arena / 2) return absl::OkStatus();
  return TooManyPins(pinned, added, arena);
}

absl::StatusOr<ContextListing> Contexts::PutContext(const ContextRecord& record) {
  if (record.pinned) RETURN_IF_ERROR(CheckPinLimit(record));
  RETURN_IF_ERROR(store_.tier()->budget().PutContext(record));
  RefreshPins();
  return Describe(record);
}

absl::Status Contexts::CheckNameIsFree(const ContextToSave& context) const {
  if (context.replace || !Find(context.salt_hash, context.name).ok()) return absl::OkStatus();
  return common::WithReason(
      absl::AlreadyExistsError(
          absl::StrCat("there is a context '", context.name,
                       "' already; give another name, or replace it (--force, or `replace` in the "
                       "request)")),
      "CONTEXT_EXISTS");
}

absl::StatusOr<SaveProgress> Contexts::Save(const ContextToSave& context) {
  RETURN_IF_ERROR(RequireTier().status());
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(CheckNameIsFree(context));
  SegmentStorage& storage = store_.tier()->storage();
  RETURN_IF_ERROR(
      store_.context_segments().PinForSave(context.segments, common::SteadyNow() + kHoldTime));
  if (absl::Status failed = failures_->Take(context.segments); !failed.ok()) {
    return absl::IsFailedPrecondition(failed) ? CacheFull(failed) : failed;
  }
  SaveProgress progress;
  std::vector<SegmentName> to_write;
  const std::vector<uint64_t> pages = store_.context_segments().PagesInArena(context.segments);
  for (size_t i = 0; i < context.segments.size(); ++i) {
    const auto on_disk = storage.Peek(context.segments[i]);
    if (on_disk.has_value() && i == 0 &&
        on_disk->parent != common::NameSegment(context.root, context.sink_token_ids)) {
      return absl::InvalidArgumentError("the sink tokens are not those of the first segment");
    }
    if (on_disk.has_value()) {
      ++progress.durable;
    } else if (pages[i] > 0) {
      to_write.push_back(context.segments[i]);
    } else {
      ++progress.missing;
    }
  }
  progress.queued = to_write.size();
  store_.context_segments().PersistNow(
      to_write, [failures = failures_](const SegmentName& name, const absl::Status& status) {
        absl::MutexLock failures_lock(&failures->mutex);
        if (failures->of.size() < kMaxFailures) failures->of[name] = status;
      });
  if (progress.durable < context.segments.size()) return progress;
  const absl::Time now = absl::Now();
  storage.Touch(context.segments, now);
  ContextRecord record = {.context_name = context.name,
                          .salt_hash = context.salt_hash,
                          .root = context.root,
                          .segments = context.segments,
                          .sink_token_ids = context.sink_token_ids,
                          .num_tokens = context.num_tokens,
                          .pinned = context.pinned,
                          .created = now,
                          .expires = now + context.time_to_live};
  ASSIGN_OR_RETURN(progress.saved, PutContext(record));
  store_.context_segments().PinForSave(context.segments, absl::InfinitePast()).IgnoreError();
  spdlog::info("saved a context of {} segments, {} bytes{}", record.segments.size(),
               progress.saved->bytes, record.pinned ? ", pinned" : "");
  return progress;
}

absl::StatusOr<std::vector<ContextListing>> Contexts::List(const Hash256& salt_hash) {
  RETURN_IF_ERROR(RequireTier().status());
  RefreshPins();
  std::vector<ContextListing> listings;
  for (ContextRecord& record : store_.tier()->storage().ListContexts()) {
    if (record.salt_hash != salt_hash || record.expires <= absl::Now()) continue;
    listings.push_back(Describe(std::move(record)));
  }
  return listings;
}

absl::StatusOr<ContextListing> Contexts::SetPinned(const Hash256& salt_hash, std::string_view name,
                                                   bool pinned) {
  absl::MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(ContextRecord record, Find(salt_hash, name));
  if (record.pinned == pinned) return Describe(record);
  record.pinned = pinned;
  auto listing = PutContext(record);
  if (!absl::IsNotFound(listing.status())) return listing;
  return common::WithReason(
      absl::FailedPreconditionError(absl::StrCat("context '", std::string(name),
                                                 "' is not whole on the disk any more; save it "
                                                 "again: ",
                                                 std::string(listing.status().message()))),
      "CONTEXT_LOST");
}

absl::StatusOr<RemovedContext> Contexts::Remove(const Hash256& salt_hash, std::string_view name) {
  absl::MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(const ContextRecord record, Find(salt_hash, name));
  SegmentStorage& storage = store_.tier()->storage();
  RETURN_IF_ERROR(storage.DeleteContext(salt_hash, name));
  RefreshPins();
  ContextSegments::NameSet others;
  for (const ContextRecord& context : storage.ListContexts()) {
    others.insert(context.segments.begin(), context.segments.end());
  }
  std::vector<SegmentName> names;
  RemovedContext removed;
  for (const SegmentName& segment : record.segments) {
    if (others.contains(segment)) continue;
    names.push_back(segment);
    const auto on_disk = storage.Peek(segment);
    if (on_disk.has_value()) removed.bytes += on_disk->image_bytes;
  }
  ASSIGN_OR_RETURN(removed.segments, storage.Delete(names));
  store_.context_segments().DropFromArena(names);
  spdlog::info("removed a context and {} segments of it, {} bytes", removed.segments,
               removed.bytes);
  return removed;
}

}  // namespace retroinfer::kvstore
