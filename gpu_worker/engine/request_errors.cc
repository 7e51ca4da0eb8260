#include "gpu_worker/engine/request_errors.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status/error_reason.h"

namespace retroinfer {
namespace {

constexpr std::string_view kConstraintTooComplex = "CONSTRAINT_TOO_COMPLEX";
constexpr std::string_view kKvNotRead = "KV_NOT_READ";

absl::Status WithRetry(const absl::Status& status, std::string_view reason) {
  return common::WithRetry(common::WithReason(status, reason), kRetryDelay);
}

absl::Status Full(std::string_view reason, const std::string& message,
                  const std::map<std::string, std::string>& metadata,
                  absl::Duration expected_wait) {
  return common::WithRetry(
      common::WithReason(absl::ResourceExhaustedError(message), reason, metadata),
      RetryDelayAt(expected_wait));
}

std::string Seconds(absl::Duration duration) {
  return absl::StrFormat("%.3g", absl::ToDoubleSeconds(duration));
}

}  // namespace

absl::Duration RetryDelayAt(absl::Duration expected_wait) {
  return std::clamp(absl::Ceil(expected_wait / 2, absl::Seconds(1)), kRetryDelay, absl::Minutes(1));
}

absl::Status QueueFullError(size_t live_requests, size_t max_live_requests,
                            absl::Duration expected_wait) {
  return Full("QUEUE_FULL",
              absl::StrCat("the queue is full: ", live_requests, " requests are live, at most ",
                           max_live_requests, "; try again when some have ended"),
              {{"live_requests", absl::StrCat(live_requests)},
               {"max_live_requests", absl::StrCat(max_live_requests)}},
              expected_wait);
}

absl::Status WaitingTokensFullError(int64_t prompt_tokens, int64_t waiting_tokens,
                                    int64_t max_waiting_tokens, absl::Duration expected_wait) {
  return Full(
      "WAITING_TOKENS_FULL",
      absl::StrCat("prompts of ", waiting_tokens, " tokens wait to be read; with this one of ",
                   prompt_tokens, " that is more than ", max_waiting_tokens,
                   "; try again when some have been read"),
      {{"prompt_tokens", absl::StrCat(prompt_tokens)},
       {"waiting_tokens", absl::StrCat(waiting_tokens)},
       {"max_waiting_tokens", absl::StrCat(max_waiting_tokens)}},
      expected_wait);
}

absl::Status WaitTooLongError(absl::Duration expected_wait, absl::Duration max_expected_wait) {
  const absl::Status status = absl::ResourceExhaustedError(
      absl::StrCat("a request would wait ", Seconds(expected_wait),
                   " s for its turn, the server lets none wait for more than ",
                   Seconds(max_expected_wait), " s"));
  return common::WithRetry(
      common::WithReason(status, "WAIT_TOO_LONG",
                         {{"expected_wait_seconds", Seconds(expected_wait)},
                          {"max_expected_wait_seconds", Seconds(max_expected_wait)}}),
      std::max(kRetryDelay, absl::Ceil(expected_wait - max_expected_wait, absl::Seconds(1))));
}

absl::Status TenantQueueFullError(const common::Tenant& tenant, int64_t live_requests,
                                  absl::Duration expected_wait) {
  return Full(
      "TENANT_QUEUE_FULL",
      absl::StrCat("tenant ", tenant.name, " has ", live_requests, " live requests, at most ",
                   tenant.max_requests, "; try again when some have ended"),
      {{"tenant", tenant.name},
       {"live_requests", absl::StrCat(live_requests)},
       {"max_live_requests", absl::StrCat(tenant.max_requests)}},
      expected_wait);
}

absl::Status TenantWaitingTokensFullError(const common::Tenant& tenant, int64_t prompt_tokens,
                                          int64_t waiting_tokens, absl::Duration expected_wait) {
  return Full("TENANT_WAITING_TOKENS_FULL",
              absl::StrCat("prompts of tenant ", tenant.name, " with ", waiting_tokens,
                           " tokens wait to be read; with this one of ", prompt_tokens,
                           " that is more than ", tenant.max_waiting_tokens,
                           "; try again when some have been read"),
              {{"tenant", tenant.name},
               {"prompt_tokens", absl::StrCat(prompt_tokens)},
               {"waiting_tokens", absl::StrCat(waiting_tokens)},
               {"max_waiting_tokens", absl::StrCat(tenant.max_waiting_tokens)}},
              expected_wait);
}

absl::Status DeadlineUnreachableError(absl::Duration needed, absl::Duration left) {
  return common::WithReason(
      absl::DeadlineExceededError(absl::StrCat(
          "the first token would come in ", Seconds(needed), " s at the earliest, the deadline in ",
          Seconds(left), " s; allow more time, or ask for less")),
      "DEADLINE_UNREACHABLE",
      {{"needed_seconds", Seconds(needed)}, {"left_seconds", Seconds(left)}});
}

absl::Status DrainingError() {
  return WithRetry(
      absl::UnavailableError("the server is shutting down; try again later or elsewhere"),
      "DRAINING");
}

absl::Status RequestIdInUseError(std::string_view request_id) {
  return common::WithReason(absl::AlreadyExistsError(absl::StrCat(
                                "request_id '", std::string(request_id), "' is in use")),
                            "REQUEST_ID_IN_USE");
}

absl::Status CapacityExceededError(int64_t prompt_tokens, int64_t max_tokens,
                                   const PolicyCapacities& capacities, PolicyKind policy) {
  const int64_t needed = prompt_tokens + max_tokens;
  const int64_t capacity = capacities[policy];
  std::string others;
  for (size_t i = 0; i < kNumPolicies; ++i) {
    const auto other = static_cast<PolicyKind>(i);
    if (other == policy || capacities[other] < needed) continue;
    absl::StrAppend(&others, ", or policy ", std::string(PolicyName(other)));
  }
  return common::WithReason(
      absl::ResourceExhaustedError(absl::StrCat(
          "The prompt is too long: with policy ", std::string(PolicyName(policy)),
          " this server's maximum context length is ", capacity, " tokens. However, you requested ",
          needed, " tokens (", prompt_tokens, " in the messages, ", max_tokens,
          " in the completion). Use a shorter prompt, fewer max_tokens", others)),
      "CAPACITY_EXCEEDED",
      {{"needed_tokens", absl::StrCat(needed)},
       {"capacity_tokens", absl::StrCat(capacity)},
       {"prompt_tokens", absl::StrCat(prompt_tokens)},
       {"max_tokens", absl::StrCat(max_tokens)}});
}

absl::Status SettingsExceededError(PolicyKind policy, int64_t dense_blocks, int64_t lane_tokens,
                                   int64_t dense_blocks_max, int64_t lane_tokens_max) {
  return common::WithReason(
      absl::ResourceExhaustedError(absl::StrCat(
          "with these settings policy ", std::string(PolicyName(policy)), " needs ", dense_blocks,
          " dense blocks and a prefill lane of ", lane_tokens, " tokens; this server has ",
          dense_blocks_max, " and a prefill lane of ", lane_tokens_max, ": use smaller ones")),
      "CAPACITY_EXCEEDED",
      {{"needed_tokens", absl::StrCat(lane_tokens)},
       {"capacity_tokens", absl::StrCat(lane_tokens_max)}});
}

absl::Status RequestFailure(const absl::Status& status) {
  const std::string message(status.message());
  // Of the request's own grammar: the same call again would end in the same way.
  if (common::ReasonOf(status).reason == kConstraintTooComplex) return status;
  if (absl::IsResourceExhausted(status)) {
    return WithRetry(absl::ResourceExhaustedError(message), "OUT_OF_MEMORY");
  }
  if (absl::IsUnavailable(status)) {
    const bool is_of_disk = common::ReasonOf(status).reason == kKvNotRead;
    return WithRetry(absl::UnavailableError(message), is_of_disk ? kKvNotRead : "NOT_READY");
  }
  return common::WithReason(absl::InternalError(message), "INTERNAL");
}

}  // namespace retroinfer
