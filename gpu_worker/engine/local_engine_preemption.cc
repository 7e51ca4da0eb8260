// How requests step aside and come back, as the plan says: the sequence keeps its extents, its
// sampling state and its place in `live_`, and gives up blocks, slots and its row of the tables.
//
//   kDecoding -> kLeaving    copies out are under way; its blocks are still its own
//             -> kSuspended  it holds host memory instead
//             -> kReturning  it has blocks; copies back are under way
//             -> kDecoding
//
// A request that ends meanwhile waits in kEnding for the copies (PollEnding).
#include <utility>

#include "absl/time/clock.h"
#include "gpu_worker/engine/local_engine.h"
#include "spdlog/spdlog.h"

namespace retroinfer {

void LocalEngine::Suspend(uint64_t id) {
  LiveRequest* const live = Find(id);
  if (live == nullptr || live->state != RequestState::kDecoding) return;
  if (SuspendedKv::BlocksOf(live->kv) > parts_.suspended->num_free()) return;
  absl::StatusOr<SuspendedKv::Copy> copy = parts_.suspended->CopyOut(live->kv, *live->policy);
  if (!copy.ok()) return End(*live, FinishReason::kError, copy.status());
  live->copy = *std::move(copy);
  live->state = RequestState::kLeaving;
  live->suspended_since = absl::Now();
  ++live->num_suspensions;
  ++stats_.counters().preemptions;
  spdlog::info("request {}: steps aside after {} tokens, for the {}. time; {} blocks are copied",
               live->request.request_id, live->num_generated, live->num_suspensions,
               live->copy->places.size());
}

// Takes the device memory that the plan has counted.
void LocalEngine::Resume(uint64_t id) {
  LiveRequest* const live = Find(id);
  if (live == nullptr || live->state != RequestState::kSuspended) return;
  if (!parts_.memory->Reserve(live->need, live->kv)) return;
  live->state = RequestState::kReturning;
  ++stats_.counters().resumptions;
  const absl::Status status = parts_.suspended->CopyBack(live->kv, *live->policy, *live->copy);
  if (!status.ok()) return End(*live, FinishReason::kError, status);
  spdlog::info("request {}: comes back after {}", live->request.request_id,
               absl::FormatDuration(absl::Now() - live->suspended_since));
}

// Returns whether any copy was finished.
bool LocalEngine::PollCopies() {
  bool changed = false;
  for (const auto& live : live_) {
    const bool leaves = live->state == RequestState::kLeaving;
    if (!leaves && live->state != RequestState::kReturning) continue;
    const absl::StatusOr<bool> done = parts_.suspended->IsDone(*live->copy);
    if (!done.ok()) {
      End(*live, FinishReason::kError, done.status());
    } else if (!*done) {
      continue;
    } else if (leaves) {
      parts_.memory->Free(live->kv);
      live->state = RequestState::kSuspended;
    } else {
      parts_.suspended->Free(*live->copy);
      live->copy.reset();
      live->state = RequestState::kDecoding;
      live->resident_since = live->progressed = absl::Now();
    }
    changed = true;
  }
  return changed;
}

// Whether no copy of a request that ends is under way; frees what it has in host memory.
bool LocalEngine::EndCopy(LiveRequest& live) {
  if (!live.copy.has_value()) return true;
  const absl::StatusOr<bool> done = parts_.suspended->IsDone(*live.copy);
  if (!done.ok()) {
    spdlog::error("copies of sequence {}: {}", live.kv.sequence_id, done.status().ToString());
  } else if (!*done) {
    return false;
  }
  parts_.suspended->Free(*live.copy);
  live.copy.reset();
  return true;
}

}  // namespace retroinfer
