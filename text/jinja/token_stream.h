// The tokens of a template, read one by one.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "text/jinja/token.h"

namespace retroinfer::jinja {

// REQUIRES: the last token is the only kEnd.
class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  int line() const { return current().line; }
  // Returns the token that was current; stays at the end.
  const Token& Take();

  bool At(Token::Kind kind) const { return current().kind == kind; }
  bool AtOperator(std::string_view text) const {
    return current().Is(Token::Kind::kOperator, text);
  }
  bool AtName(std::string_view text) const { return current().Is(Token::Kind::kName, text); }
  // Passes over the operator or name if it is there.
  bool SkipOperator(std::string_view text);
  bool SkipName(std::string_view text);

  // Each returns INVALID_ARGUMENT with the line if something else stands there.
  absl::Status ExpectOperator(std::string_view text);
  absl::Status ExpectName(std::string_view text);
  absl::Status Expect(Token::Kind kind, std::string_view what);
  absl::StatusOr<std::string> TakeName();

  absl::Status Fail(std::string_view problem) const;
  // "expected ..., got ...".
  absl::Status Unexpected(std::string_view wanted) const;

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace retroinfer::jinja
