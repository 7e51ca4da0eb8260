#include "text/jinja/token_stream.h"

#include <algorithm>

#include "text/jinja/errors.h"
#include "text/jinja/lexer.h"

namespace retroinfer::jinja {
namespace {

std::string Describe(const Token& token) {
  switch (token.kind) {
    case Token::Kind::kData:
    case Token::Kind::kOutputBegin:
    case Token::Kind::kBlockBegin:
      return "text";
    case Token::Kind::kOutputEnd:
      return "'}}'";
    case Token::Kind::kBlockEnd:
      return "'%}'";
    case Token::Kind::kString:
      return "a string";
    case Token::Kind::kEnd:
      return "the end of the template";
    default:
      return Concat({"'", token.text.substr(0, 100), "'"});
  }
}

}  // namespace

const Token& TokenStream::Take() {
  const Token& token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool TokenStream::SkipOperator(std::string_view text) {
  if (!AtOperator(text)) return false;
  Take();
  return true;
}

bool TokenStream::SkipName(std::string_view text) {
  if (!AtName(text)) return false;
  Take();
  return true;
}

absl::Status TokenStream::ExpectOperator(std::string_view text) {
  if (SkipOperator(text)) return absl::OkStatus();
  return Unexpected(Concat({"'", text, "'"}));
}

absl::Status TokenStream::ExpectName(std::string_view text) {
  if (SkipName(text)) return absl::OkStatus();
  return Unexpected(Concat({"'", text, "'"}));
}

absl::Status TokenStream::Expect(Token::Kind kind, std::string_view what) {
  if (!At(kind)) return Unexpected(what);
  Take();
  return absl::OkStatus();
}

absl::StatusOr<std::string> TokenStream::TakeName() {
  if (!At(Token::Kind::kName)) return Unexpected("a name");
  return Take().text;
}

absl::Status TokenStream::Fail(std::string_view problem) const {
  return AtLine(line(), Error({problem}));
}

absl::Status TokenStream::Unexpected(std::string_view wanted) const {
  return AtLine(line(), Error({"expected ", wanted, ", got ", Describe(current())}));
}

}  // namespace retroinfer::jinja
