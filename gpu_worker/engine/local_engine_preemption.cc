// How requests step aside and come back, as the plan says: the sequence keeps its extents, its
// sampling state and its place in `live_`, and gives up blocks, slots and its row of the tables.
//
//   kDecoding -> kLeaving    copies out are under way; its blocks are still its own
//             -> kSuspended  it holds host memory instead
//             -> kReturning  it has blocks; copies back are under way
//             -> kDecoding
//
// A request that ends meanwhile waits in kEnding for the copies (IsUnused).
#include <algorithm>
#include <utility>

#include "common/clock/steady_now.h"
#include "gpu_worker/engine/local_engine.h"
#include "spdlog/spdlog.h"

namespace retroinfer {

void LocalEngine::Suspend(uint64_t id) {
  LiveRequest* const live = Find(id);
  if (live == nullptr || live->state != RequestState::kDecoding) return;
  if (SuspendedKv::BlocksOf(live->kv) > parts_.suspended->num_free()) return;
  absl::StatusOr<SuspendedKv::Copy> copy = parts_.suspended->CopyOut(live->kv);
  if (!copy.ok()) return End(*live, FinishReason::kError, copy.status());
  live->policy->StepAside(live->kv);
  live->copy = *std::move(copy);
  live->state = RequestState::kLeaving;
  live->suspended_since = common::SteadyNow();
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
  if (!parts_.memory->Reserve(live->demand.wanted(), live->kv)) return;
  live->demand.Take();
  live->state = RequestState::kReturning;
  live->resident_since = common::SteadyNow();
  ++stats_.counters().resumptions;
  const absl::Status status = parts_.suspended->CopyBack(
      live->kv, *live->copy,
      [live](Stream& stream) { return live->policy->ComeBack(live->kv, stream); });
  if (!status.ok()) return End(*live, FinishReason::kError, status);
  spdlog::info("request {}: comes back after {}", live->request.request_id,
               absl::FormatDuration(common::SteadyNow() - live->suspended_since));
}

void LocalEngine::LogCopy(const LiveRequest& live, const char* way, absl::Time begun) const {
  const double bytes =
      static_cast<double>(live.copy->places.size() * parts_.suspended->block_bytes());
  const double seconds = absl::ToDoubleSeconds(common::SteadyNow() - begun);
  spdlog::info("request {}: {:.0f} MB copied {} the host in {:.2f} ms, {:.1f} GB/s",
               live.request.request_id, bytes * 1e-6, way, 1e3 * seconds,
               bytes / std::max(seconds, 1e-6) * 1e-9);
}

// Its KV is in host memory.
void LocalEngine::Leave(LiveRequest& live) {
  LogCopy(live, "to", live.suspended_since);
  parts_.memory->Free(live.kv);
  live.demand.Leave(live.length());
  live.state = RequestState::kSuspended;
}

// Its KV is back in its blocks.
void LocalEngine::Rejoin(LiveRequest& live) {
  LogCopy(live, "from", live.resident_since);
  parts_.suspended->Free(*live.copy);
  live.copy.reset();
  live.state = RequestState::kDecoding;
  live.resident_since = live.progressed = common::SteadyNow();
}

}  // namespace retroinfer
