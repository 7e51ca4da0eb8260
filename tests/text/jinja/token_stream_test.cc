#include "text/jinja/token_stream.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

TEST(TokenStreamTest, ReadsAndRefuses) {
  TokenStream stream({{.kind = Token::Kind::kName, .line = 1, .text = "a"},
                      {.kind = Token::Kind::kOperator, .line = 1, .text = "("},
                      {.kind = Token::Kind::kEnd, .line = 2, .text = ""}});
  EXPECT_TRUE(stream.AtName("a"));
  EXPECT_TRUE(stream.next().Is(Token::Kind::kOperator, "("));
  EXPECT_EQ(*stream.TakeName(), "a");
  EXPECT_FALSE(stream.SkipName("a"));
  EXPECT_EQ(stream.TakeName().status().message(), "line 1: expected a name, got '('");
  EXPECT_TRUE(stream.ExpectOperator("(").ok());
  EXPECT_EQ(stream.Take().kind, Token::Kind::kEnd);
  EXPECT_EQ(stream.Take().kind, Token::Kind::kEnd);
  EXPECT_EQ(stream.ExpectName("b").message(), "line 2: expected 'b', got the end of the template");
}

}  // namespace
}  // namespace retroinfer::jinja
