// The errors of requests that are not the client's mistakes, with the reasons and hints that
// generation.proto promises.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/tenant/tenant.h"
#include "gpu_worker/kv/attention_settings.h"

namespace retroinfer {

// What a client is told to wait before it tries again: requests end within seconds, and a store is
// restarted in about one.
inline constexpr absl::Duration kRetryDelay = absl::Seconds(1);

// What a client is told to wait before it tries again, when requests wait for `expected_wait`: half
// of that, at least kRetryDelay, at most a minute.
absl::Duration RetryDelayAt(absl::Duration expected_wait);

// RESOURCE_EXHAUSTED, QUEUE_FULL, with a retry.
absl::Status QueueFullError(size_t live_requests, size_t max_live_requests,
                            absl::Duration expected_wait);
// RESOURCE_EXHAUSTED, WAITING_TOKENS_FULL, with a retry.
absl::Status WaitingTokensFullError(int64_t prompt_tokens, int64_t waiting_tokens,
                                    int64_t max_waiting_tokens, absl::Duration expected_wait);
// RESOURCE_EXHAUSTED, WAIT_TOO_LONG, with a retry when the wait is expected to be short enough.
absl::Status WaitTooLongError(absl::Duration expected_wait, absl::Duration max_expected_wait);
// RESOURCE_EXHAUSTED, TENANT_QUEUE_FULL and TENANT_WAITING_TOKENS_FULL, with a retry.
absl::Status TenantQueueFullError(const common::Tenant& tenant, int64_t live_requests,
                                  absl::Duration expected_wait);
absl::Status TenantWaitingTokensFullError(const common::Tenant& tenant, int64_t prompt_tokens,
                                          int64_t waiting_tokens, absl::Duration expected_wait);
// DEADLINE_EXCEEDED, DEADLINE_UNREACHABLE: the first token would come `needed` from now at the
// earliest, the deadline comes after `left`.
absl::Status DeadlineUnreachableError(absl::Duration needed, absl::Duration left);
// UNAVAILABLE, DRAINING, with a retry.
absl::Status DrainingError();
// ALREADY_EXISTS, REQUEST_ID_IN_USE.
absl::Status RequestIdInUseError(std::string_view request_id);
// RESOURCE_EXHAUSTED, CAPACITY_EXCEEDED: never fits, so without a retry. Names the largest
// context that does, and the policies that could hold it.
absl::Status CapacityExceededError(int64_t prompt_tokens, int64_t max_tokens,
                                   const PolicyCapacities& capacities, PolicyKind policy);

// The same where the context would fit with other settings: they need more than there is.
absl::Status SettingsExceededError(PolicyKind policy, int64_t dense_blocks, int64_t lane_tokens,
                                   int64_t dense_blocks_max, int64_t lane_tokens_max);

// What a client is told of a request that failed with `status`, an error of the engine's parts or
// of the store: RESOURCE_EXHAUSTED becomes OUT_OF_MEMORY with a retry, UNAVAILABLE becomes
// NOT_READY with a retry, or KV_NOT_READ if that is its reason, everything else INTERNAL. The
// message is kept. CONSTRAINT_TOO_COMPLEX, of constraint::Matcher, stays as it is.
absl::Status RequestFailure(const absl::Status& status);

}  // namespace retroinfer
