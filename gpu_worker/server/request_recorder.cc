#include "gpu_worker/server/request_recorder.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/clock/steady_now.h"
#include "common/status/error_reason.h"

namespace retroinfer {
namespace {

const std::vector<double>& FirstTokenBuckets() {
  static const auto& buckets =
      *new std::vector<double>{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                               1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
  return buckets;
}

const std::vector<double>& TokenIntervalBuckets() {
  static const auto& buckets = *new std::vector<double>{
      .001, .002, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 10, 20};
  return buckets;
}

const std::vector<double>& TokenCountBuckets() {
  static const auto& buckets = *new std::vector<double>{
      1,    2,    5,     10,    20,    50,     100,    200,    500,     1000,
      2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 2000000};
  return buckets;
}

const std::vector<double>& ShareBuckets() {
  static const auto& buckets =
      *new std::vector<double>{.01, .02, .05, .1, .15, .2, .25, .3, .4, .5, .6, .7, .8, .9};
  return buckets;
}

double Seconds(absl::Duration duration) { return absl::ToDoubleSeconds(duration); }

// What generation.proto gives as reasons of errors that come before a request is queued.
constexpr const char* kRefusals[] = {"API_KEY_REQUIRED",
                                     "CANCELLED",
                                     "CAPACITY_EXCEEDED",
                                     "CONTEXT_TOO_LONG",
                                     "DEADLINE",
                                     "DEADLINE_UNREACHABLE",
                                     "DRAINING",
                                     "EMPTY_PROMPT",
                                     "INTERNAL",
                                     "INVALID_ATTENTION",
                                     "INVALID_INPUT",
                                     "INVALID_REQUEST",
                                     "INVALID_SAMPLING",
                                     "INVALID_UTF8",
                                     "MALFORMED",
                                     "METADATA_TOO_LARGE",
                                     "NOT_READY",
                                     "OUT_OF_MEMORY",
                                     "PRIORITY_NOT_ALLOWED",
                                     "QUEUE_FULL",
                                     "REQUEST_ID_IN_USE",
                                     "REQUEST_STALLED",
                                     "REQUEST_TOO_LARGE",
                                     "TENANT_NOT_ALLOWED",
                                     "TENANT_QUEUE_FULL",
                                     "TENANT_WAITING_TOKENS_FULL",
                                     "TOKEN_OUT_OF_RANGE",
                                     "TOO_MANY_CALLS",
                                     "TOO_MANY_REQUEST_BYTES",
                                     "UNKNOWN_FIELD",
                                     "WAITING_TOKENS_FULL",
                                     "WAIT_TOO_LONG"};
constexpr char kOtherRefusal[] = "OTHER";

// Values of the label `kind`.
constexpr char kGenerate[] = "generate";
constexpr char kScore[] = "score";

}  // namespace

std::string DescribeRequest(const RequestSummary& summary) {
  const GenerationResult& result = summary.result;
  std::string line = absl::StrFormat(
      "request %s %s: policy %s, prompt %d (cached %d), %s %d, queue %.3f s, prefill %.3f s",
      summary.engine_request_id, std::string(FinishReasonName(result.reason)),
      std::string(PolicyName(summary.attention.policy)), result.prompt_tokens, result.cached_tokens,
      summary.is_scoring ? "scored" : "completion", result.completion_tokens,
      Seconds(result.queue_time), Seconds(result.prefill_time));
  if (result.completion_tokens > 0) {
    absl::StrAppendFormat(&line, ", first token %.3f s", Seconds(result.time_to_first_token));
  }
  if (result.completion_tokens > 1) {
    absl::StrAppendFormat(
        &line, ", %.2f ms/token",
        1e3 * Seconds(result.decode_time) / static_cast<double>(result.completion_tokens - 1));
    absl::StrAppendFormat(&line, ", read %.1f%% of the KV", 100 * result.kv_read_ratio);
    if (result.unseen.has_value() && result.unseen->largest > 0) {
      absl::StrAppendFormat(&line, ", left %.1f%% of the mass to estimates",
                            100 * result.unseen->mean);
    }
  }
  if (result.num_suspensions > 0) {
    absl::StrAppendFormat(&line, ", preempted %d times", result.num_suspensions);
  }
  absl::StrAppendFormat(&line, ", total %.3f s", Seconds(summary.end_to_end));
  if (!result.status.ok()) absl::StrAppend(&line, ": ", result.status.ToString());
  return line;
}

RequestRecorder::RequestRecorder(common::Metrics& metrics)
    : metrics_(metrics),
      time_to_first_token_(metrics.Histogram("time_to_first_token_seconds",
                                             "From submission to the first token",
                                             FirstTokenBuckets())),
      inter_token_latency_(metrics.Histogram("inter_token_latency_seconds",
                                             "Between two tokens of a request",
                                             TokenIntervalBuckets())),
      end_to_end_(metrics.Histogram("e2e_request_latency_seconds",
                                    "From the arrival of a request to its end",
                                    FirstTokenBuckets())),
      queue_(metrics.Histogram("request_queue_time_seconds", "From submission to admission",
                               FirstTokenBuckets())),
      prefill_(metrics.Histogram("request_prefill_time_seconds", "Processing of the prompt",
                                 FirstTokenBuckets())),
      decode_(metrics.Histogram("request_decode_time_seconds", "From the first token to the last",
                                FirstTokenBuckets())),
      prompt_tokens_(
          metrics.Histogram("request_prompt_tokens", "Tokens of a prompt", TokenCountBuckets())),
      generation_tokens_(metrics.Histogram("request_generation_tokens",
                                           "Tokens generated for a request", TokenCountBuckets())),
      unseen_mass_(metrics.Histogram(
          "request_unseen_mass_ratio",
          "Predicted share of a request's softmax mass that was not attended to exactly",
          ShareBuckets())),
      conversation_tokens_(
          metrics.Counter("conversation_prompt_tokens_total",
                          "Prompt tokens of requests that go on with a conversation")),
      conversation_earlier_tokens_(
          metrics.Counter("conversation_earlier_tokens_total",
                          "Of those, tokens that the prompt of the turn before had")),
      conversation_recomputed_tokens_(metrics.Counter(
          "conversation_recomputed_tokens_total",
          "Of the tokens of the turn before, those that were computed, not found in the cache")) {
  for (const char* reason : kRefusals) AddRefusal(reason);
  AddRefusal(kOtherRefusal);
  {
    absl::MutexLock lock(&tenants_mutex_);
    CountersOf("");
  }
  // So that every series is there from the first scrape.
  for (const FinishReason reason :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kCancelled,
        FinishReason::kDeadline, FinishReason::kError}) {
    metrics.Counter("requests_total", "Requests that ended, by reason",
                    {{"finish_reason", std::string(FinishReasonName(reason))}});
  }
  for (const char* kind : {kGenerate, kScore}) OfKind(kind);
}

prometheus::Counter& RequestRecorder::OfKind(const char* kind) {
  return metrics_.Counter("requests_by_kind_total",
                          "Requests that ended, by what they were for: generating or scoring",
                          {{"kind", kind}});
}

RequestRecorder::TenantCounters& RequestRecorder::CountersOf(const std::string& tenant) {
  const auto found = tenants_.find(tenant);
  if (found != tenants_.end()) return found->second;
  const auto counter = [&](const char* name, const char* help) {
    return &metrics_.Counter(name, help, {{"tenant", tenant}});
  };
  return tenants_[tenant] = {counter("tenant_requests_total", "Requests of a tenant that ended"),
                             counter("tenant_prompt_tokens_total", "Tokens of their prompts"),
                             counter("tenant_generation_tokens_total", "Tokens generated for them"),
                             counter("tenant_first_token_seconds_total",
                                     "Time that they waited for their first token, together")};
}

void RequestRecorder::CountTenant(const RequestSummary& summary) {
  absl::MutexLock lock(&tenants_mutex_);
  TenantCounters& counters = CountersOf(summary.tenant);
  counters.requests->Increment();
  counters.prompt_tokens->Increment(static_cast<double>(summary.result.prompt_tokens));
  counters.generation_tokens->Increment(static_cast<double>(summary.result.completion_tokens));
  counters.first_token_seconds->Increment(Seconds(summary.result.time_to_first_token));
}

void RequestRecorder::CountConversation(const RequestSummary& summary) {
  const GenerationResult& result = summary.result;
  // Of a prompt that was not read to its end nobody can say what was computed.
  if (summary.earlier_tokens == 0 || result.completion_tokens == 0) return;
  const int64_t recomputed = std::max<int64_t>(0, summary.earlier_tokens - result.cached_tokens);
  conversation_tokens_.Increment(static_cast<double>(result.prompt_tokens));
  conversation_earlier_tokens_.Increment(static_cast<double>(summary.earlier_tokens));
  conversation_recomputed_tokens_.Increment(static_cast<double>(recomputed));
}

void RequestRecorder::AddRefusal(const char* reason) {
  refusals_[reason] = &metrics_.Counter(
      "requests_refused_total",
      "Calls of Generate and Score that ended before a request was queued, by reason",
      {{"reason", reason}});
}

void RequestRecorder::OnTokenInterval(absl::Duration interval, int64_t num_tokens) {
  for (int64_t i = 0; i < num_tokens; ++i) {
    inter_token_latency_.Observe(Seconds(interval) / static_cast<double>(num_tokens));
  }
}

void RequestRecorder::OnFinished(const RequestSummary& summary) {
  const GenerationResult& result = summary.result;
  metrics_
      .Counter("requests_total", "Requests that ended, by reason",
               {{"finish_reason", std::string(FinishReasonName(result.reason))}})
      .Increment();
  OfKind(summary.is_scoring ? kScore : kGenerate).Increment();
  CountTenant(summary);
  CountConversation(summary);
  end_to_end_.Observe(Seconds(summary.end_to_end));
  queue_.Observe(Seconds(result.queue_time));
  prompt_tokens_.Observe(static_cast<double>(result.prompt_tokens));
  // What is measured comes several tokens a step: it says nothing about generating.
  if (!summary.is_scoring)
    generation_tokens_.Observe(static_cast<double>(result.completion_tokens));
  if (result.completion_tokens > 0 && !summary.is_scoring) {
    time_to_first_token_.Observe(Seconds(result.time_to_first_token));
    prefill_.Observe(Seconds(result.prefill_time));
    decode_.Observe(Seconds(result.decode_time));
  }
  if (result.unseen.has_value()) unseen_mass_.Observe(result.unseen->mean);
  if (result.reason == FinishReason::kError) {
    spdlog::error("{}", DescribeRequest(summary));
    return;
  }
  std::optional<std::string> left_out = "";
  if (result.reason == FinishReason::kCancelled) left_out = AdmitLine();
  if (left_out.has_value()) spdlog::info("{}{}", DescribeRequest(summary), *left_out);
}

std::optional<std::string> RequestRecorder::AdmitLine() {
  absl::MutexLock lock(&log_mutex_);
  const std::optional<uint64_t> left_out = log_limiter_.Admit(common::SteadyNow());
  if (!left_out.has_value()) return std::nullopt;
  if (*left_out == 0) return "";
  return absl::StrCat(" (", *left_out, " lines about refused or cancelled requests were left out)");
}

void RequestRecorder::OnRefused(const std::string& request_id, const absl::Status& status) {
  const auto refusal = refusals_.find(common::ReasonOf(status).reason);
  (refusal != refusals_.end() ? refusal : refusals_.find(kOtherRefusal))->second->Increment();
  const std::optional<std::string> left_out = AdmitLine();
  if (!left_out.has_value()) return;
  spdlog::info("request {} refused: {}: {}{}", request_id.empty() ? "without id" : request_id,
               std::string(absl::StatusCodeToString(status.code())), std::string(status.message()),
               *left_out);
}

}  // namespace retroinfer
