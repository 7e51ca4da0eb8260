// Errors as OpenAI's clients know them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace retroinfer::gateway {

struct ApiError {
  int http_status = 500;
  std::string type;                        // "invalid_request_error", "server_error", ...
  std::string code;                        // lower_snake_case
  std::string message;                     // for people
  std::string param;                       // the parameter that is wrong; empty: none in particular
  std::optional<int> retry_after_seconds;  // the same request may be sent again then

  // {"error": {"message", "type", "param", "code"}}
  std::string ToJson() const;
};

// Where a status is from: the worker's UNAUTHENTICATED is the gateway's fault, not the client's.
enum class ErrorOrigin { kGateway, kWorker };

// The one table from status and reason to HTTP.
//
// REQUIRES: !status.ok().
ApiError ToApiError(const absl::Status& status, ErrorOrigin origin);

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
