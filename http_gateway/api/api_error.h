// Errors as OpenAI's clients know them, and as Anthropic's do.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace retroinfer::gateway {

// Whose clients an error is for.
enum class ErrorForm {
  kOpenAi,     // {"error": {"message", "type", "param", "code"}}
  kAnthropic,  // {"type": "error", "error": {"type", "message"}}
};

// Anthropic's below /v1/messages, OpenAI's elsewhere.
ErrorForm ErrorFormOf(std::string_view path);

struct ApiError {
  int http_status = 500;
  std::string type;                        // "invalid_request_error", "server_error", ...
  std::string code;                        // lower_snake_case
  std::string message;                     // for people
  std::string param;                       // the parameter that is wrong; empty: none in particular
  std::optional<int> retry_after_seconds;  // the same request may be sent again then
  ErrorForm form = ErrorForm::kOpenAi;

  std::string ToJson() const;
};

// Where a status is from: the worker's UNAUTHENTICATED is the gateway's fault, not the client's.
enum class ErrorOrigin { kGateway, kWorker };

// The one table from status and reason to HTTP. In Anthropic's form types are the ones that go
// with the HTTP status there, overload is status 529, and a context that is too long is told in the
// words that Anthropic's clients look for.
//
// REQUIRES: !status.ok().
ApiError ToApiError(const absl::Status& status, ErrorOrigin origin,
                    ErrorForm form = ErrorForm::kOpenAi);

// A line of the table, for docs and tests.
struct ErrorRule {
  absl::StatusCode code;
  const char* reason;  // empty: any other
  int http_status;
  const char* type;
  const char* api_code;  // empty: the reason in lower case
};
const std::vector<ErrorRule>& ErrorRules();

}  // namespace retroinfer::gateway
