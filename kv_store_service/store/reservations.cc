#include "kv_store_service/store/reservations.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "kv_store_service/directory/image_reading.h"

namespace retroinfer::kvstore {

absl::StatusOr<Reservation> Reservations::Reserve(const std::string& token, uint64_t call_number,
                                                  const ReserveRequest& request,
                                                  bool compute_anyway) {
  TierBridge::ToPersist prepared;
  absl::StatusOr<Reservation> reservation;
  {
    absl::MutexLock lock(&state_.mutex);
    RETURN_IF_ERROR(state_.lease.BeginCall(token, call_number, request.sequence_id));
    // A request with cached_only does not wait for the restore, but the next request finds its
    // segments.
    if (state_.bridge != nullptr && !compute_anyway) {
      state_.bridge->StartRestore(state_.current, request);
    }
    reservation = state_.current.segments->Reserve(request, compute_anyway);
    if (absl::IsResourceExhausted(reservation.status())) ++reservations_refused_;
    if (state_.bridge != nullptr && reservation.ok()) {
      const auto cached =
          std::span<const ExtentRecord>(reservation->extents).first(reservation->num_cached);
      state_.bridge->Touch(cached);
      // The disk may have had no time or no room for these segments when they were committed.
      prepared = state_.bridge->Prepare(state_.current, cached, state_.pins);
    }
  }
  if (state_.bridge != nullptr) state_.bridge->Submit(std::move(prepared));
  return reservation;
}

absl::StatusOr<std::vector<uint32_t>> Reservations::FetchParts(
    const std::string& token, std::span<const PartsOfExtent> wanted) {
  std::vector<DurableTier::PartsWanted> parts;
  std::vector<uint64_t> partial;                      // extents of `parts`
  std::vector<std::shared_ptr<PartialImage>> images;  // of `wanted`; null: it is whole
  // Held while parts are read without the lock, as in Commit().
  SegmentsOfArena began_with;
  {
    absl::MutexLock lock(&state_.mutex);
    RETURN_IF_ERROR(state_.lease.CheckToken(token));
    began_with = state_.current;
    for (const PartsOfExtent& of : wanted) {
      const ExtentRecord* extent = began_with.segments->directory().FindExtent(of.extent_id);
      if (extent == nullptr) {
        return absl::NotFoundError(absl::StrCat("there is no extent ", of.extent_id));
      }
      const bool is_partial = state_.bridge != nullptr && extent->partial != nullptr;
      images.push_back(is_partial ? state_.bridge->PartialOf(began_with, of.extent_id) : nullptr);
      if (images.back() != nullptr) {
        parts.push_back(
            {extent->partial->identity.name, images.back(), TierBridge::RunsOf(of.runs)});
        partial.push_back(of.extent_id);
      } else if (!extent->committed()) {
        return absl::AbortedError(
            absl::StrCat("the segment of extent ", of.extent_id, " is not read any more"));
      }
    }
  }
  if (!parts.empty()) {
    const absl::Status status = state_.bridge->Fetch(parts);
    if (!status.ok()) {
      absl::MutexLock lock(&state_.mutex);
      state_.bridge->AbandonFailed(began_with, partial);
      return status;
    }
  }
  std::vector<uint32_t> there;
  for (const auto& image : images) {
    there.push_back(image == nullptr || image->there_until() == image->num_parts()
                        ? kAllParts
                        : image->there_until());
  }
  return there;
}

absl::StatusOr<std::vector<ExtentRecord>> Reservations::Commit(
    const std::string& token, uint64_t call_number, uint64_t sequence_id,
    std::span<const SegmentToCommit> segments) {
  // Held while the images are read without the lock: the call ends in the arena that it began with,
  // even if another worker's lease has replaced it.
  SegmentsOfArena began_with;
  absl::StatusOr<std::vector<ImageToRead>> images;
  {
    absl::MutexLock lock(&state_.mutex);
    RETURN_IF_ERROR(state_.lease.BeginCall(token, call_number, sequence_id));
    began_with = state_.current;
    images = began_with.segments->ImagesToCommit(sequence_id, segments);
  }
  ReadImages read;
  if (images.ok()) read = ReadImagesOf(*began_with.arena, began_with.segments->geometry(), *images);
  TierBridge::ToPersist prepared;
  absl::StatusOr<std::vector<ExtentRecord>> extents;
  {
    absl::MutexLock lock(&state_.mutex);
    RETURN_IF_ERROR(state_.lease.CheckToken(token));
    const size_t before = began_with.segments->directory().num_committed();
    if (!images.ok()) extents = images.status();
    if (images.ok()) extents = began_with.segments->Commit(sequence_id, segments, std::move(read));
    if (!extents.ok()) {
      ++segments_refused_;
      spdlog::error("refused to commit segments of sequence {}: {}", sequence_id,
                    std::string(extents.status().message()));
      return extents;
    }
    segments_committed_ += began_with.segments->directory().num_committed() - before;
    if (state_.bridge != nullptr)
      prepared = state_.bridge->Prepare(began_with, *extents, state_.pins);
  }
  if (state_.bridge != nullptr) state_.bridge->Submit(std::move(prepared));
  return extents;
}

absl::StatusOr<uint64_t> Reservations::Release(const std::string& token, uint64_t call_number,
                                               uint64_t sequence_id) {
  absl::MutexLock lock(&state_.mutex);
  RETURN_IF_ERROR(state_.lease.BeginCall(token, call_number, sequence_id));
  return state_.current.segments->Release(sequence_id);
}

absl::Status Reservations::Declare(const std::string& token, uint64_t index,
                                   const Declaration& part, bool is_last) {
  SegmentsOfArena began_with;
  std::vector<ImageToRead> images;
  {
    absl::MutexLock lock(&state_.mutex);
    RETURN_IF_ERROR(state_.lease.BeginPart(token, index));
    began_with = state_.current;
    images = began_with.segments->ImagesToDeclare(part);
  }
  ReadImages read = ReadImagesOf(*began_with.arena, began_with.segments->geometry(), images);
  absl::MutexLock lock(&state_.mutex);
  RETURN_IF_ERROR(state_.lease.BeginPart(token, index));
  const absl::Status status = began_with.segments->Declare(part, std::move(read));
  if (!status.ok()) {
    state_.lease.RefuseDeclaration();
    began_with.segments->ReleaseAll();
    return status;
  }
  state_.lease.EndPart(is_last);
  if (!is_last) return status;
  const SegmentDirectory& directory = began_with.segments->directory();
  spdlog::info("worker {} declared {} sequences, {} extents, {} segments, {} of them named",
               state_.lease.attachment().pid, directory.num_sequences(), directory.num_extents(),
               directory.num_committed(), directory.num_named());
  return status;
}

void Reservations::AddStats(StoreStats* stats) const {
  state_.mutex.AssertHeld();
  stats->segments_committed = segments_committed_;
  stats->segments_refused = segments_refused_;
  stats->reservations_refused = reservations_refused_;
}

}  // namespace retroinfer::kvstore
