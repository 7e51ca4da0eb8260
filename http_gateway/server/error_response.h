// The HTTP response that tells of an error.
#pragma once

#include "http_gateway/api/api_error.h"
#include "http_gateway/http/http_message.h"

namespace retroinfer::gateway {

// `headers` are those of every answer; Retry-After and WWW-Authenticate come on top where they
// belong.
//
// REQUIRES: !status.ok().
HttpResponse ErrorResponse(const absl::Status& status, ErrorOrigin origin, HttpHeaders headers = {},
                           ErrorForm form = ErrorForm::kOpenAi);

// UNAVAILABLE, DRAINING, with a retry: what the worker says of new work while it drains.
absl::Status DrainingError();

}  // namespace retroinfer::gateway
