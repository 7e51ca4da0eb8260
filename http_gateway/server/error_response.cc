#include "http_gateway/server/error_response.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/status/error_reason.h"

namespace retroinfer::gateway {

HttpResponse ErrorResponse(const absl::Status& status, ErrorOrigin origin, HttpHeaders headers,
                           ErrorForm form) {
  const ApiError error = ToApiError(status, origin, form);
  HttpResponse response{
      .status = error.http_status, .headers = std::move(headers), .body = error.ToJson()};
  if (error.retry_after_seconds.has_value()) {
    response.headers.emplace_back("Retry-After", absl::StrCat(*error.retry_after_seconds));
  }
  if (error.http_status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

absl::Status DrainingError() {
  return common::WithRetry(
      common::WithReason(
          absl::UnavailableError("the server is shutting down; try again later or elsewhere"),
          "DRAINING"),
      absl::Seconds(1));
}

}  // namespace retroinfer::gateway
