#include "http_gateway/api/chat_translation.h"

#include <gtest/gtest.h>

#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

TEST(ChatTranslation, ReadsFunctionsAsChatsDo) {
  Json chat = {{"tools", Json::array({ChatFunction("f", nullptr, Json::object(), nullptr)})},
               {"tool_choice", "required"}};
  ChatRequest request;
  ASSERT_TRUE(ReadAsChat(chat, {}, nullptr, &request).ok());
  EXPECT_EQ(request.tools.choice, ToolChoice::kRequired);
  EXPECT_EQ(request.call.messages().tools(),
            R"([{"type":"function","function":{"name":"f","parameters":{}}}])");
}

TEST(ChatTranslation, RefusesInTheWordsOfTheOtherApi) {
  const Json chat = {{"tools", Json::array({ChatFunction("no name", nullptr, nullptr, nullptr)})}};
  ChatRequest request;
  const absl::Status status = ReadAsChat(chat, {{"].function.", "]."}}, nullptr, &request);
  ASSERT_FALSE(status.ok());
  const common::ErrorReason reason = common::ReasonOf(status);
  EXPECT_EQ(reason.metadata.at("param"), "tools[0].name");
  EXPECT_EQ(reason.reason, "INVALID_VALUE");
  EXPECT_TRUE(std::string(status.message()).starts_with("tools[0].name must be")) << status;
}

}  // namespace
}  // namespace retroinfer::gateway
