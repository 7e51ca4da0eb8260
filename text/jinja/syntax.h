// The tree of a template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/operators.h"
#include "text/jinja/value.h"

namespace retroinfer::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr sequence;  // `*x`; nullptr: none
  ExpressionPtr mapping;   // `**x`
};

enum class Comparison {
  kEqual,
  kNotEqual,
  kLess,
  kLessOrEqual,
  kGreater,
  kGreaterOrEqual,
  kIn,
  kNotIn
};

struct Expression {
  enum class Kind {
    kLiteral,
    kName,
    kTuple,
    kList,
    kDict,       // operands: key, value, key, value, ...
    kAttribute,  // operands: object
    kItem,       // operands: object, key
    kSlice,      // operands: object, start, stop, step; nullptr where left out
    kCall,       // operands: function
    kFilter,     // operands: input; nullptr: the text of a block
    kTest,       // operands: value
    kNegate,
    kPlus,
    kBinary,
    kConcat,  // `~`
    kAnd,
    kOr,
    kNot,
    kCompare,      // operands: first, and one for each of `comparisons`
    kConditional,  // operands: condition, if true, if false (nullptr: undefined)
  };

  Kind kind;
  int line = 0;
  int height = 1;    // of the tree under it
  std::string name;  // of names, attributes, filters and tests
  Value literal;
  Operator op = Operator::kAdd;  // of a kBinary
  std::vector<Comparison> comparisons;
  std::vector<ExpressionPtr> operands;
  CallArguments arguments;  // of calls, filters and tests
};

struct Statement;
using Statements = std::vector<std::unique_ptr<Statement>>;

// What is assigned to: names, an attribute of a namespace, or several of these.
struct Target {
  std::string name;       // empty: the parts of a sequence
  std::string attribute;  // empty: the name itself
  std::vector<Target> parts;
};

struct Parameter {
  std::string name;
  ExpressionPtr fallback;  // nullptr: none
};

struct Branch {
  ExpressionPtr condition;  // nullptr: `else`
  Statements body;
};

struct Statement {
  enum class Kind {
    kData,      // text of the template
    kOutput,    // expression
    kIf,        // branches
    kFor,       // target, expression, condition, body, otherwise
    kSet,       // target, expression
    kSetBlock,  // target, body, expression (a chain of filters; nullptr: none)
    kMacro,     // name, parameters, body
    kCall,      // expression (a call), parameters, body
    kFilter,    // expression (a chain of filters), body
    kWith,      // targets, expressions, body
    kScope,     // body in a scope of its own: {% generation %}
    kBreak,
    kContinue,
  };

  Kind kind;
  int line = 0;
  std::string name;
  Text data;
  ExpressionPtr expression;
  ExpressionPtr condition;
  Target target;
  std::vector<Target> targets;
  std::vector<ExpressionPtr> expressions;
  std::vector<Parameter> parameters;
  std::vector<Branch> branches;
  Statements body;
  Statements otherwise;
};

}  // namespace retroinfer::jinja
