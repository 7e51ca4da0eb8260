#include "text/jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "common/status/status_macros.h"
#include "text/jinja/errors.h"
#include "text/jinja/expression_parser.h"
#include "text/jinja/lexer.h"
#include "text/jinja/token_stream.h"

namespace retroinfer::jinja {
namespace {

constexpr int kNestingMax = 50;  // of blocks

using Kind = Statement::Kind;
using StatementPtr = std::unique_ptr<Statement>;
using Result = absl::StatusOr<StatementPtr>;

StatementPtr Make(Kind kind, int line) {
  auto statement = std::make_unique<Statement>();
  statement->kind = kind;
  statement->line = line;
  return statement;
}

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : stream_(std::move(tokens)), expressions_(stream_) {}

  absl::StatusOr<Statements> Run() { return ParseBody({}); }

 private:
  // Parses up to a block whose first word is one of `ends`, and stops behind that word; up to the
  // end of the template if there are none.
  absl::StatusOr<Statements> ParseBody(std::initializer_list<std::string_view> ends) {
    if (++nesting_ > kNestingMax) {
      return AtLine(stream_.line(), OverLimit({"blocks are nested deeper than ",
                                               std::to_string(kNestingMax), " levels"}));
    }
    Statements body;
    while (!stream_.At(Token::Kind::kEnd)) {
      const int line = stream_.line();
      if (stream_.At(Token::Kind::kData)) {
        body.push_back(Make(Kind::kData, line));
        body.back()->data = Text(stream_.Take().text, true);
      } else if (stream_.At(Token::Kind::kOutputBegin)) {
        stream_.Take();
        body.push_back(Make(Kind::kOutput, line));
        ASSIGN_OR_RETURN(body.back()->expression, expressions_.ParseTuple(true, false));
        RETURN_IF_ERROR(stream_.Expect(Token::Kind::kOutputEnd, "'}}'"));
      } else {
        RETURN_IF_ERROR(stream_.Expect(Token::Kind::kBlockBegin, "a block"));
        if (!stream_.At(Token::Kind::kName)) return stream_.Unexpected("a tag name");
        const std::string& word = stream_.current().text;
        if (std::find(ends.begin(), ends.end(), word) != ends.end()) {
          --nesting_;
          end_word_ = stream_.Take().text;
          return body;
        }
        ASSIGN_OR_RETURN(body.emplace_back(), ParseBlock());
        RETURN_IF_ERROR(stream_.Expect(Token::Kind::kBlockEnd, "'%}'"));
      }
    }
    --nesting_;
    if (ends.size() == 0) return body;
    return stream_.Unexpected(Concat({"'", *(ends.end() - 1), "'"}));
  }

  // Parses "%} body {% end".
  absl::StatusOr<Statements> ParseBlockBody(std::initializer_list<std::string_view> ends) {
    RETURN_IF_ERROR(stream_.Expect(Token::Kind::kBlockEnd, "'%}'"));
    return ParseBody(ends);
  }

  Result ParseBlock() {
    const int line = stream_.line();
    const std::string word = stream_.Take().text;
    if (word == "if") return ParseIf(line);
    if (word == "for") return ParseFor(line);
    if (word == "set") return ParseSet(line);
    if (word == "macro") return ParseMacro(line);
    if (word == "call") return ParseCall(line);
    if (word == "filter") return ParseFilter(line);
    if (word == "with") return ParseWith(line);
    if (word == "generation") return ParseGeneration(line);
    if (word == "break" || word == "continue") {
      if (loops_ == 0) return AtLine(line, Error({"'", word, "' outside of a loop"}));
      return Make(word == "break" ? Kind::kBreak : Kind::kContinue, line);
    }
    for (const std::string_view known :
         {"block", "extends", "include", "import", "from", "do", "autoescape", "trans", "debug"}) {
      if (word == known) return AtLine(line, Unsupported({"the tag '", word, "'"}));
    }
    return AtLine(line, Error({"Encountered unknown tag '", word.substr(0, 100), "'"}));
  }

  Result ParseIf(int line) {
    StatementPtr statement = Make(Kind::kIf, line);
    while (true) {
      Branch branch;
      ASSIGN_OR_RETURN(branch.condition, expressions_.ParseTuple(false, false));
      ASSIGN_OR_RETURN(branch.body, ParseBlockBody({"elif", "else", "endif"}));
      statement->branches.push_back(std::move(branch));
      if (end_word_ != "elif") break;
    }
    if (end_word_ == "else") {
      Branch otherwise;
      ASSIGN_OR_RETURN(otherwise.body, ParseBlockBody({"endif"}));
      statement->branches.push_back(std::move(otherwise));
    }
    return statement;
  }

  Result ParseFor(int line) {
    StatementPtr statement = Make(Kind::kFor, line);
    ASSIGN_OR_RETURN(statement->target, ParseTarget(false));
    RETURN_IF_ERROR(stream_.ExpectName("in"));
    ASSIGN_OR_RETURN(statement->expression, expressions_.ParseTuple(false, false));
    if (stream_.SkipName("if")) {
      ASSIGN_OR_RETURN(statement->condition, expressions_.Parse());
    }
    if (stream_.AtName("recursive")) {
      return AtLine(line, Unsupported({"a recursive loop"}));
    }
    ++loops_;
    absl::StatusOr<Statements> body = ParseBlockBody({"else", "endfor"});
    --loops_;
    RETURN_IF_ERROR(body.status());
    statement->body = *std::move(body);
    if (end_word_ == "else") {
      ASSIGN_OR_RETURN(statement->otherwise, ParseBlockBody({"endfor"}));
    }
    return statement;
  }

  Result ParseSet(int line) {
    StatementPtr statement = Make(Kind::kSet, line);
    ASSIGN_OR_RETURN(statement->target, ParseTarget(true));
    if (stream_.SkipOperator("=")) {
      ASSIGN_OR_RETURN(statement->expression, expressions_.ParseTuple(true, false));
      return statement;
    }
    statement->kind = Kind::kSetBlock;
    if (stream_.SkipOperator("|")) {
      ASSIGN_OR_RETURN(statement->expression, expressions_.ParseFilterChain());
    }
    ASSIGN_OR_RETURN(statement->body, ParseFunctionBody({"endset"}));
    return statement;
  }

  Result ParseMacro(int line) {
    StatementPtr statement = Make(Kind::kMacro, line);
    ASSIGN_OR_RETURN(statement->name, stream_.TakeName());
    ASSIGN_OR_RETURN(statement->parameters, ParseParameters());
    ASSIGN_OR_RETURN(statement->body, ParseFunctionBody({"endmacro"}));
    return statement;
  }

  Result ParseCall(int line) {
    StatementPtr statement = Make(Kind::kCall, line);
    if (stream_.AtOperator("(")) {
      ASSIGN_OR_RETURN(statement->parameters, ParseParameters());
    }
    ASSIGN_OR_RETURN(statement->expression, expressions_.Parse());
    if (statement->expression->kind != Expression::Kind::kCall) {
      return AtLine(line, Error({"expected call"}));
    }
    ASSIGN_OR_RETURN(statement->body, ParseFunctionBody({"endcall"}));
    return statement;
  }

  Result ParseFilter(int line) {
    StatementPtr statement = Make(Kind::kFilter, line);
    ASSIGN_OR_RETURN(statement->expression, expressions_.ParseFilterChain());
    ASSIGN_OR_RETURN(statement->body, ParseBlockBody({"endfilter"}));
    return statement;
  }

  Result ParseWith(int line) {
    StatementPtr statement = Make(Kind::kWith, line);
    while (!stream_.At(Token::Kind::kBlockEnd)) {
      if (!statement->targets.empty()) RETURN_IF_ERROR(stream_.ExpectOperator(","));
      ASSIGN_OR_RETURN(statement->targets.emplace_back(), ParseTargetPart(false));
      RETURN_IF_ERROR(stream_.ExpectOperator("="));
      ASSIGN_OR_RETURN(statement->expressions.emplace_back(), expressions_.Parse());
    }
    ASSIGN_OR_RETURN(statement->body, ParseBlockBody({"endwith"}));
    return statement;
  }

  // transformers' extension, which marks what an assistant said.
  Result ParseGeneration(int line) {
    StatementPtr statement = Make(Kind::kScope, line);
    ASSIGN_OR_RETURN(statement->body, ParseFunctionBody({"endgeneration"}));
    return statement;
  }

  // A body from which no `break` leads out.
  absl::StatusOr<Statements> ParseFunctionBody(std::initializer_list<std::string_view> ends) {
    const int loops = std::exchange(loops_, 0);
    absl::StatusOr<Statements> body = ParseBlockBody(ends);
    loops_ = loops;
    return body;
  }

  absl::StatusOr<std::vector<Parameter>> ParseParameters() {
    std::vector<Parameter> parameters;
    RETURN_IF_ERROR(stream_.ExpectOperator("("));
    while (!stream_.AtOperator(")")) {
      if (!parameters.empty()) RETURN_IF_ERROR(stream_.ExpectOperator(","));
      Parameter parameter;
      ASSIGN_OR_RETURN(parameter.name, stream_.TakeName());
      if (stream_.SkipOperator("=")) {
        ASSIGN_OR_RETURN(parameter.fallback, expressions_.Parse());
      } else if (!parameters.empty() && parameters.back().fallback != nullptr) {
        return stream_.Fail("non-default argument follows default argument");
      }
      parameters.push_back(std::move(parameter));
    }
    RETURN_IF_ERROR(stream_.ExpectOperator(")"));
    return parameters;
  }

  // Names that are separated by commas; `attributes`: also "namespace.name".
  absl::StatusOr<Target> ParseTarget(bool attributes) {
    ASSIGN_OR_RETURN(Target target, ParseTargetPart(attributes));
    if (!stream_.AtOperator(",")) return target;
    Target all;
    all.parts.push_back(std::move(target));
    while (stream_.SkipOperator(",")) {
      if (stream_.AtName("in") || stream_.AtOperator("=")) break;
      ASSIGN_OR_RETURN(all.parts.emplace_back(), ParseTargetPart(attributes));
    }
    return all;
  }

  absl::StatusOr<Target> ParseTargetPart(bool attributes) {
    Target target;
    if (stream_.SkipOperator("(")) {
      if (++nesting_ > kNestingMax) return stream_.Fail("too many parentheses");
      ASSIGN_OR_RETURN(target, ParseTarget(attributes));
      --nesting_;
      RETURN_IF_ERROR(stream_.ExpectOperator(")"));
      return target;
    }
    ASSIGN_OR_RETURN(target.name, stream_.TakeName());
    for (const std::string_view constant :
         {"true", "false", "none", "True", "False", "None", "not", "in", "if", "else"}) {
      if (target.name == constant)
        return stream_.Fail(Concat({"can't assign to '", target.name, "'"}));
    }
    if (attributes && stream_.SkipOperator(".")) {
      ASSIGN_OR_RETURN(target.attribute, stream_.TakeName());
    }
    return target;
  }

  TokenStream stream_;
  ExpressionParser expressions_;
  int nesting_ = 0;
  int loops_ = 0;         // around the current statement, up to the next function
  std::string end_word_;  // that ended the last body
};

}  // namespace

absl::StatusOr<Statements> ParseTemplate(std::string_view source) {
  ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace retroinfer::jinja
