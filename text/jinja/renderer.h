// Runs the statements of a template.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/syntax.h"

namespace retroinfer::jinja {

// Threads: one.
class Renderer {
 public:
  Renderer(Workspace& workspace, std::shared_ptr<Scope> scope)
      : evaluator_(workspace, std::move(scope)) {}

  // Appends what `statements` write to `out`; errors name the line.
  absl::Status Run(const Statements& statements, Text& out);

  // Runs the body of a macro with its arguments, in a scope inside `definition`.
  absl::StatusOr<Value> RunMacro(const Statement& macro, const std::shared_ptr<Scope>& definition,
                                 const Arguments& arguments);

 private:
  enum class Flow { kNext, kBreak, kContinue };  // what comes after a statement

  absl::StatusOr<Flow> RunBody(const Statements& statements, Text& out);
  absl::StatusOr<Flow> RunStatement(const Statement& statement, Text& out);
  absl::StatusOr<Flow> RunIf(const Statement& statement, Text& out);
  absl::StatusOr<Flow> RunFor(const Statement& statement, Text& out);
  absl::StatusOr<Values> LoopItems(const Statement& statement);
  absl::Status RunLoop(const Statement& statement, Values items, Text& out);
  absl::Status RunSetBlock(const Statement& statement);
  absl::Status RunCall(const Statement& statement, Text& out);
  absl::StatusOr<Flow> RunFilter(const Statement& statement, Text& out);
  absl::StatusOr<Flow> RunWith(const Statement& statement, Text& out);
  absl::StatusOr<Flow> RunInScope(const Statements& statements, std::shared_ptr<Scope> scope,
                                  Text& out);
  absl::Status Write(const Value& value, Text& out);
  absl::Status CheckOutput(const Text& out);
  Value MakeMacro(const Statement& statement);

  Evaluator evaluator_;
};

}  // namespace retroinfer::jinja
