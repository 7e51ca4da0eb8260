#include "gpu_worker/ranks/rank_handshake.h"

#include <algorithm>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/clock/steady_now.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

constexpr absl::Duration kWaitInterval = absl::Seconds(10);  // between calls of on_wait
constexpr absl::Duration kMessageLimit = absl::Minutes(1);   // for a message that has begun

absl::Status OfRank(size_t index, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("rank ", index + 1, ": ", std::string(status.message())));
}

// The payload of the next message, which must be of that type.
absl::StatusOr<std::string> ReceiveFrom(RankChannel& channel, RankMessageType type,
                                        const HandshakeLimits& limits) {
  const absl::Time deadline = common::SteadyNow() + limits.limit;
  while (!channel.AwaitMessage(std::min(kWaitInterval, limits.limit))) {
    if (limits.on_wait) limits.on_wait();
    if (common::SteadyNow() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("it has not come as far as rank 0 within ",
                                                      absl::FormatDuration(limits.limit)));
    }
  }
  ASSIGN_OR_RETURN(RankMessage message, channel.Receive(kMessageLimit));
  if (message.type == RankMessageType::kFailure) return DecodeFailure(message.payload);
  if (message.type == type && message.fds.empty()) return std::move(message.payload);
  return absl::InvalidArgumentError(absl::StrCat("a message of type ",
                                                 static_cast<int>(message.type), " instead of ",
                                                 static_cast<int>(type)));
}

absl::Status CheckHello(const RankHello& hello, const RankHello& own, size_t index) {
  if (hello.version != own.version || hello.revision != own.revision) {
    return absl::FailedPreconditionError(absl::StrCat("it runs version ", hello.version, " (",
                                                      hello.revision, "), rank 0 ", own.version,
                                                      " (", own.revision, ")"));
  }
  if (hello.rank != index + 1 || hello.num_ranks != own.num_ranks) {
    return absl::FailedPreconditionError(
        absl::StrCat("it is rank ", hello.rank, " of ", hello.num_ranks, ", of ", own.num_ranks));
  }
  if (hello.backend != own.backend || hello.device_name != own.device_name) {
    return absl::FailedPreconditionError(
        absl::StrCat("it computes on ", hello.device_name, " (", hello.backend, "), rank 0 on ",
                     own.device_name, " (", own.backend, "): ranks need devices of one kind"));
  }
  if (hello.fingerprint != own.fingerprint) {
    return absl::FailedPreconditionError(
        absl::StrCat("it has read another model or other settings than rank 0: ",
                     absl::BytesToHexString(hello.fingerprint.substr(0, 8)), " instead of ",
                     absl::BytesToHexString(own.fingerprint.substr(0, 8)),
                     "; do not change files while the worker starts"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SharedPlan> MeetRanks(std::span<RankChannel* const> channels, const RankHello& own,
                                     const HandshakeLimits& limits) {
  SharedPlan memory{.available_bytes = own.available_bytes, .weight_bytes = own.weight_bytes};
  for (size_t i = 0; i < channels.size(); ++i) {
    const auto payload = ReceiveFrom(*channels[i], RankMessageType::kHello, limits);
    if (!payload.ok()) return OfRank(i, payload.status());
    const absl::StatusOr<RankHello> hello = DecodeHello(*payload);
    if (!hello.ok()) return OfRank(i, hello.status());
    if (const absl::Status status = CheckHello(*hello, own, i); !status.ok()) {
      return OfRank(i, status);
    }
    memory.available_bytes = std::min(memory.available_bytes, hello->available_bytes);
    memory.weight_bytes = std::max(memory.weight_bytes, hello->weight_bytes);
  }
  return memory;
}

absl::Status HandOverMemory(std::span<RankChannel* const> channels, const SharedPlan& memory,
                            std::span<const std::vector<int>> descriptors) {
  RI_CHECK(descriptors.size() == channels.size());
  for (size_t i = 0; i < channels.size(); ++i) {
    const absl::Status status = channels[i]->Send(
        RankMessageType::kMemory, EncodeSharedPlan(memory), kMessageLimit, descriptors[i]);
    if (!status.ok()) return OfRank(i, status);
  }
  return absl::OkStatus();
}

absl::Status AwaitReady(std::span<RankChannel* const> channels, std::string_view plan,
                        const HandshakeLimits& limits) {
  for (size_t i = 0; i < channels.size(); ++i) {
    const auto payload = ReceiveFrom(*channels[i], RankMessageType::kReady, limits);
    if (!payload.ok()) return OfRank(i, payload.status());
    const absl::StatusOr<std::string> theirs = DecodeReady(*payload);
    if (!theirs.ok()) return OfRank(i, theirs.status());
    if (*theirs != plan) {
      return OfRank(i, absl::FailedPreconditionError(
                           absl::StrCat("it has planned its memory otherwise than rank 0:\n",
                                        *theirs, "\ninstead of\n", std::string(plan))));
    }
  }
  return absl::OkStatus();
}

}  // namespace retroinfer
