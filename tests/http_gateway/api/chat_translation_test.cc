#include "http_gateway/api/chat_translation.h"

#include <gtest/gtest.h>

#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

TEST(ChatTranslation, ReadsFunctionsAsChatsDo) {
  Json chat = {{"tools", Json::array({ChatFunction("f", nullptr, Json::object(), nullptr)})},
               {"tool_choice", "required"}};
  ChatRequest request;
  ASSERT_TRUE(ReadToolsOfChat(chat, {}, nullptr, &request).ok());
  EXPECT_EQ(request.tools.choice, ToolChoice::kRequired);
  EXPECT_EQ(request.call.messages().tools(),
            R"([{"type":"function","function":{"name":"f","parameters":{}}}])");
}

TEST(ChatTranslation, RefusesInTheWordsOfTheOtherApi) {
  const Json chat = {{"tools", Json::array({ChatFunction("no name", nullptr, nullptr, nullptr)})}};
  ChatRequest request;
  const absl::Status status = ReadToolsOfChat(chat, {{"].function.", "]."}}, nullptr, &request);
  ASSERT_FALSE(status.ok());
  const common::ErrorReason reason = common::ReasonOf(status);
  EXPECT_EQ(reason.metadata.at("param"), "tools[0].name");
  EXPECT_EQ(reason.reason, "INVALID_VALUE");
  EXPECT_TRUE(std::string(status.message()).starts_with("tools[0].name must be")) << status;
}

TEST(ChatTranslation, ReadsTheFormOfAnAnswerWhereverItIs) {
  const auto read = [](const Json& format, const char* body, ChatRequest* request) {
    const Json json = Json::parse(body);
    Fields fields = *Fields::Of(json);
    return ReadAnswerFormat(format.is_null() ? nullptr : &format, "text.format", fields, request);
  };
  const Json schema = Json::parse(R"({"type": "json_schema", "name": "n", "schema": {}})");
  ChatRequest asked, none, guided, both;
  ASSERT_TRUE(read(schema, "{}", &asked).ok());
  EXPECT_TRUE(asked.call.has_constraint());
  EXPECT_EQ(asked.options.constraint_param, "text.format");
  ASSERT_TRUE(read(Json::parse(R"({"type": "text"})"), "{}", &none).ok());
  EXPECT_FALSE(none.call.has_constraint());
  ASSERT_TRUE(read(nullptr, R"({"guided_regex": "a"})", &guided).ok());
  EXPECT_EQ(guided.options.constraint_param, "guided_regex");
  EXPECT_EQ(common::ReasonOf(read(schema, R"({"guided_regex": "a"})", &both)).metadata["param"],
            "text.format");
}

}  // namespace
}  // namespace retroinfer::gateway
