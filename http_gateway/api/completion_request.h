// The body of POST /v1/completions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "http_gateway/api/sampling_fields.h"

namespace retroinfer::gateway {

struct CompletionRequest {
  static constexpr size_t kPromptsMax = 128;

  RequestOptions options;
  // One for each prompt; they differ in the prompt alone.
  std::vector<generation::v1::GenerateRequest> calls;
  bool echo = false;  // the prompt comes before the answer
};

// Returns: INVALID_ARGUMENT with the parameter; what is not offered (suffix, best_of) is refused by
//          name.
absl::StatusOr<CompletionRequest> ReadCompletionRequest(const Json& body,
                                                        IgnoredNames* ignored = nullptr);

}  // namespace retroinfer::gateway
