#include "gpu_worker/engine/linked_segment_store.h"

#include <utility>

#include "spdlog/spdlog.h"

namespace retroinfer {

void LinkedSegmentStore::Reserve(uint64_t sequence_id, std::vector<uint32_t> segment_tokens,
                                 ReserveCallback callback) {
  link_.Reserve(sequence_id, std::move(segment_tokens), std::move(callback));
}

void LinkedSegmentStore::Commit(uint64_t sequence_id, uint64_t extent_id, int64_t token_begin) {
  link_.Commit(sequence_id,
               {{.extent_id = extent_id, .token_begin = static_cast<uint64_t>(token_begin)}},
               [sequence_id, extent_id](const absl::Status& status) {
                 // Cancelled: the link was closed, or the sequence released before its turn.
                 if (!status.ok() && !absl::IsCancelled(status)) {
                   spdlog::error("commit of extent {} of sequence {}: {}", extent_id, sequence_id,
                                 status.ToString());
                 }
               });
}

void LinkedSegmentStore::Release(uint64_t sequence_id) { link_.Release(sequence_id); }

}  // namespace retroinfer
