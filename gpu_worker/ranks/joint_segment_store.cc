#include "gpu_worker/ranks/joint_segment_store.h"

#include "absl/strings/str_cat.h"

namespace retroinfer {

void JointSegmentStore::Reserve(ReserveRequest request, ReserveCallback callback) {
  if (waiting_.empty()) return store_.Reserve(std::move(request), std::move(callback));
  waiting_.emplace_back(Reservation{std::move(request), std::move(callback)});
}

void JointSegmentStore::Commit(uint64_t sequence_id, CommittedSegment segment) {
  const auto parts = parts_.try_emplace({sequence_id, segment.extent_id}).first;
  parts->second.ranks |= 1;
  parts->second.segment = std::move(segment);
  CommitIfComplete(parts);
}

absl::Status JointSegmentStore::NoteWritten(int rank, const WrittenSegment& written) {
  const uint32_t bit = uint32_t{1} << rank;
  const auto parts = parts_.try_emplace({written.holder, written.extent_id}).first;
  if ((parts->second.ranks & bit) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " has written extent ",
                                                   written.extent_id, " of sequence ",
                                                   written.holder, " twice"));
  }
  if (parts_.size() > kMaxParts) {
    return absl::ResourceExhaustedError(absl::StrCat("rank ", rank, " has written more than ",
                                                     kMaxParts, " segments that others have not"));
  }
  parts->second.ranks |= bit;
  CommitIfComplete(parts);
  return absl::OkStatus();
}

void JointSegmentStore::CommitIfComplete(std::map<Key, Parts>::iterator parts) {
  if (parts->second.ranks != (uint32_t{1} << num_ranks_) - 1) return;
  store_.Commit(parts->first.first, *std::move(parts->second.segment));
  parts_.erase(parts);
}

void JointSegmentStore::Settle() {
  for (auto& one : std::exchange(waiting_, {})) {
    if (auto* const reservation = std::get_if<Reservation>(&one); reservation != nullptr) {
      store_.Reserve(std::move(reservation->request), std::move(reservation->callback));
      continue;
    }
    const uint64_t holder = std::get<uint64_t>(one);
    parts_.erase(parts_.lower_bound({holder, 0}), parts_.upper_bound({holder, UINT64_MAX}));
    store_.Release(holder);
  }
}

}  // namespace retroinfer
