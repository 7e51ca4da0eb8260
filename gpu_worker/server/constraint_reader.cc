#include "gpu_worker/server/constraint_reader.h"

#include <string>
#include <string_view>

#include "common/status/error_reason.h"
#include "common/status/status_macros.h"
#include "text/constraint/constraint_spec.h"

namespace retroinfer {
namespace {

namespace v1 = generation::v1;

absl::Status Invalid(std::string_view reason, const std::string& message) {
  return common::WithReason(absl::InvalidArgumentError(message), reason);
}

absl::StatusOr<constraint::ConstraintSpec> SpecOf(const v1::Constraint& constraint) {
  using Form = constraint::ConstraintSpec::Form;
  constraint::ConstraintSpec spec;
  switch (constraint.form_case()) {
    case v1::Constraint::kJsonSchema:
      spec = {.form = Form::kJsonSchema, .text = constraint.json_schema()};
      break;
    case v1::Constraint::kRegex:
      spec = {.form = Form::kRegex, .text = constraint.regex()};
      break;
    case v1::Constraint::kChoices:
      spec.form = Form::kChoices;
      spec.choices.assign(constraint.choices().texts().begin(), constraint.choices().texts().end());
      break;
    case v1::Constraint::kGrammar:
      spec = {.form = Form::kGrammar, .text = constraint.grammar()};
      break;
    case v1::Constraint::FORM_NOT_SET:
      return Invalid("INVALID_CONSTRAINT",
                     "the constraint has no form: set json_schema, regex, choices or grammar");
  }
  if (constraint.has_thoughts()) {
    spec.thoughts = constraint::Thoughts{.open = constraint.thoughts().open(),
                                         .close = constraint.thoughts().close()};
  }
  return spec;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const constraint::Constraint>> ReadConstraint(
    const v1::GenerateRequest& request, const SamplingParams& sampling, const ServedModel& model) {
  if (!request.has_constraint()) return nullptr;
  if (model.constraints == nullptr) {
    return Invalid("INVALID_CONSTRAINT", "this server's model takes no constraint");
  }
  if (sampling.ignore_eos) {
    return Invalid("INVALID_SAMPLING",
                   "ignore_eos and a constraint exclude each other: the answer ends where the "
                   "constraint is met");
  }
  if (sampling.max_tokens == 0) {
    return Invalid("INVALID_SAMPLING", "max_tokens is 0: there is no answer to constrain");
  }
  ASSIGN_OR_RETURN(const constraint::ConstraintSpec spec, SpecOf(request.constraint()));
  return model.constraints->Compile(spec);
}

}  // namespace retroinfer
