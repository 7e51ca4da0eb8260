#include "gpu_worker/ranks/rank_follower.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock/steady_now.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

constexpr absl::Duration kStatsInterval = absl::Milliseconds(100);
// The background is as far as rank 0's, or nearly: the first looks follow one another at once.
constexpr int kLooksWithoutPause = 64;
constexpr absl::Duration kPause = absl::Microseconds(50);
// An answer is read by who waits for it.
constexpr absl::Duration kSendLimit = absl::Minutes(10);

}  // namespace

absl::Status RankFollower::Run() {
  while (!has_ended_) {
    absl::StatusOr<RankMessage> message = parts_.channel->Receive(absl::InfiniteDuration());
    absl::Status status = message.status();
    if (message.ok()) status = Take(*message);
    if (absl::IsUnavailable(status)) return absl::OkStatus();
    if (status.ok()) continue;
    // Rank 0 may be gone as well: then nobody is to be told.
    (void)parts_.channel->Send(RankMessageType::kFailure, EncodeFailure(status), kSendLimit);
    return status;
  }
  return absl::OkStatus();
}

absl::Status RankFollower::Take(const RankMessage& message) {
  switch (message.type) {
    case RankMessageType::kCommand:
      return Answer(message);
    case RankMessageType::kSnapshot:
      parts_.commands->executor().parts().cache->RequestSnapshot();
      return absl::OkStatus();
    case RankMessageType::kEnd:
      has_ended_ = true;
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("a message of type ", static_cast<int>(message.type), " among commands"));
  }
}

absl::Status RankFollower::Answer(const RankMessage& message) {
  CommandRunner& commands = *parts_.commands;
  ASSIGN_OR_RETURN(RankCommand command, DecodeRankCommand(message.payload, parts_.limits));
  for (const TakenBack& one : command.taken_back) {
    RETURN_IF_ERROR(commands.TakeBack(one.id, one.num_rows));
  }
  RankAnswer answer;
  ASSIGN_OR_RETURN(const bool is_ready, WaitUntilReady(command.command));
  if (!is_ready) return absl::UnavailableError("rank 0 is gone");
  commands.CarryOut(command.command, answer.result);
  RETURN_IF_ERROR(answer.result.refused);
  answer.written = parts_.written->Take();
  answer.stats = Stats();
  return parts_.channel->Send(RankMessageType::kAnswer, EncodeAnswer(answer), kSendLimit);
}

absl::StatusOr<bool> RankFollower::WaitUntilReady(const StepCommand& command) {
  CommandRunner& commands = *parts_.commands;
  SequenceSegments& segments = *commands.executor().parts().segments;
  for (int looks = 0;; ++looks) {
    commands.Tend();
    ASSIGN_OR_RETURN(const bool is_ready, commands.IsReady(command));
    if (is_ready || parts_.channel->IsClosed()) {
      if (looks > kLooksWithoutPause) segments.SetUrgent(false);
      return is_ready;
    }
    if (looks == kLooksWithoutPause) segments.SetUrgent(true);
    if (looks >= kLooksWithoutPause) absl::SleepFor(kPause);
  }
}

RankStats RankFollower::Stats() {
  const absl::Time now = common::SteadyNow();
  if (now < next_stats_) return stats_;
  next_stats_ = now + kStatsInterval;
  const ExecutorParts& parts = parts_.commands->executor().parts();
  const absl::StatusOr<BlockCacheStats> cache = parts.cache->Stats();
  if (!cache.ok()) return stats_;
  stats_ = {.page_hits = cache->counters.hits,
            .page_misses = cache->counters.admissions,
            .page_transients = cache->counters.transients,
            .page_evictions = cache->counters.evictions,
            .arena_bytes_in = cache->counters.misses * parts.cache->view().page_bytes,
            .arena_bytes_out = parts.segments->builder().bytes_written(),
            .slots_used = static_cast<int64_t>(cache->num_used_slots)};
  for (size_t i = 0; i < static_cast<size_t>(MemoryPurpose::kCount); ++i) {
    stats_.device_bytes += parts.device->allocated_bytes(static_cast<MemoryPurpose>(i));
  }
  return stats_;
}

}  // namespace retroinfer
