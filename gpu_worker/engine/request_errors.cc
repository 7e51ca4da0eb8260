#include "gpu_worker/engine/request_errors.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace retroinfer {
namespace {

absl::Status WithRetry(const absl::Status& status, std::string_view reason) {
  return common::WithRetry(common::WithReason(status, reason), kRetryDelay);
}

}  // namespace

absl::Status QueueFullError(size_t live_requests, size_t max_live_requests) {
  const absl::Status status = absl::ResourceExhaustedError(
      absl::StrCat("the queue is full: ", live_requests, " requests are live, at most ",
                   max_live_requests, "; try again when some have ended"));
  return common::WithRetry(
      common::WithReason(status, "QUEUE_FULL",
                         {{"live_requests", absl::StrCat(live_requests)},
                          {"max_live_requests", absl::StrCat(max_live_requests)}}),
      kRetryDelay);
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
          "prompt of ", prompt_tokens, " tokens and max_tokens ", max_tokens, " need ", needed,
          " tokens of KV; this server can hold ", capacity, " with policy ",
          std::string(PolicyName(policy)), ". Use a shorter prompt, fewer max_tokens", others)),
      "CAPACITY_EXCEEDED",
      {{"needed_tokens", absl::StrCat(needed)}, {"capacity_tokens", absl::StrCat(capacity)}});
}

absl::Status RequestFailure(const absl::Status& status) {
  const std::string message(status.message());
  if (absl::IsResourceExhausted(status)) {
    return WithRetry(absl::ResourceExhaustedError(message), "OUT_OF_MEMORY");
  }
  if (absl::IsUnavailable(status)) return WithRetry(absl::UnavailableError(message), "NOT_READY");
  return common::WithReason(absl::InternalError(message), "INTERNAL");
}

}  // namespace retroinfer
