#include "http_gateway/server/error_response.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace retroinfer::gateway {

HttpResponse ErrorResponse(const absl::Status& status, ErrorOrigin origin, HttpHeaders headers) {
  const ApiError error = ToApiError(status, origin);
  HttpResponse response{
      .status = error.http_status, .headers = std::move(headers), .body = error.ToJson()};
  if (error.retry_after_seconds.has_value()) {
    response.headers.emplace_back("Retry-After", absl::StrCat(*error.retry_after_seconds));
  }
  if (error.http_status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace retroinfer::gateway
