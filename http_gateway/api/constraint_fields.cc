#include "http_gateway/api/constraint_fields.h"

#include "common/status/status_macros.h"

namespace retroinfer::gateway {

absl::Status ReadConstraint(Fields& fields) {
  RETURN_IF_ERROR(fields.NotOffered("response_format",
                                    "answers are not forced into JSON; \"text\" is what there is",
                                    Json::object({{"type", "text"}})));
  for (const char* const name :
       {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"}) {
    RETURN_IF_ERROR(fields.NotOffered(name, "this server has no such thing"));
  }
  return absl::OkStatus();
}

}  // namespace retroinfer::gateway
