// What completions and chat have in common: how tokens are chosen, and what this server adds.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "http_gateway/json/fields.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::gateway {

// Of one HTTP request, whatever it asks for.
struct RequestOptions {
  std::string model;    // empty: the one that is served
  std::string context;  // names what the request is about, for balancers; empty: its prompt does
  bool stream = false;
  bool include_usage = false;    // a last chunk with the counts
  bool return_progress = false;  // chunks while the prompt is read
  std::string constraint_param;  // the field that asked for the call's constraint; empty: none
};

// Reads the fields into `options` and `request` (sampling, attention, cache salt, priority,
// timeout). max_tokens, logprobs and the prompt are not among them.
//
// Returns: INVALID_ARGUMENT with the parameter.
absl::Status ReadCommonFields(Fields& fields, RequestOptions* options,
                              generation::v1::GenerateRequest* request);

// What this server adds to each request: policy, cache salt and tenant, context, priority, timeout,
// return_progress. For requests that are no generation; ReadCommonFields() has it, too.
absl::Status ReadExtensions(Fields& fields, RequestOptions* options,
                            generation::v1::GenerateRequest* request);

// Sets max_tokens from the fields `names`, which must not contradict each other nor be below
// `least`.
absl::Status ReadMaxTokens(Fields& fields, std::initializer_list<const char*> names,
                           generation::v1::SamplingOptions* sampling, int64_t least = 1);

}  // namespace retroinfer::gateway
