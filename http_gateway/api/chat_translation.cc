#include "http_gateway/api/chat_translation.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"
#include "http_gateway/api/constraint_fields.h"
#include "http_gateway/api/tool_fields.h"

namespace retroinfer::gateway {
namespace {

absl::Status Translate(const absl::Status& status, const NamePairs& names) {
  if (status.ok()) return status;
  const common::ErrorReason reason = common::ReasonOf(status);
  const auto param = reason.metadata.find("param");
  return ParamError(param == reason.metadata.end() ? "" : absl::StrReplaceAll(param->second, names),
                    absl::StrReplaceAll(std::string(status.message()), names), reason.reason);
}

absl::Status Read(const Json& chat, IgnoredNames* ignored, ChatRequest* request) {
  ASSIGN_OR_RETURN(Fields fields, Fields::Of(chat, "", ignored));
  if (const Json* const tools = fields.Find("tools"); tools != nullptr && !tools->empty()) {
    request->call.mutable_messages()->set_tools(tools->dump());
  }
  RETURN_IF_ERROR(ReadTools(fields, request->call.mutable_messages(), &request->tools));
  return fields.CheckUnknown();
}

}  // namespace

absl::Status ReadToolsOfChat(const Json& chat, const NamePairs& names, IgnoredNames* ignored,
                             ChatRequest* request) {
  return Translate(Read(chat, ignored, request), names);
}

absl::Status ReadAnswerFormat(const Json* format, const std::string& path, Fields& fields,
                              ChatRequest* request) {
  ASSIGN_OR_RETURN(request->options.constraint_param, ReadConstraint(fields, &request->call));
  if (format == nullptr) return absl::OkStatus();
  generation::v1::Constraint constraint;
  RETURN_IF_ERROR(ReadResponseFormat(*format, path, fields, &constraint));
  if (constraint.form_case() == generation::v1::Constraint::FORM_NOT_SET) return absl::OkStatus();
  if (!request->options.constraint_param.empty()) {
    return ParamError(path, absl::StrCat(path, " and ", request->options.constraint_param,
                                         " exclude each other"));
  }
  request->options.constraint_param = path;
  *request->call.mutable_constraint() = std::move(constraint);
  return absl::OkStatus();
}

Json ChatFunction(const Json& name, const Json& description, const Json& parameters,
                  const Json& strict) {
  Json function = {{"name", name}};
  if (!description.is_null()) function["description"] = description;
  if (!parameters.is_null()) function["parameters"] = parameters;
  if (!strict.is_null()) function["strict"] = strict;
  return {{"type", "function"}, {"function", std::move(function)}};
}

}  // namespace retroinfer::gateway
