#include "kv_store_service/tier/tier_bridge.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/clock/steady_now.h"
#include "common/hash/segment_name.h"
#include "common/kv/segment_layout.h"
#include "common/status/status_macros.h"
#include "kv_store_service/directory/segment_checks.h"
#include "kv_store_service/tier/restore_plan.h"
#include "kv_store_service/tier/tier_rows.h"

namespace retroinfer::kvstore {
namespace {

// Deferred writes that begin at a time: there may be thousands, and each write that ends begins
// others.
constexpr size_t kDeferredAtOnce = 64;

}  // namespace

TierBridge::TierBridge(DurableTier* tier, Locked locked)
    : tier_(*tier), locked_(std::move(locked)) {
  tier_.WhenIdle([this] { SubmitDeferred(); });
}

TierBridge::~TierBridge() {
  if (deferred_.empty()) return;
  spdlog::warn(
      "durable segments: {} that the disk had no time for are not written; they will be computed "
      "afresh",
      deferred_.size());
}

bool TierBridge::HoldsTooMuch(const SegmentsOfArena& of) {
  return of.segments->directory().pinned_pages() > of.arena->num_pages() / 2;
}

TierBridge::ToPersist TierBridge::Prepare(const SegmentsOfArena& from,
                                          std::span<const ExtentRecord> segments,
                                          const ContextPins& pins) {
  ToPersist prepared;
  for (const ExtentRecord& segment : segments) {
    if (segment.key == nullptr) continue;
    const SegmentName& name = segment.key->identity.name;
    if (writing_.contains(name) || tier_.Peek(name).has_value()) continue;
    if (pins.IsPinnedForSave(name, common::SteadyNow())) {
      prepared.wanted.push_back(MakeRequest(from, segment));
      continue;
    }
    if (!tier_.writes_through()) continue;
    if (HoldsTooMuch(from)) {  // pins for a slow disk must leave reservations room
      Defer(from, name);
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

void TierBridge::Defer(const SegmentsOfArena& from, const SegmentName& name) {
  if (!deferred_names_.insert(name).second) return;
  deferred_.push_back({from.arena, from.segments, from.fingerprint, name});
  // No arena holds more segments than pages, so the oldest one must have left it.
  if (deferred_.size() <= from.arena->num_pages()) return;
  deferred_names_.erase(deferred_.front().name);
  deferred_.pop_front();
  ++num_skipped_;
}

TierBridge::ToPersist TierBridge::TakeDeferred() {
  ToPersist prepared;
  while (!deferred_.empty() && prepared.offered.size() < kDeferredAtOnce) {
    const Deferred& next = deferred_.front();
    const SegmentsOfArena from{next.arena.lock(), next.segments.lock(), next.fingerprint};
    const bool is_there = from.arena != nullptr && from.segments != nullptr;
    if (is_there && HoldsTooMuch(from)) break;
    const ExtentRecord* const segment =
        is_there ? from.segments->directory().FindNamed(next.name) : nullptr;
    if (tier_.Peek(next.name).has_value() || writing_.contains(next.name)) {
      // The segment was used again meanwhile and written for that, or was read back.
    } else if (segment == nullptr) {
      ++num_skipped_;
    } else {
      prepared.offered.push_back(MakeRequest(from, *segment));
    }
    deferred_names_.erase(next.name);
    deferred_.pop_front();
  }
  return prepared;
}

void TierBridge::SubmitDeferred() {
  ToPersist next;
  locked_([&] { next = TakeDeferred(); });
  Submit(std::move(next));
}

void TierBridge::DropDeferred() {
  num_skipped_ += deferred_.size();
  deferred_.clear();
  deferred_names_.clear();
  tier_.DropRests();
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
  request.record.provenance = identity.provenance;
  request.token_ids = identity.token_ids;
  request.image = from.arena->BytesOf(segment.pages);
  request.done = [this, from, id = segment.id, name = identity.name](const absl::Status& status) {
    // A write that the store's own limits refuse says nothing about the disk: it is not repeated.
    const bool disk_failed =
        !status.ok() && !absl::IsFailedPrecondition(status) && !absl::IsInvalidArgument(status);
    const bool again = disk_failed && tier_.writes_through() && !tier_.is_closing();
    locked_([&] {
      writing_.erase(name);
      from.segments->Unpin(id);
      if (again) Defer(from, name);
    });
    if (!disk_failed) SubmitDeferred();
  };
  return request;
}

void TierBridge::StartRestore(const SegmentsOfArena& into, const ReserveRequest& request) {
  ArenaSegments& segments = *into.segments;
  if (segments.directory().FindSequence(request.sequence_id) != nullptr) return;
  if (!CheckRequest(request).ok()) return;  // the caller's own reservation returns the error
  const common::Hash256 fingerprint = common::FingerprintHash(into.fingerprint);
  const TierRows source(segments.directory(), fingerprint, &tier_,
                        request.rows.has_value() ? request.rows->sequence_id : 0);
  RestorePlan plan =
      request.rows.has_value() ? PlanRows(request, source) : PlanSegments(request, source);
  using Evictable = ArenaSegments::Evictable;
  // A request for rows can use any beginning, but evicts nothing pinned or cached for more. For a
  // request for segments, cached ones may be evicted for room in one piece, if all of them can be
  // read back from the disk.
  Evictable evictable = request.rows.has_value() ? Evictable::kUnpinned : Evictable::kCached;
  std::vector<ExtentRecord> held;
  std::vector<SegmentRecord> held_records;
  for (const uint64_t id : plan.held) {
    held.push_back(*segments.directory().FindExtent(id));
    const auto record = source.RecordOf(held.back().key->identity.name);
    if (record.has_value() && record->fingerprint_hash == fingerprint) {
      held_records.push_back(*record);
    } else if (evictable == Evictable::kCached) {
      evictable = Evictable::kPinned;
    }
  }
  while (!plan.records.empty()) {
    std::vector<SegmentWanted> missing;
    for (const SegmentRecord& record : plan.records) {
      missing.push_back({record.num_tokens, SegmentIdentity{.name = record.name,
                                                            .parent = record.parent,
                                                            .salt_hash = record.salt_hash,
                                                            .token_ids = {},
                                                            .provenance = record.provenance}});
    }
    const auto reservation = segments.ReserveOwn(last_own_sequence_ + 1, held, missing, evictable);
    if (reservation.ok()) {
      ++last_own_sequence_;
      if (reservation->num_cached < held.size()) {
        const auto first = static_cast<std::ptrdiff_t>(reservation->num_cached);
        plan.records.insert(plan.records.begin(), held_records.begin() + first, held_records.end());
      }
      return Read(into, last_own_sequence_, plan.records, *reservation, request.takes_partial);
    }
    // Where there is no room, or another sequence computes the segment, the caller's own
    // reservation returns the reason. Of rows half as many are tried.
    if (!request.rows.has_value() || !absl::IsResourceExhausted(reservation.status())) return;
    plan.records.resize(plan.records.size() / 2);
  }
}

void TierBridge::Read(const SegmentsOfArena& into, uint64_t sequence_id,
                      const std::vector<SegmentRecord>& records, const Reservation& reservation,
                      bool index_first) {
  auto to_commit = std::make_shared<std::vector<SegmentToCommit>>();
  RestoreJob job;
  for (size_t i = 0; i < records.size(); ++i) {
    const SegmentRecord& record = records[i];
    const ExtentRecord& extent = reservation.extents[reservation.num_cached + i];
    const std::span<std::byte> extent_bytes = into.arena->BytesOf(extent.pages);
    const size_t bytes = std::min<size_t>(record.image_bytes, extent_bytes.size());
    job.segments.push_back({record.name, extent_bytes.first(bytes)});
    if (index_first && !IsBlock(record.num_tokens)) {
      const SegmentLayout layout(into.segments->geometry(), record.num_tokens);
      job.segments.back().index_bytes = uint64_t{layout.first_kv_page} * layout.page_bytes;
    }
    to_commit->push_back(
        {extent.id, record.token_begin, record.num_tokens,
         SegmentIdentity{record.name, record.parent, record.salt_hash, {}, record.provenance}});
  }
  job.on_index = [this, into, sequence_id, to_commit](size_t index,
                                                      const std::shared_ptr<PartialImage>& image) {
    return MarkPartial(into, sequence_id, (*to_commit)[index], image);
  };
  job.on_lost = [this, segments = into.segments, to_commit](size_t index) {
    const uint64_t extent_id = (*to_commit)[index].extent_id;
    locked_([&] {
      partial_.erase({segments.get(), extent_id});
      segments->AbandonPartial(extent_id);
    });
  };
  job.on_read = [this, into, sequence_id, to_commit](size_t index, std::vector<int32_t> token_ids) {
    return CommitRead(into, sequence_id, (*to_commit)[index], std::move(token_ids));
  };
  job.done = [this, segments = into.segments, sequence_id, to_commit] {
    locked_([&] {
      --num_restoring_;
      for (const SegmentToCommit& segment : *to_commit) {
        partial_.erase({segments.get(), segment.extent_id});
        // Who has one of which the rest does not come keeps it, and nobody waits for it.
        const ExtentRecord* extent = segments->directory().FindExtent(segment.extent_id);
        if (extent != nullptr && !extent->committed()) segments->AbandonPartial(extent->id);
      }
      segments->Release(sequence_id);
    });
  };
  ++num_restoring_;
  tier_.Restore(std::move(job));
}

// The token ids are those of the disk. Commit() checks that the name follows from them.
absl::Status TierBridge::CommitRead(const SegmentsOfArena& into, uint64_t sequence_id,
                                    SegmentToCommit segment, std::vector<int32_t> token_ids) {
  segment.identity->token_ids = std::move(token_ids);
  const std::span<const SegmentToCommit> segments(&segment, 1);
  absl::StatusOr<std::vector<ImageToRead>> wanted;
  locked_([&] { wanted = into.segments->ImagesToCommit(sequence_id, segments); });
  RETURN_IF_ERROR(wanted.status());
  ReadImages images = ReadImagesOf(*into.arena, into.segments->geometry(), *wanted);
  absl::Status status;
  locked_([&] {
    status = into.segments->Commit(sequence_id, segments, std::move(images)).status();
    partial_.erase({into.segments.get(), segment.extent_id});
  });
  return status;
}

absl::Status TierBridge::MarkPartial(const SegmentsOfArena& into, uint64_t sequence_id,
                                     SegmentToCommit segment,
                                     const std::shared_ptr<PartialImage>& image) {
  segment.identity->token_ids = image->token_ids();
  const std::span<const SegmentToCommit> segments(&segment, 1);
  absl::StatusOr<std::vector<ImageToRead>> wanted;
  locked_([&] { wanted = into.segments->ImagesToCommit(sequence_id, segments); });
  RETURN_IF_ERROR(wanted.status());
  const ReadImages images = ReadImagesOf(*into.arena, into.segments->geometry(), *wanted);
  const auto read = images.find(segment.extent_id);
  if (read == images.end()) return absl::AbortedError("the segment is committed already");
  const uint64_t image_pages = image->image_bytes() / into.segments->geometry().page_bytes();
  absl::Status status;
  locked_([&] {
    status = into.segments->MarkPartial(sequence_id, segment, read->second, image_pages,
                                        image->part_bytes());
    if (status.ok()) partial_[{into.segments.get(), segment.extent_id}] = image;
  });
  return status;
}

std::shared_ptr<PartialImage> TierBridge::PartialOf(const SegmentsOfArena& of,
                                                    uint64_t extent_id) const {
  const auto found = partial_.find({of.segments.get(), extent_id});
  return found == partial_.end() ? nullptr : found->second;
}

void TierBridge::AbandonFailed(const SegmentsOfArena& of, std::span<const uint64_t> extent_ids) {
  for (const uint64_t id : extent_ids) {
    const auto found = partial_.find({of.segments.get(), id});
    if (found == partial_.end() || !found->second->has_failed()) continue;
    partial_.erase(found);
    of.segments->AbandonPartial(id);
  }
}

std::vector<PartRun> TierBridge::RunsOf(std::span<const uint32_t> numbers) {
  std::vector<PartRun> runs;
  for (size_t i = 0; i + 1 < numbers.size(); i += 2) runs.push_back({numbers[i], numbers[i + 1]});
  return runs;
}

void TierBridge::Touch(std::span<const ExtentRecord> cached) {
  std::vector<SegmentName> names;
  for (const ExtentRecord& extent : cached) {
    if (extent.found_as() != nullptr) names.push_back(extent.found_as()->identity.name);
  }
  tier_.Touch(names);
}

}  // namespace retroinfer::kvstore
