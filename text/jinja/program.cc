#include "text/jinja/program.h"

#include <memory>

#include "common/status/status_macros.h"
#include "text/jinja/errors.h"
#include "text/jinja/filters.h"
#include "text/jinja/parser.h"
#include "text/jinja/predicates.h"
#include "text/jinja/renderer.h"
#include "text/jinja/scope.h"

namespace retroinfer::jinja {
namespace {

constexpr size_t kGapsMax = 20;

// Collects what a template names and nobody knows.
class GapFinder {
 public:
  explicit GapFinder(std::vector<std::string>& gaps) : gaps_(gaps) {}

  void Visit(const Statements& statements) {
    for (const auto& statement : statements) Visit(*statement);
  }

 private:
  void Visit(const Statement& statement) {
    Visit(statement.expression);
    Visit(statement.condition);
    for (const ExpressionPtr& item : statement.expressions) Visit(item);
    for (const Parameter& parameter : statement.parameters) Visit(parameter.fallback);
    for (const Branch& branch : statement.branches) {
      Visit(branch.condition);
      Visit(branch.body);
    }
    Visit(statement.body);
    Visit(statement.otherwise);
  }

  void Visit(const ExpressionPtr& expression) {
    if (expression == nullptr) return;
    if (expression->kind == Expression::Kind::kFilter && FindFilter(expression->name) == nullptr) {
      Note("filter", *expression);
    }
    if (expression->kind == Expression::Kind::kTest && FindPredicate(expression->name) == nullptr) {
      Note("test", *expression);
    }
    for (const ExpressionPtr& operand : expression->operands) Visit(operand);
    for (const ExpressionPtr& item : expression->arguments.positional) Visit(item);
    for (const auto& [name, item] : expression->arguments.named) Visit(item);
    Visit(expression->arguments.sequence);
    Visit(expression->arguments.mapping);
  }

  void Note(const std::string& what, const Expression& expression) {
    if (gaps_.size() == kGapsMax) return;
    gaps_.push_back(Concat({"line ", std::to_string(expression.line), ": the ", what, " '",
                            expression.name.substr(0, 100), "'"}));
  }

  std::vector<std::string>& gaps_;
};

}  // namespace

absl::StatusOr<Program> Program::Parse(std::string_view source) {
  Program program;
  ASSIGN_OR_RETURN(program.statements_, ParseTemplate(source));
  GapFinder(program.gaps_).Visit(program.statements_);
  return program;
}

absl::StatusOr<Text> Program::Render(Workspace& workspace, const Variables& variables) const {
  const auto scope = std::make_shared<Scope>(nullptr);
  for (const auto& [name, value] : variables) scope->Set(name, value);
  Text out;
  RETURN_IF_ERROR(Renderer(workspace, scope).Run(statements_, out));
  return out;
}

}  // namespace retroinfer::jinja
