#include "client/generate/generation.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "client/command/number_format.h"
#include "common/rpc/context_affinity.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/policy_name.h"
#include "common/status/error_reason.h"

namespace retroinfer::client {
namespace {

namespace v1 = generation::v1;

double Seconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) + 1e-9 * static_cast<double>(duration.nanos());
}

// Between the first token and the last; 0 where there is no interval.
double MillisecondsPerToken(const v1::Finished& finished) {
  if (finished.completion_tokens() < 2) return 0;
  return 1e3 * Seconds(finished.timings().decode()) /
         static_cast<double>(finished.completion_tokens() - 1);
}

nlohmann::json ContinuationJson(const Continuation& continuation) {
  const v1::Finished& finished = continuation.finished;
  nlohmann::json json = {
      {"text", continuation.text},
      {"token_ids", continuation.token_ids},
      {"finish_reason", FinishReasonText(finished.reason())},
      {"prompt_tokens", finished.prompt_tokens()},
      {"cached_tokens", finished.cached_tokens()},
      {"completion_tokens", finished.completion_tokens()},
      {"seed", finished.seed()},
      {"queue_s", Seconds(finished.timings().queue())},
      {"prefill_s", Seconds(finished.timings().prefill())},
      {"ttft_s", Seconds(finished.timings().time_to_first_token())},
      {"decode_s", Seconds(finished.timings().decode())},
      {"ms_per_token", MillisecondsPerToken(finished)},
      {"kv_read_ratio", finished.kv_read_ratio()},
  };
  if (finished.has_unseen_mass()) {
    json["unseen_mass"] = {{"mean", finished.unseen_mass().mean()},
                           {"largest", finished.unseen_mass().largest()}};
  }
  if (finished.has_matched_stop()) json["matched_stop"] = finished.matched_stop();
  if (finished.has_matched_token_id()) json["matched_token_id"] = finished.matched_token_id();
  return json;
}

// Longer than a balancer takes to notice that a node is gone (deploy/fleet/haproxy.cfg).
constexpr absl::Duration kFirstRetryPause = absl::Seconds(1);

// Whether a stream broke off on its way: balancers end one with these codes when its node dies, and
// only a server gives a reason.
bool BrokeOff(const grpc::Status& status) {
  return (status.error_code() == grpc::StatusCode::UNKNOWN ||
          status.error_code() == grpc::StatusCode::INTERNAL) &&
         common::ReasonOf(common::FromGrpcStatus(status)).reason.empty();
}

bool MayBeAskedAgain(const GenerationOutcome& outcome) {
  const bool is_gone = outcome.status.error_code() == grpc::StatusCode::UNAVAILABLE;
  return (is_gone || BrokeOff(outcome.status)) &&
         std::ranges::all_of(outcome.continuations, [](const Continuation& continuation) {
           return continuation.token_ids.empty() && continuation.text.empty();
         });
}

}  // namespace

GenerationOutcome RunGeneration(const Connection& connection, const v1::GenerateRequest& request,
                                const GenerationCallbacks& callbacks,
                                InterruptWatcher* interrupts) {
  const std::string affinity = common::ContextAffinity(request);
  absl::Notification interrupted;
  absl::Duration pause = kFirstRetryPause;
  for (int retries_left = connection.retries();; --retries_left, pause *= 2) {
    grpc::ClientContext context;
    connection.Prepare(&context, affinity);
    if (interrupts != nullptr) {
      interrupts->SetCallback([&](int) {
        if (!interrupted.HasBeenNotified()) interrupted.Notify();
        context.TryCancel();
      });
    }
    GenerationOutcome outcome = RunGeneration(connection, &context, request, callbacks);
    const bool again = retries_left > 0 && MayBeAskedAgain(outcome) && connection.IsReachable();
    const bool cancelled = again && interrupted.WaitForNotificationWithTimeout(pause);
    if (interrupts != nullptr) interrupts->SetCallback(nullptr);
    if (cancelled) outcome.status = grpc::Status(grpc::StatusCode::CANCELLED, "interrupted");
    if (!again || cancelled) return outcome;
  }
}

GenerationOutcome RunGeneration(const Connection& connection, grpc::ClientContext* context,
                                const v1::GenerateRequest& request,
                                const GenerationCallbacks& callbacks) {
  const int n = request.sampling().has_n() ? request.sampling().n() : 1;
  GenerationOutcome outcome;
  outcome.continuations.resize(static_cast<size_t>(std::max(n, 1)));
  auto reader = connection.stub().Generate(context, request);
  v1::GenerateResponse event;
  while (reader->Read(&event)) {
    const size_t index = static_cast<size_t>(event.index());
    if (index >= outcome.continuations.size()) continue;
    Continuation& continuation = outcome.continuations[index];
    if (event.has_progress() && callbacks.on_progress) callbacks.on_progress(event.progress());
    if (event.has_output()) {
      continuation.text += event.output().text();
      continuation.token_ids.insert(continuation.token_ids.end(),
                                    event.output().token_ids().begin(),
                                    event.output().token_ids().end());
      if (callbacks.on_text && !callbacks.on_text(event.index(), event.output().text())) {
        context->TryCancel();
      }
    }
    if (event.has_finished()) continuation.finished = event.finished();
  }
  outcome.status = reader->Finish();
  return outcome;
}

bool WasCut(const GenerationOutcome& outcome) {
  return std::any_of(outcome.continuations.begin(), outcome.continuations.end(),
                     [](const Continuation& continuation) {
                       const v1::FinishReason reason = continuation.finished.reason();
                       return reason == v1::FINISH_REASON_CANCELLED ||
                              reason == v1::FINISH_REASON_DEADLINE;
                     });
}

std::string FinishReasonText(v1::FinishReason reason) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::FinishReason_Name(reason), "FINISH_REASON_"));
}

std::string DescribeFinish(const v1::Finished& finished) {
  std::string text = FinishReasonText(finished.reason());
  absl::StrAppend(&text, ", ", WithThousands(finished.prompt_tokens()), " prompt tokens");
  if (finished.cached_tokens() > 0) {
    absl::StrAppend(&text, " (", WithThousands(finished.cached_tokens()), " cached)");
  }
  absl::StrAppend(&text, ", ", WithThousands(finished.completion_tokens()), " generated");
  if (finished.completion_tokens() > 0) {
    absl::StrAppendFormat(&text, ", first token after %.2f s",
                          Seconds(finished.timings().time_to_first_token()));
  }
  if (finished.completion_tokens() > 1) {
    absl::StrAppendFormat(&text, ", %.1f ms/token", MillisecondsPerToken(finished));
    absl::StrAppendFormat(&text, ", read %.1f%% of the KV cache", 100 * finished.kv_read_ratio());
  }
  return text;
}

std::string FinishJson(const v1::GenerateRequest& request, const GenerationOutcome& outcome) {
  nlohmann::json json;
  if (outcome.continuations.size() == 1) {
    json = ContinuationJson(outcome.continuations[0]);
  } else {
    json["continuations"] = nlohmann::json::array();
    for (const Continuation& continuation : outcome.continuations) {
      json["continuations"].push_back(ContinuationJson(continuation));
    }
  }
  if (request.attention().policy() != v1::ATTENTION_POLICY_UNSPECIFIED) {
    json["policy"] = common::NameOfPolicy(request.attention().policy());
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace retroinfer::client
