#include "text/jinja/renderer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/status/status_macros.h"
#include "text/jinja/access.h"
#include "text/jinja/errors.h"
#include "text/jinja/loop.h"
#include "text/jinja/operators.h"
#include "text/jinja/printing.h"

namespace retroinfer::jinja {
namespace {

using Kind = Statement::Kind;

// A macro, or the body of a call block. It must not outlive the scope that it was defined in: one
// that held it would keep itself alive.
class Macro : public Object {
 public:
  Macro(Renderer& renderer, const Statement& statement, std::weak_ptr<Scope> scope)
      : renderer_(renderer), statement_(statement), scope_(std::move(scope)) {}

  std::string_view type_name() const override { return "Macro"; }
  bool is_callable() const override { return true; }
  absl::StatusOr<Value> Call(Workspace&, const Arguments& arguments) override {
    const std::shared_ptr<Scope> scope = scope_.lock();
    if (scope == nullptr) {
      return Unsupported({"a macro that is called outside of the block that defines it"});
    }
    return renderer_.RunMacro(statement_, scope, arguments);
  }
  absl::StatusOr<std::optional<Value>> Attribute(Workspace& workspace,
                                                 std::string_view name) override {
    if (name != "name") return std::nullopt;
    return workspace.String(Text(statement_.name, true));
  }

 private:
  Renderer& renderer_;
  const Statement& statement_;
  const std::weak_ptr<Scope> scope_;
};

// Finds the value of each parameter; nullptr where none is given. `caller` is no parameter.
absl::Status BindMacro(const Statement& macro, const Arguments& arguments,
                       std::vector<const Value*>& values, const Value*& caller) {
  const std::vector<Parameter>& parameters = macro.parameters;
  values.assign(parameters.size(), nullptr);
  const std::string name = macro.name.empty() ? "caller" : macro.name;
  if (arguments.positional.size() > parameters.size()) {
    return Error({"macro '", name, "' takes not more than ", std::to_string(parameters.size()),
                  " argument(s)"});
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values[i] = &arguments.positional[i];
  for (const auto& [key, value] : arguments.named) {
    const auto found =
        std::find_if(parameters.begin(), parameters.end(),
                     [&key = key](const Parameter& item) { return item.name == key; });
    if (found != parameters.end()) {
      const Value*& place = values[static_cast<size_t>(found - parameters.begin())];
      if (place != nullptr) {
        return Error({"macro '", name, "' got the argument '", key, "' twice"});
      }
      place = &value;
    } else if (key == "caller") {
      caller = &value;
    } else {
      return Error({"macro '", name, "' takes no keyword argument '", key, "'"});
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Renderer::Run(const Statements& statements, Text& out) {
  return RunBody(statements, out).status();
}

absl::StatusOr<Renderer::Flow> Renderer::RunBody(const Statements& statements, Text& out) {
  for (const auto& statement : statements) {
    const Evaluator::Level level(evaluator_);
    absl::Status status = level.Check();
    if (status.ok()) status = evaluator_.workspace().Spend(1);
    if (!status.ok()) return Locate(statement->line, status);
    const absl::StatusOr<Flow> flow = RunStatement(*statement, out);
    if (!flow.ok()) return Locate(statement->line, flow.status());
    if (*flow != Flow::kNext) return *flow;
  }
  return Flow::kNext;
}

absl::StatusOr<Renderer::Flow> Renderer::RunStatement(const Statement& statement, Text& out) {
  switch (statement.kind) {
    case Kind::kData:
      out.Append(statement.data);
      RETURN_IF_ERROR(CheckOutput(out));
      return Flow::kNext;
    case Kind::kOutput: {
      ASSIGN_OR_RETURN(const Value value, evaluator_.Evaluate(*statement.expression));
      RETURN_IF_ERROR(Write(value, out));
      return Flow::kNext;
    }
    case Kind::kIf:
      return RunIf(statement, out);
    case Kind::kFor:
      return RunFor(statement, out);
    case Kind::kSet: {
      ASSIGN_OR_RETURN(const Value value, evaluator_.Evaluate(*statement.expression));
      RETURN_IF_ERROR(evaluator_.Assign(statement.target, value));
      return Flow::kNext;
    }
    case Kind::kSetBlock:
      RETURN_IF_ERROR(RunSetBlock(statement));
      return Flow::kNext;
    case Kind::kMacro:
      evaluator_.scope()->Set(statement.name, MakeMacro(statement));
      return Flow::kNext;
    case Kind::kCall:
      RETURN_IF_ERROR(RunCall(statement, out));
      return Flow::kNext;
    case Kind::kFilter:
      return RunFilter(statement, out);
    case Kind::kWith:
      return RunWith(statement, out);
    case Kind::kScope:
      return RunInScope(statement.body, std::make_shared<Scope>(evaluator_.scope()), out);
    case Kind::kBreak:
      return Flow::kBreak;
    case Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

absl::StatusOr<Renderer::Flow> Renderer::RunInScope(const Statements& statements,
                                                    std::shared_ptr<Scope> scope, Text& out) {
  const std::shared_ptr<Scope> outer = evaluator_.scope();
  evaluator_.set_scope(std::move(scope));
  const absl::StatusOr<Flow> flow = RunBody(statements, out);
  evaluator_.set_scope(outer);
  return flow;
}

absl::StatusOr<Renderer::Flow> Renderer::RunIf(const Statement& statement, Text& out) {
  for (const Branch& branch : statement.branches) {
    if (branch.condition != nullptr) {
      ASSIGN_OR_RETURN(const bool holds, evaluator_.Test(*branch.condition));
      if (!holds) continue;
    }
    return RunBody(branch.body, out);
  }
  return Flow::kNext;
}

absl::StatusOr<Values> Renderer::LoopItems(const Statement& statement) {
  ASSIGN_OR_RETURN(const Value sequence, evaluator_.Evaluate(*statement.expression));
  ASSIGN_OR_RETURN(const Items items, Iterate(evaluator_.workspace(), sequence));
  RETURN_IF_ERROR(evaluator_.workspace().Expect(items->size() * sizeof(Value)));
  if (statement.condition == nullptr) return *items;
  const std::shared_ptr<Scope> outer = evaluator_.scope();
  Values kept;
  absl::Status status;
  for (size_t i = 0; i < items->size() && status.ok(); ++i) {
    evaluator_.set_scope(std::make_shared<Scope>(outer));
    status = evaluator_.Assign(statement.target, (*items)[i]);
    if (!status.ok()) break;
    const absl::StatusOr<bool> holds = evaluator_.Test(*statement.condition);
    status = holds.status();
    if (holds.ok() && *holds) kept.push_back((*items)[i]);
  }
  evaluator_.set_scope(outer);
  RETURN_IF_ERROR(status);
  return kept;
}

absl::StatusOr<Renderer::Flow> Renderer::RunFor(const Statement& statement, Text& out) {
  ASSIGN_OR_RETURN(Values items, LoopItems(statement));
  if (items.empty()) {
    return RunInScope(statement.otherwise, std::make_shared<Scope>(evaluator_.scope()), out);
  }
  const std::shared_ptr<Scope> outer = evaluator_.scope();
  const absl::Status status = RunLoop(statement, std::move(items), out);
  evaluator_.set_scope(outer);
  RETURN_IF_ERROR(status);
  return Flow::kNext;
}

absl::Status Renderer::RunLoop(const Statement& statement, Values items, Text& out) {
  const std::shared_ptr<Scope> outer = evaluator_.scope();
  const auto loop = std::make_shared<Loop>(std::move(items));
  for (; !loop->is_done(); loop->Advance()) {
    evaluator_.set_scope(std::make_shared<Scope>(outer));
    RETURN_IF_ERROR(evaluator_.workspace().Spend(1));
    RETURN_IF_ERROR(evaluator_.Assign(statement.target, loop->item()));
    evaluator_.scope()->Set("loop", Value(std::shared_ptr<Object>(loop)));
    ASSIGN_OR_RETURN(const Flow flow, RunBody(statement.body, out));
    if (flow == Flow::kBreak) break;
  }
  return absl::OkStatus();
}

absl::Status Renderer::RunSetBlock(const Statement& statement) {
  Text text;
  RETURN_IF_ERROR(
      RunInScope(statement.body, std::make_shared<Scope>(evaluator_.scope()), text).status());
  ASSIGN_OR_RETURN(Value value, evaluator_.workspace().String(std::move(text)));
  if (statement.expression != nullptr) {
    ASSIGN_OR_RETURN(value, evaluator_.ApplyFilters(*statement.expression, std::move(value)));
  }
  return evaluator_.Assign(statement.target, value);
}

absl::Status Renderer::RunCall(const Statement& statement, Text& out) {
  ASSIGN_OR_RETURN(const Value value,
                   evaluator_.CallWith(*statement.expression, MakeMacro(statement)));
  return Write(value, out);
}

absl::StatusOr<Renderer::Flow> Renderer::RunFilter(const Statement& statement, Text& out) {
  Text text;
  ASSIGN_OR_RETURN(const Flow flow,
                   RunInScope(statement.body, std::make_shared<Scope>(evaluator_.scope()), text));
  ASSIGN_OR_RETURN(Value value, evaluator_.workspace().String(std::move(text)));
  ASSIGN_OR_RETURN(value, evaluator_.ApplyFilters(*statement.expression, std::move(value)));
  RETURN_IF_ERROR(Write(value, out));
  return flow;
}

absl::StatusOr<Renderer::Flow> Renderer::RunWith(const Statement& statement, Text& out) {
  auto scope = std::make_shared<Scope>(evaluator_.scope());
  for (size_t i = 0; i < statement.targets.size(); ++i) {
    ASSIGN_OR_RETURN(const Value value, evaluator_.Evaluate(*statement.expressions[i]));
    const std::shared_ptr<Scope> outer = evaluator_.scope();
    evaluator_.set_scope(scope);
    const absl::Status status = evaluator_.Assign(statement.targets[i], value);
    evaluator_.set_scope(outer);
    RETURN_IF_ERROR(status);
  }
  return RunInScope(statement.body, std::move(scope), out);
}

Value Renderer::MakeMacro(const Statement& statement) {
  return Value(
      std::shared_ptr<Object>(std::make_shared<Macro>(*this, statement, evaluator_.scope())));
}

absl::StatusOr<Value> Renderer::RunMacro(const Statement& macro,
                                         const std::shared_ptr<Scope>& definition,
                                         const Arguments& arguments) {
  std::vector<const Value*> values;
  const Value* caller = nullptr;
  RETURN_IF_ERROR(BindMacro(macro, arguments, values, caller));
  const std::shared_ptr<Scope> outer = evaluator_.scope();
  evaluator_.set_scope(std::make_shared<Scope>(definition));
  if (caller != nullptr) evaluator_.scope()->Set("caller", *caller);
  Text text;
  absl::Status status;
  for (size_t i = 0; i < values.size() && status.ok(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    absl::StatusOr<Value> value =
        Value::Missing({"parameter '", parameter.name, "' was not provided"});
    if (values[i] != nullptr) {
      value = *values[i];
    } else if (parameter.fallback != nullptr) {
      value = evaluator_.Evaluate(*parameter.fallback);
    }
    status = value.status();
    if (value.ok()) evaluator_.scope()->Set(parameter.name, *std::move(value));
  }
  if (status.ok()) status = Run(macro.body, text);
  evaluator_.set_scope(outer);
  RETURN_IF_ERROR(status);
  return evaluator_.workspace().String(std::move(text));
}

absl::Status Renderer::Write(const Value& value, Text& out) {
  ASSIGN_OR_RETURN(const Text text, Str(evaluator_.workspace(), value));
  RETURN_IF_ERROR(evaluator_.workspace().Spend(text.size() / 256));
  out.Append(text);
  return CheckOutput(out);
}

absl::Status Renderer::CheckOutput(const Text& out) {
  const size_t bytes_max = evaluator_.workspace().limits().output_bytes_max;
  if (out.size() <= bytes_max) return absl::OkStatus();
  return OverLimit(
      {"it writes more than the ", std::to_string(bytes_max), " bytes that a template may write"});
}

}  // namespace retroinfer::jinja
