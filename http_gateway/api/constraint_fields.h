// The fields of a request that say what its answer must look like.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "http_gateway/json/fields.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::gateway {

// Reads `response_format`, and the names of other servers: `guided_json`, `guided_regex`,
// `guided_choice`, `guided_grammar`, and `structured_outputs` with json, json_object, regex, choice
// or grammar. Sets the constraint of `request` where one of them asks for anything. Schemas are not
// looked into: the worker says what is wrong with them.
//
// Returns: the name of the field that asked, "" for none; INVALID_ARGUMENT with the parameter, also
//          for two that ask.
absl::StatusOr<std::string> ReadConstraint(Fields& fields,
                                           generation::v1::GenerateRequest* request);

// Reads a `response_format`, or what other APIs call so: {"type": "text"}, {"type": "json_object"},
// and {"type": "json_schema"} with its members beside or within "json_schema". Leaves `constraint`
// as it is for text.
//
// Returns: INVALID_ARGUMENT with a parameter that begins with `path`.
absl::Status ReadResponseFormat(const Json& format, const std::string& path, const Fields& owner,
                                generation::v1::Constraint* constraint);

}  // namespace retroinfer::gateway
