#include "kv_store_service/tier/tier_bridge.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/clock/steady_now.h"
#include "common/hash/segment_name.h"
#include "common/kv/segment_layout.h"
#include "common/status/status_macros.h"

namespace retroinfer::kvstore {

TierBridge::TierBridge(DurableTier* tier, Locked locked)
    : tier_(*tier), locked_(std::move(locked)) {
  tier_.WhenIdle([this] { SubmitPutOff(); });
}

TierBridge::~TierBridge() {
  if (put_off_.empty()) return;
  spdlog::warn(
      "durable segments: {} that the disk had no time for are not written; they will be computed "
      "afresh",
      put_off_.size());
}

bool TierBridge::HoldsTooMuch(const SegmentsOfArena& of) {
  return of.segments->directory().pinned_pages() > of.arena->num_pages() / 2;
}

TierBridge::ToPersist TierBridge::Prepare(const SegmentsOfArena& from,
                                          std::span<const ExtentRecord> segments,
                                          const KeptNames& kept) {
  ToPersist prepared;
  for (const ExtentRecord& segment : segments) {
    if (segment.key == nullptr) continue;
    const SegmentName& name = segment.key->identity.name;
    if (writing_.contains(name) || tier_.Peek(name).has_value()) continue;
    if (kept.IsHeld(name, common::SteadyNow())) {
      prepared.wanted.push_back(MakeRequest(from, segment));
      continue;
    }
    if (!tier_.writes_through()) continue;
    if (HoldsTooMuch(from)) {  // a slow disk must not keep the arena to itself
      PutOffUntilLater(from, name);
      continue;
    }
    prepared.offered.push_back(MakeRequest(from, segment));
  }
  return prepared;
}

TierBridge::ToPersist TierBridge::PrepareNamed(const SegmentsOfArena& from,
                                               std::span<const SegmentName> names,
                                               const PersistFailed& failed,
                                               std::vector<SegmentName>* of_another_model) {
  ToPersist prepared;
  const common::Hash256 fingerprint = common::FingerprintHash(from.fingerprint);
  for (const SegmentName& name : names) {
    const ExtentRecord* segment = from.segments->directory().FindNamed(name);
    if (segment == nullptr || tier_.Peek(name).has_value() || writing_.contains(name)) continue;
    if (segment->key->fingerprint != fingerprint) {
      of_another_model->push_back(name);
      continue;
    }
    PersistRequest& request = prepared.wanted.emplace_back(MakeRequest(from, *segment));
    request.done = [done = std::move(request.done), name, failed](absl::Status status) mutable {
      if (!status.ok()) failed(name, status);
      done(std::move(status));
    };
  }
  return prepared;
}

void TierBridge::PutOffUntilLater(const SegmentsOfArena& from, const SegmentName& name) {
  if (!put_off_names_.insert(name).second) return;
  put_off_.push_back({from.arena, from.segments, from.fingerprint, name});
  // No arena holds more segments than pages, so the oldest one must have left it.
  if (put_off_.size() <= from.arena->num_pages()) return;
  put_off_names_.erase(put_off_.front().name);
  put_off_.pop_front();
  ++num_skipped_;
}

TierBridge::ToPersist TierBridge::TakePutOff() {
  ToPersist prepared;
  while (!put_off_.empty()) {
    const PutOff& next = put_off_.front();
    const SegmentsOfArena from{next.arena.lock(), next.segments.lock(), next.fingerprint};
    const bool is_there = from.arena != nullptr && from.segments != nullptr;
    if (is_there && HoldsTooMuch(from)) break;
    const ExtentRecord* const segment =
        is_there ? from.segments->directory().FindNamed(next.name) : nullptr;
    if (tier_.Peek(next.name).has_value() || writing_.contains(next.name)) {
      // Used again meanwhile, or read back.
    } else if (segment == nullptr) {
      ++num_skipped_;
    } else {
      prepared.offered.push_back(MakeRequest(from, *segment));
    }
    put_off_names_.erase(next.name);
    put_off_.pop_front();
  }
  return prepared;
}

void TierBridge::SubmitPutOff() {
  ToPersist next;
  locked_([&] { next = TakePutOff(); });
  Submit(std::move(next));
}

void TierBridge::ForgetPutOff() {
  num_skipped_ += put_off_.size();
  put_off_.clear();
  put_off_names_.clear();
}

void TierBridge::Submit(ToPersist prepared) {
  for (PersistRequest& request : prepared.offered) tier_.Offer(std::move(request));
  for (PersistRequest& request : prepared.wanted) tier_.Persist(std::move(request));
}

PersistRequest TierBridge::MakeRequest(const SegmentsOfArena& from, const ExtentRecord& segment) {
  const SegmentIdentity& identity = segment.key->identity;
  from.segments->Pin(segment.id);
  writing_.insert(identity.name);
  PersistRequest request;
  request.record.name = identity.name;
  request.record.parent = identity.parent;
  request.record.root = common::RootName(from.fingerprint, identity.salt_hash, kSegmentVersion);
  request.record.fingerprint_hash = segment.key->fingerprint;
  request.record.salt_hash = identity.salt_hash;
  request.record.token_begin = *segment.token_begin;
  request.record.num_tokens = segment.reserved_tokens;
  request.record.image_bytes = uint64_t{segment.pages.count} * kPageBytes;
  request.record.created = request.record.last_use = absl::Now();
  request.token_ids = identity.token_ids;
  request.image = from.arena->BytesOf(segment.pages);
  request.done = [this, from, id = segment.id, name = identity.name](const absl::Status& status) {
    // A limit of ours, or a wrong request, says nothing of the disk.
    const bool disk_failed =
        !status.ok() && !absl::IsFailedPrecondition(status) && !absl::IsInvalidArgument(status);
    const bool again = disk_failed && tier_.writes_through() && !tier_.is_closing();
    locked_([&] {
      writing_.erase(name);
      from.segments->Unpin(id);
      if (again) PutOffUntilLater(from, name);
    });
    if (!disk_failed) SubmitPutOff();
  };
  return request;
}

void TierBridge::StartRestore(const SegmentsOfArena& into, const ReserveRequest& request) {
  ArenaSegments& segments = *into.segments;
  if (segments.directory().FindSequence(request.sequence_id) != nullptr) return;
  const common::Hash256 fingerprint = common::FingerprintHash(into.fingerprint);
  const size_t num_cached = segments.CountCached(request);
  ReserveRequest wanted{.sequence_id = last_own_sequence_ + 1};
  std::vector<uint64_t> image_bytes;  // of each wanted segment; 0: not on the disk
  uint64_t token_begin = kSinkTokens;
  for (const SegmentWanted& segment : request.segments) {
    if (!segment.identity.has_value()) break;
    const auto record = tier_.Peek(segment.identity->name);
    const bool is_on_disk = record.has_value() && record->fingerprint_hash == fingerprint &&
                            record->salt_hash == segment.identity->salt_hash &&
                            record->token_begin == token_begin &&
                            record->num_tokens == segment.num_tokens;
    if (!is_on_disk && wanted.segments.size() >= num_cached) break;
    // What is cached may make room for the rest if all of it can be read back.
    if (!is_on_disk) wanted.keeps_cached = true;
    image_bytes.push_back(is_on_disk ? record->image_bytes : 0);
    wanted.segments.push_back(segment);
    token_begin += segment.num_tokens;
  }
  if (wanted.segments.size() <= num_cached) return;
  // Without room, or if somebody computes it already, the caller's own reservation tells.
  const auto reservation = segments.Reserve(wanted);
  if (!reservation.ok()) return;
  const uint64_t id = last_own_sequence_ = wanted.sequence_id;
  auto to_commit = std::make_shared<std::vector<SegmentToCommit>>();
  RestoreJob job;
  token_begin = kSinkTokens;
  for (size_t i = 0; i < wanted.segments.size(); ++i) {
    SegmentWanted& segment = wanted.segments[i];
    const ExtentRecord& extent = reservation->extents[i];
    if (i >= reservation->num_cached) {
      const std::span<std::byte> extent_bytes = into.arena->BytesOf(extent.pages);
      const size_t bytes = std::min<size_t>(image_bytes[i], extent_bytes.size());
      job.segments.push_back({segment.identity->name, extent_bytes.first(bytes)});
      to_commit->push_back({extent.id, token_begin, segment.num_tokens, segment.identity});
    }
    token_begin += segment.num_tokens;
  }
  job.on_read = [this, into, id, to_commit](size_t index, std::vector<int32_t> token_ids) {
    return CommitRead(into, id, (*to_commit)[index], std::move(token_ids));
  };
  job.done = [this, segments = into.segments, id] {
    locked_([&] {
      --num_restoring_;
      segments->Release(id);
    });
  };
  ++num_restoring_;
  tier_.Restore(std::move(job));
}

// The token ids are those of the disk; that the name follows from them is checked with the rest.
absl::Status TierBridge::CommitRead(const SegmentsOfArena& into, uint64_t sequence_id,
                                    SegmentToCommit segment, std::vector<int32_t> token_ids) {
  segment.identity->token_ids = std::move(token_ids);
  const std::span<const SegmentToCommit> segments(&segment, 1);
  absl::StatusOr<std::vector<ImageToRead>> wanted;
  locked_([&] { wanted = into.segments->ImagesToCommit(sequence_id, segments); });
  RETURN_IF_ERROR(wanted.status());
  ReadImages images = ReadImagesOf(*into.arena, into.segments->geometry(), *wanted);
  absl::Status status;
  locked_(
      [&] { status = into.segments->Commit(sequence_id, segments, std::move(images)).status(); });
  return status;
}

void TierBridge::Touch(std::span<const ExtentRecord> cached) {
  std::vector<SegmentName> names;
  for (const ExtentRecord& extent : cached) names.push_back(extent.key->identity.name);
  tier_.Touch(names);
}

}  // namespace retroinfer::kvstore
