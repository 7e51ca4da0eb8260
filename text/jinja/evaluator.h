// Computes the values of expressions.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "text/jinja/scope.h"
#include "text/jinja/syntax.h"
#include "text/jinja/workspace.h"

namespace retroinfer::jinja {

// Threads: one.
class Evaluator {
 public:
  Evaluator(Workspace& workspace, std::shared_ptr<Scope> scope)
      : workspace_(workspace), scope_(std::move(scope)) {}

  // Errors name the line of the innermost expression that failed.
  absl::StatusOr<Value> Evaluate(const Expression& expression);
  absl::StatusOr<bool> Test(const Expression& expression);
  // A chain of filters over the text of a block.
  absl::StatusOr<Value> ApplyFilters(const Expression& chain, Value input);
  // A call, with `caller` as one more argument by that name.
  absl::StatusOr<Value> CallWith(const Expression& call, Value caller);

  absl::Status Assign(const Target& target, const Value& value);

  Workspace& workspace() { return workspace_; }
  const std::shared_ptr<Scope>& scope() const { return scope_; }
  void set_scope(std::shared_ptr<Scope> scope) { scope_ = std::move(scope); }

  // Counts a level of evaluation while it lives.
  //
  // Returns: RESOURCE_EXHAUSTED at Limits::call_depth_max.
  class Level {
   public:
    explicit Level(Evaluator& evaluator) : evaluator_(evaluator) { ++evaluator_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ~Level() { --evaluator_.depth_; }
    absl::Status Check() const;

   private:
    Evaluator& evaluator_;
  };

 private:
  absl::StatusOr<Value> EvaluateUnlocated(const Expression& expression);
  absl::StatusOr<Value> LookUp(std::string_view name);
  absl::StatusOr<Value> MakeItems(const Expression& expression, Sequence::Kind kind);
  absl::StatusOr<Value> MakeDict(const Expression& expression);
  absl::StatusOr<Value> EvaluateItem(const Expression& expression);
  absl::StatusOr<Value> EvaluateSlice(const Expression& expression);
  absl::StatusOr<Value> EvaluateBinary(const Expression& expression);
  absl::StatusOr<Value> EvaluateSign(const Expression& expression);
  absl::StatusOr<Value> EvaluateLogic(const Expression& expression);
  absl::StatusOr<Value> EvaluateConcat(const Expression& expression);
  absl::StatusOr<Value> EvaluateComparison(const Expression& expression);
  absl::StatusOr<Value> EvaluateConditional(const Expression& expression);
  absl::StatusOr<Value> EvaluateFilter(const Expression& expression, const Value& input);
  absl::StatusOr<Value> EvaluateTest(const Expression& expression);
  absl::StatusOr<Arguments> EvaluateArguments(const CallArguments& arguments);
  absl::StatusOr<Value> EvaluateCall(const Expression& call, const Value* caller);

  Workspace& workspace_;
  std::shared_ptr<Scope> scope_;
  int depth_ = 0;
};

// `status` with the line before its message, unless it has one already.
absl::Status Locate(int line, const absl::Status& status);

}  // namespace retroinfer::jinja
