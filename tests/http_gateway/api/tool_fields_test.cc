#include "http_gateway/api/tool_fields.h"

#include <gtest/gtest.h>

#include "common/status/error_reason.h"
#include "http_gateway/api/chat_request.h"

namespace retroinfer::gateway {
namespace {

constexpr char kUser[] = R"("messages": [{"role": "user", "content": "hi"}])";
constexpr char kTools[] =
    R"("tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}])";

absl::StatusOr<ChatRequest> Read(const std::string& members) {
  return ReadChatRequest(Json::parse("{" + members + "}"));
}

TEST(ToolFields, ReadsToolsAndTheirChoice) {
  const auto choice = [](const std::string& value) {
    return Read(std::string(kUser) + "," + kTools + ", \"tool_choice\": " + value);
  };
  const auto automatic = Read(std::string(kUser) + "," + kTools);
  ASSERT_TRUE(automatic.ok()) << automatic.status();
  EXPECT_EQ(automatic->tools.choice, ToolChoice::kAuto);
  EXPECT_EQ(automatic->tools.Names(), std::set<std::string>{"add"});
  EXPECT_EQ(Json::parse(automatic->call.messages().tools())[0]["function"]["name"], "add");
  const auto none = choice("\"none\"");
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->tools.functions.empty());
  EXPECT_EQ(none->call.messages().tools(), "");
  const auto required = choice("\"required\"");
  ASSERT_TRUE(required.ok());
  EXPECT_EQ(required->tools.choice, ToolChoice::kRequired);
  EXPECT_FALSE(required->call.messages().enable_thinking());
  const auto named = choice(R"({"type": "function", "function": {"name": "add"}})");
  ASSERT_TRUE(named.ok());
  EXPECT_EQ(named->tools.function, "add");
  for (const char* bad :
       {"\"maybe\"", "5", "{}", R"({"type": "function", "function": {"name": "rm"}})",
        R"({"type": "function", "function": 1})", R"({"type": 1, "function": {}})"}) {
    EXPECT_FALSE(choice(bad).ok()) << bad;
  }
}

TEST(ToolFields, RefusesByName) {
  const std::string user = kUser;
  const std::pair<std::string, const char*> cases[] = {
      {R"(, "functions": [{"name": "f"}])", "functions"},
      {R"(, "tools": {})", "tools"},
      {R"(, "tools": [{"type": "web_search"}])", "tools[0]"},
      {R"(, "tools": [{"type": "function", "function": {"name": "a b"}}])",
       "tools[0].function.name"},
      {std::string(",") + kTools + R"(, "parallel_tool_calls": false)", "parallel_tool_calls"},
      {R"(, "tool_choice": "required")", "tool_choice"},
  };
  for (const auto& [members, param] : cases) {
    const auto request = Read(user + members);
    ASSERT_FALSE(request.ok()) << members;
    EXPECT_EQ(common::ReasonOf(request.status()).metadata["param"], param) << request.status();
  }
}

}  // namespace
}  // namespace retroinfer::gateway
