#include "http_gateway/api/tokenize_request.h"

#include <gtest/gtest.h>

namespace retroinfer::gateway {
namespace {

TEST(TokenizeRequest, TakesTextOrMessages) {
  const auto text = ReadTokenizeRequest(
      Json::parse(R"({"model": "m", "prompt": "", "add_special_tokens": false})"));
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_TRUE(text->request.has_text() && text->request.has_add_special_tokens());
  EXPECT_TRUE(text->return_tokens);
  const auto count = ReadTokenizeRequest(Json::parse(R"({"prompt": "", "return_tokens": false})"));
  ASSERT_TRUE(count.ok()) << count.status();
  EXPECT_FALSE(count->return_tokens);
  const auto chat = ReadTokenizeRequest(
      Json::parse(R"({"messages": [{"role": "user", "content": "x"}], "tools": []})"));
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->request.messages().messages_size(), 1);
  for (const char* bad :
       {"{}", R"({"prompt": 1})", R"({"prompt": "a", "messages": []})",
        R"({"prompt": "a", "x": 1})", R"({"prompt": "a", "return_tokens": 1})", "[]"}) {
    EXPECT_FALSE(ReadTokenizeRequest(Json::parse(bad)).ok()) << bad;
  }
}

TEST(TokenizeRequest, TakesTokens) {
  const auto tokens =
      ReadDetokenizeRequest(Json::parse(R"({"tokens": [1, 2], "skip_special_tokens": true})"));
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ(tokens->token_ids_size(), 2);
  EXPECT_TRUE(tokens->skip_special_tokens());
  for (const char* bad : {"{}", R"({"tokens": "1"})", R"({"tokens": ["1"]})"}) {
    EXPECT_FALSE(ReadDetokenizeRequest(Json::parse(bad)).ok()) << bad;
  }
}

TEST(TokenizeRequest, Answers) {
  generation::v1::TokenizeResponse response;
  response.add_token_ids(3);
  response.add_token_ids(4);
  response.set_max_model_len(100);
  EXPECT_EQ(Json::parse(TokenizeJson(response, true)).dump(),
            R"({"count":2,"max_model_len":100,"tokens":[3,4]})");
  EXPECT_EQ(TokenizeJson(response, false), R"({"count":2,"max_model_len":100})");
}

}  // namespace
}  // namespace retroinfer::gateway
