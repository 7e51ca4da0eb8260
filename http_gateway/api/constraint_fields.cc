#include "http_gateway/api/constraint_fields.h"

#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer::gateway {

namespace v1 = generation::v1;

namespace {

constexpr size_t kChoicesMax = 1024;  // as Choices has it
constexpr char kAnyObject[] = R"({"type":"object"})";

bool IsSet(const v1::Constraint& constraint) {
  return constraint.form_case() != v1::Constraint::FORM_NOT_SET;
}

// A schema is an object, or the text of one.
absl::Status SetSchema(const Json& schema, const std::string& path, v1::Constraint* constraint) {
  if (schema.is_object()) {
    constraint->set_json_schema(schema.dump());
    return absl::OkStatus();
  }
  if (!schema.is_string()) {
    return ParamError(path, absl::StrCat(path, " must be a JSON Schema: an object, or its text"),
                      "INVALID_TYPE");
  }
  const absl::StatusOr<Json> parsed = ParseStrictJson(schema.get_ref<const std::string&>());
  if (!parsed.ok() || !parsed->is_object()) {
    return ParamError(path, absl::StrCat(path, " is no text of a JSON object: ",
                                         std::string(parsed.status().message())));
  }
  constraint->set_json_schema(parsed->dump());
  return absl::OkStatus();
}

absl::Status SetText(const Json& text, const std::string& path, v1::Constraint* constraint,
                     void (*set)(std::string, v1::Constraint*)) {
  if (!text.is_string()) {
    return ParamError(path, absl::StrCat(path, " must be a string"), "INVALID_TYPE");
  }
  set(text.get<std::string>(), constraint);
  return absl::OkStatus();
}

absl::Status SetChoices(const Json& choices, const std::string& path, v1::Constraint* constraint) {
  if (!choices.is_array() || choices.empty() || choices.size() > kChoicesMax) {
    return ParamError(path, absl::StrCat(path, " must be a list of 1 to ", kChoicesMax, " strings"),
                      choices.is_array() ? "INVALID_VALUE" : "INVALID_TYPE");
  }
  for (const Json& choice : choices) {
    if (!choice.is_string() || choice.get_ref<const std::string&>().empty()) {
      return ParamError(path, absl::StrCat(path, " must hold strings, none empty"));
    }
    constraint->mutable_choices()->add_texts(choice.get<std::string>());
  }
  return absl::OkStatus();
}

// What the fields and the members of structured_outputs have in common. `kind`: json, json_object,
// regex, choice or grammar.
absl::Status SetForm(std::string_view kind, const Json& value, const std::string& path,
                     v1::Constraint* constraint) {
  if (kind == "json") return SetSchema(value, path, constraint);
  if (kind == "choice") return SetChoices(value, path, constraint);
  if (kind == "regex") {
    return SetText(value, path, constraint,
                   [](std::string text, v1::Constraint* to) { to->set_regex(std::move(text)); });
  }
  if (kind == "grammar") {
    return SetText(value, path, constraint,
                   [](std::string text, v1::Constraint* to) { to->set_grammar(std::move(text)); });
  }
  if (!value.is_boolean()) {
    return ParamError(path, absl::StrCat(path, " must be true or false"), "INVALID_TYPE");
  }
  if (value.get<bool>()) constraint->set_json_schema(kAnyObject);
  return absl::OkStatus();
}

// Takes what `field` asks for into `constraint`, which nothing else may have set.
absl::Status Take(const std::string& field, const v1::Constraint& read, std::string* asked,
                  v1::Constraint* constraint) {
  if (!IsSet(read)) return absl::OkStatus();
  if (!asked->empty()) {
    return ParamError(field, absl::StrCat(field, " and ", *asked,
                                          " both say what the answer must look like: send one"));
  }
  *asked = field;
  *constraint = read;
  return absl::OkStatus();
}

absl::Status ReadStructuredOutputs(const Json& value, const Fields& owner,
                                   v1::Constraint* constraint) {
  const std::string path = "structured_outputs";
  ASSIGN_OR_RETURN(Fields inner, owner.Inner(value, path));
  std::string asked;
  for (const char* const kind : {"json", "json_object", "regex", "choice", "grammar"}) {
    const Json* const given = inner.Find(kind);
    if (given == nullptr) continue;
    v1::Constraint read;
    RETURN_IF_ERROR(SetForm(kind, *given, inner.PathOf(kind), &read));
    RETURN_IF_ERROR(Take(inner.PathOf(kind), read, &asked, constraint));
  }
  RETURN_IF_ERROR(inner.NotOffered("structural_tag", "use grammar"));
  for (const char* const name : {"disable_any_whitespace", "disable_additional_properties",
                                 "whitespace_pattern", "disable_fallback"}) {
    RETURN_IF_ERROR(inner.Hint(name, "white space in JSON is the model's"));
  }
  return inner.CheckUnknown();
}

}  // namespace

absl::Status ReadResponseFormat(const Json& format, const std::string& path, const Fields& owner,
                                v1::Constraint* constraint) {
  ASSIGN_OR_RETURN(Fields fields, owner.Inner(format, path));
  std::optional<std::string> type;
  RETURN_IF_ERROR(fields.Read("type", &type));
  if (type == "text") return absl::OkStatus();
  if (type == "json_object") {
    const Json* const schema = fields.Find("schema");
    constraint->set_json_schema(kAnyObject);
    return schema == nullptr ? absl::OkStatus()
                             : SetSchema(*schema, fields.PathOf("schema"), constraint);
  }
  if (type != "json_schema") {
    return ParamError(absl::StrCat(path, ".type"),
                      absl::StrCat(path,
                                   ".type must be \"text\", \"json_object\" or "
                                   "\"json_schema\""));
  }
  const Json* const within = fields.Find("json_schema");
  ASSIGN_OR_RETURN(Fields members, within == nullptr
                                       ? owner.Inner(format, path)
                                       : owner.Inner(*within, fields.PathOf("json_schema")));
  const Json* const schema = members.Find("schema");
  if (schema == nullptr) {
    const std::string missing = members.PathOf("schema");
    return ParamError(missing, absl::StrCat(missing, " is missing"), "MISSING_PARAMETER");
  }
  // It is kept by force whatever `strict` says; its name is for those that read the request.
  for (const char* const name : {"name", "strict", "description", "type"}) members.Ignore(name);
  RETURN_IF_ERROR(SetSchema(*schema, members.PathOf("schema"), constraint));
  return members.CheckUnknown();
}

absl::StatusOr<std::string> ReadConstraint(Fields& fields, v1::GenerateRequest* request) {
  v1::Constraint constraint;
  std::string asked;
  if (const Json* const format = fields.Find("response_format")) {
    RETURN_IF_ERROR(ReadResponseFormat(*format, "response_format", fields, &constraint));
    if (IsSet(constraint)) asked = "response_format";
  }
  for (const char* const kind : {"json", "regex", "choice", "grammar"}) {
    const std::string name = absl::StrCat("guided_", kind);
    const Json* const value = fields.Find(name);
    if (value == nullptr) continue;
    v1::Constraint read;
    RETURN_IF_ERROR(SetForm(kind, *value, name, &read));
    RETURN_IF_ERROR(Take(name, read, &asked, &constraint));
  }
  if (const Json* const value = fields.Find("structured_outputs")) {
    v1::Constraint read;
    RETURN_IF_ERROR(ReadStructuredOutputs(*value, fields, &read));
    RETURN_IF_ERROR(Take("structured_outputs", read, &asked, &constraint));
  }
  for (const char* const name : {"guided_decoding_backend", "guided_whitespace_pattern"}) {
    RETURN_IF_ERROR(fields.Hint(name, "this server has one way, and white space is the model's"));
  }
  if (!asked.empty()) *request->mutable_constraint() = constraint;
  return asked;
}

}  // namespace retroinfer::gateway
