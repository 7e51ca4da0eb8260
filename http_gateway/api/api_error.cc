#include "http_gateway/api/api_error.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/status/error_reason.h"
#include "http_gateway/json/json_text.h"

namespace retroinfer::gateway {
namespace {

constexpr char kInvalidRequest[] = "invalid_request_error";
constexpr char kRateLimit[] = "rate_limit_error";
constexpr char kServer[] = "server_error";
constexpr char kOverloaded[] = "overloaded_error";
constexpr int kRetrySecondsMax = 3600;

const ErrorRule& FallBack() {
  static const ErrorRule rule = {absl::StatusCode::kUnknown, "", 500, kServer, "internal_error"};
  return rule;
}

const ErrorRule& RuleOf(absl::StatusCode code, const std::string& reason) {
  for (const ErrorRule& rule : ErrorRules()) {
    if (rule.code == code && (*rule.reason == '\0' || reason == rule.reason)) return rule;
  }
  return FallBack();
}

const char* AnthropicType(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return kRateLimit;
    case 504:
      return "timeout_error";
    case 529:
      return kOverloaded;
    default:
      return http_status < 500 ? kInvalidRequest : "api_error";
  }
}

// As Anthropic's API words it; clients read the numbers.
std::string AnthropicOverflow(const common::ErrorReason& reason, const std::string& message) {
  const auto number = [&reason](const char* name) {
    int64_t value = 0;
    const auto found = reason.metadata.find(name);
    return found != reason.metadata.end() && absl::SimpleAtoi(found->second, &value) ? value : 0;
  };
  const int64_t prompt = number("prompt_tokens");
  const int64_t most = std::max(number("max_model_len"), number("capacity_tokens"));
  if (prompt == 0 || most == 0) return message;
  if (prompt >= most) {
    return absl::StrCat("prompt is too long: ", prompt, " tokens > ", most, " maximum");
  }
  return absl::StrCat("input length and `max_tokens` exceed context limit: ", prompt, " + ",
                      number("max_tokens"), " > ", most,
                      ", decrease input length or `max_tokens` and try again");
}

void ToAnthropic(const common::ErrorReason& reason, ApiError* error) {
  error->form = ErrorForm::kAnthropic;
  if (error->http_status == 503) error->http_status = 529;
  error->type = AnthropicType(error->http_status);
  if (reason.reason == "CONTEXT_TOO_LONG" || reason.reason == "CAPACITY_EXCEEDED") {
    error->message = AnthropicOverflow(reason, error->message);
  }
}

}  // namespace

ErrorForm ErrorFormOf(std::string_view path) {
  constexpr std::string_view kMessages = "/v1/messages";
  const bool is_below = path == kMessages || path.starts_with(std::string(kMessages) + "/");
  return is_below ? ErrorForm::kAnthropic : ErrorForm::kOpenAi;
}

const std::vector<ErrorRule>& ErrorRules() {
  using absl::StatusCode;
  // The first line that fits counts.
  static const std::vector<ErrorRule> rules = {
      {StatusCode::kInvalidArgument, "CONTEXT_TOO_LONG", 400, kInvalidRequest,
       "context_length_exceeded"},
      {StatusCode::kInvalidArgument, "HEADERS_TOO_LARGE", 431, kInvalidRequest, ""},
      {StatusCode::kInvalidArgument, "BODY_TOO_LARGE", 413, kInvalidRequest, ""},
      {StatusCode::kInvalidArgument, "UNSUPPORTED_MEDIA_TYPE", 415, kInvalidRequest, ""},
      {StatusCode::kInvalidArgument, "LENGTH_REQUIRED", 411, kInvalidRequest, ""},
      {StatusCode::kInvalidArgument, "", 400, kInvalidRequest, ""},
      {StatusCode::kOutOfRange, "", 400, kInvalidRequest, ""},
      {StatusCode::kFailedPrecondition, "", 400, kInvalidRequest, ""},
      {StatusCode::kUnauthenticated, "", 401, kInvalidRequest, "invalid_api_key"},
      {StatusCode::kPermissionDenied, "", 403, kInvalidRequest, ""},
      {StatusCode::kNotFound, "", 404, kInvalidRequest, ""},
      {StatusCode::kUnimplemented, "METHOD_NOT_ALLOWED", 405, kInvalidRequest, ""},
      {StatusCode::kUnimplemented, "", 501, kServer, ""},
      {StatusCode::kAlreadyExists, "", 409, kInvalidRequest, ""},
      {StatusCode::kResourceExhausted, "QUEUE_FULL", 429, kRateLimit, ""},
      {StatusCode::kResourceExhausted, "WAITING_TOKENS_FULL", 429, kRateLimit, ""},
      {StatusCode::kResourceExhausted, "WAIT_TOO_LONG", 429, kRateLimit, ""},
      {StatusCode::kResourceExhausted, "TENANT_QUEUE_FULL", 429, kRateLimit, ""},
      {StatusCode::kResourceExhausted, "TENANT_WAITING_TOKENS_FULL", 429, kRateLimit, ""},
      {StatusCode::kResourceExhausted, "TOO_MANY_CALLS", 429, kRateLimit, ""},
      {StatusCode::kResourceExhausted, "TOO_MANY_STREAMS", 429, kRateLimit, ""},
      {StatusCode::kResourceExhausted, "TOO_MANY_REQUEST_BYTES", 503, kOverloaded, ""},
      {StatusCode::kResourceExhausted, "CONSTRAINT_TOO_COMPLEX", 400, kInvalidRequest, ""},
      {StatusCode::kResourceExhausted, "OUT_OF_MEMORY", 503, kOverloaded, ""},
      {StatusCode::kResourceExhausted, "CAPACITY_EXCEEDED", 400, kInvalidRequest,
       "context_length_exceeded"},
      {StatusCode::kResourceExhausted, "REQUEST_TOO_LARGE", 413, kInvalidRequest, ""},
      {StatusCode::kResourceExhausted, "METADATA_TOO_LARGE", 431, kInvalidRequest, ""},
      {StatusCode::kResourceExhausted, "SLOW_CLIENT", 408, kInvalidRequest, ""},
      {StatusCode::kResourceExhausted, "", 503, kOverloaded, ""},
      {StatusCode::kUnavailable, "", 503, kOverloaded, ""},
      {StatusCode::kDeadlineExceeded, "REQUEST_STALLED", 408, kInvalidRequest, ""},
      {StatusCode::kDeadlineExceeded, "", 504, kServer, ""},
      {StatusCode::kCancelled, "", 503, kServer, ""},
      {StatusCode::kInternal, "", 500, kServer, "internal_error"},
      {StatusCode::kDataLoss, "", 500, kServer, ""},
  };
  return rules;
}

namespace {

ApiError ToOpenAiError(const absl::Status& status, ErrorOrigin origin) {
  const common::ErrorReason reason = common::ReasonOf(status);
  const ErrorRule& rule = RuleOf(status.code(), reason.reason);
  ApiError error{.http_status = rule.http_status,
                 .type = rule.type,
                 .code = rule.api_code,
                 .message = std::string(status.message())};
  if (error.code.empty()) {
    error.code = absl::AsciiStrToLower(
        reason.reason.empty() ? absl::StatusCodeToString(status.code()) : reason.reason);
  }
  const auto param = reason.metadata.find("param");
  if (param != reason.metadata.end()) error.param = param->second;
  if (origin == ErrorOrigin::kWorker) {
    if (status.code() == absl::StatusCode::kUnauthenticated) {
      return {
          .http_status = 502,
          .type = kServer,
          .code = "worker_refuses_gateway",
          .message = "the worker does not accept the gateway's API key (--worker-api-key-file)"};
    }
    if (reason.reason.empty() && status.code() == absl::StatusCode::kUnavailable) {
      error.message = "the worker does not answer; it may be starting";
      error.code = "worker_unavailable";
    }
  }
  if (const auto delay = common::RetryDelayOf(status)) {
    const double seconds = absl::ToDoubleSeconds(absl::Ceil(*delay, absl::Seconds(1)));
    error.retry_after_seconds =
        static_cast<int>(std::clamp(seconds, 1.0, static_cast<double>(kRetrySecondsMax)));
  } else if (error.http_status == 503 || error.http_status == 429) {
    error.retry_after_seconds = 1;
  }
  return error;
}

}  // namespace

ApiError ToApiError(const absl::Status& status, ErrorOrigin origin, ErrorForm form) {
  ApiError error = ToOpenAiError(status, origin);
  if (form == ErrorForm::kAnthropic) ToAnthropic(common::ReasonOf(status), &error);
  return error;
}

std::string ApiError::ToJson() const {
  if (form == ErrorForm::kAnthropic) {
    return absl::StrCat(R"({"type":"error","error":{"type":)", JsonString(type), R"(,"message":)",
                        JsonString(message), "}}");
  }
  return absl::StrCat(R"({"error":{"message":)", JsonString(message), R"(,"type":)",
                      JsonString(type), R"(,"param":)", param.empty() ? "null" : JsonString(param),
                      R"(,"code":)", JsonString(code), "}}");
}

}  // namespace retroinfer::gateway
