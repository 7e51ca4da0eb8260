// The half of KvStore that moves named segments between the arena and the disk.
//
// A segment that is being written is pinned; one that is being read belongs to a sequence of the
// store's own, so that nobody else gets its pages and whoever wants it waits. Both need the bytes
// of the arena without the lock, so the segments are only dropped, and the arena only goes to a
// worker that lays it out anew, after DrainTier() and under the lock that it was called with.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/hash/segment_name.h"
#include "common/kv/segment_layout.h"
#include "kv_store_service/server/kv_store.h"

namespace retroinfer::kvstore {
namespace {

constexpr absl::Duration kDrainTimeout = absl::Seconds(20);

}  // namespace

bool KvStore::IsReferenced(const SegmentName& name) const {
  absl::MutexLock lock(&mutex_);
  if (IsHeld(name)) return true;
  if (segments_ == nullptr) return false;
  const ExtentRecord* segment = segments_->directory().FindNamed(name);
  return segment != nullptr && segment->references > 0;
}

absl::Status KvStore::DrainTier(const std::string& token) {
  if (segments_ == nullptr || !CheckToken(token).ok() || attachment_->leased) {
    return absl::OkStatus();
  }
  const AttachParameters& parameters = attachment_->parameters;
  if (!parameters.hand_back && segments_->geometry() == parameters.geometry) {
    return absl::OkStatus();
  }
  const auto no_disk_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return NoDiskWork(); };
  if (mutex_.AwaitWithTimeout(absl::Condition(&no_disk_work), kDrainTimeout)) {
    return absl::OkStatus();
  }
  return absl::UnavailableError("segments of the worker before are still written to the disk");
}

KvStore::ToPersist KvStore::PersistRequestsFor(std::span<const ExtentRecord> segments) {
  ToPersist to_persist;
  for (const ExtentRecord& segment : segments) {
    if (segment.key == nullptr) continue;
    const SegmentName& name = segment.key->identity.name;
    if (writing_.contains(name) || tier_->Peek(name).has_value()) continue;
    if (IsHeld(name)) {
      to_persist.held.push_back(MakePersistRequest(segment));
      continue;
    }
    if (!tier_->writes_through()) continue;
    if (segments_->directory().pinned_pages() > arena_.bytes().size() / kPageBytes / 2) {
      ++durable_skipped_;  // a slow disk must not keep the arena to itself
      continue;
    }
    to_persist.offered.push_back(MakePersistRequest(segment));
  }
  return to_persist;
}

void KvStore::Persist(ToPersist requests) {
  for (PersistRequest& request : requests.offered) tier_->Offer(std::move(request));
  for (PersistRequest& request : requests.held) tier_->Persist(std::move(request));
}

PersistRequest KvStore::MakePersistRequest(const ExtentRecord& segment) {
  const SegmentIdentity& identity = segment.key->identity;
  segments_->Pin(segment.id);
  writing_.insert(identity.name);
  PersistRequest request;
  request.record.name = identity.name;
  request.record.parent = identity.parent;
  request.record.root = common::RootName(fingerprint_, identity.salt_hash, kSegmentVersion);
  request.record.fingerprint_hash = segment.key->fingerprint;
  request.record.salt_hash = identity.salt_hash;
  request.record.token_begin = *segment.token_begin;
  request.record.num_tokens = segment.reserved_tokens;
  request.record.image_bytes = uint64_t{segment.pages.count} * kPageBytes;
  request.record.created = request.record.last_use = absl::Now();
  request.token_ids = identity.token_ids;
  request.image =
      arena_.bytes().subspan(size_t{segment.pages.first} * kPageBytes, request.record.image_bytes);
  request.done = [this, generation = generation_, id = segment.id,
                  name = identity.name](const absl::Status&) { EndPersist(generation, id, name); };
  return request;
}

void KvStore::EndPersist(uint64_t generation, uint64_t extent_id, const SegmentName& name) {
  absl::MutexLock lock(&mutex_);
  writing_.erase(name);
  if (generation == generation_) segments_->Unpin(extent_id);
}

void KvStore::StartRestore(const ReserveRequest& request) {
  if (segments_->directory().FindSequence(request.sequence_id) != nullptr) return;
  const common::Hash256 fingerprint = common::FingerprintHash(fingerprint_);
  const size_t num_cached = segments_->CountCached(request);
  ReserveRequest wanted{.sequence_id = last_own_sequence_ + 1};
  std::vector<uint64_t> image_bytes;
  uint64_t token_begin = kSinkTokens;
  for (const SegmentWanted& segment : request.segments) {
    if (!segment.identity.has_value()) break;
    if (wanted.segments.size() >= num_cached) {
      const auto record = tier_->Peek(segment.identity->name);
      if (!record.has_value() || record->fingerprint_hash != fingerprint ||
          record->token_begin != token_begin || record->num_tokens != segment.num_tokens) {
        break;
      }
      image_bytes.push_back(record->image_bytes);
    }
    wanted.segments.push_back(segment);
    token_begin += segment.num_tokens;
  }
  if (image_bytes.empty()) return;
  // Without room, or if somebody computes it already, the caller's own reservation tells.
  const auto reservation = segments_->Reserve(wanted);
  if (!reservation.ok()) return;
  last_own_sequence_ = wanted.sequence_id;
  auto to_commit = std::make_shared<std::vector<SegmentToCommit>>();
  RestoreJob job;
  token_begin = kSinkTokens;
  for (size_t i = 0; i < wanted.segments.size(); ++i) {
    const SegmentWanted& segment = wanted.segments[i];
    const ExtentRecord& extent = reservation->extents[i];
    if (i >= num_cached) {
      const uint64_t bytes =
          std::min(image_bytes[i - num_cached], uint64_t{extent.pages.count} * kPageBytes);
      job.segments.push_back(
          {*segment.identity,
           arena_.bytes().subspan(size_t{extent.pages.first} * kPageBytes, bytes)});
      to_commit->push_back({extent.id, token_begin, segment.num_tokens, segment.identity});
    }
    token_begin += segment.num_tokens;
  }
  const uint64_t id = wanted.sequence_id;
  job.on_read = [this, generation = generation_, id, to_commit](size_t index) {
    return EndRestoreOf(generation, id, (*to_commit)[index]);
  };
  job.done = [this, generation = generation_, id] { EndRestore(generation, id); };
  ++num_restoring_;
  tier_->Restore(std::move(job));
}

absl::Status KvStore::EndRestoreOf(uint64_t generation, uint64_t sequence_id,
                                   const SegmentToCommit& segment) {
  absl::MutexLock lock(&mutex_);
  if (generation != generation_) return absl::CancelledError("the arena has changed");
  return segments_->Commit(sequence_id, std::span(&segment, 1)).status();
}

void KvStore::EndRestore(uint64_t generation, uint64_t sequence_id) {
  absl::MutexLock lock(&mutex_);
  --num_restoring_;
  if (generation == generation_) segments_->Release(sequence_id);
}

void KvStore::TouchDurable(const Reservation& reservation) {
  std::vector<SegmentName> names;
  for (size_t i = 0; i < reservation.num_cached; ++i) {
    names.push_back(reservation.extents[i].key->identity.name);
  }
  tier_->Touch(names);
}

void KvStore::DropSegments() {
  if (segments_ == nullptr) return;
  const PrefixCounters& counters = segments_->counters();
  ended_prefix_.queries_tokens += counters.queries_tokens;
  ended_prefix_.hits_tokens += counters.hits_tokens;
  ended_prefix_.evictions += counters.evictions;
  segments_.reset();
  writing_.clear();
  ++generation_;
}

}  // namespace retroinfer::kvstore
