#include "http_gateway/api/tool_fields.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
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
  EXPECT_FALSE(required->call.messages().has_enable_thinking());
  const auto named = choice(R"({"type": "function", "function": {"name": "add"}})");
  ASSERT_TRUE(named.ok());
  EXPECT_EQ(named->tools.function, "add");
  for (const char* bad :
       {"\"maybe\"", "5", "{}", R"({"type": "function", "function": {"name": "rm"}})",
        R"({"type": "function", "function": 1})", R"({"type": 1, "function": {}})"}) {
    EXPECT_FALSE(choice(bad).ok()) << bad;
  }
}

TEST(ToolFields, ReadsWhatIsToBeForced) {
  const auto request = Read(std::string(kUser) + R"(, "parallel_tool_calls": false, "tools": [
      {"type": "function", "function": {"name": "f", "strict": true, "parameters": {"a": 1}}},
      {"type": "function", "function": {"name": "g", "parameters": null}}])");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_FALSE(request->tools.parallel);
  ASSERT_EQ(request->tools.functions.size(), 2U);
  EXPECT_TRUE(request->tools.functions[0].strict);
  EXPECT_EQ(request->tools.functions[0].parameters, Json::parse(R"({"a": 1})"));
  EXPECT_FALSE(request->tools.functions[1].strict);
  EXPECT_TRUE(request->tools.functions[1].parameters.is_null());
}

TEST(ToolFields, ToolsThatAreNoFunctionsAreLeftOut) {
  const Json body = Json::parse(absl::StrCat("{", kUser, R"(, "tools": [{"type": "web_search"},
      {"type": "function", "function": {"name": "f"}}]})"));
  IgnoredNames ignored;
  const auto request = ReadChatRequest(body, &ignored);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->tools.Names(), std::set<std::string>{"f"});
  EXPECT_EQ(Json::parse(request->call.messages().tools()).size(), 1U);
  EXPECT_EQ(ignored.ToString(), "tools[](web_search)");
}

TEST(ToolFields, RefusesByName) {
  const std::string user = kUser;
  const std::pair<std::string, const char*> cases[] = {
      {R"(, "functions": [{"name": "f"}])", "functions"},
      {R"(, "tools": {})", "tools"},
      {R"(, "tools": [{"type": "web_search"}])", "tools[0]"},
      {R"(, "tools": [{"type": "function", "function": {"name": "a b"}}])",
       "tools[0].function.name"},
      {R"(, "tools": [{"type": "function"}])", "tools[0].function"},
      {R"(, "tools": [{"type": "function", "function": {"name": "a", "parameters": 1}}])",
       "tools[0].function.parameters"},
      {R"(, "tools": [{"type": "function", "function": {"name": "a", "strict": 1}}])",
       "tools[0].function.strict"},
      {std::string(",") + kTools + R"(, "parallel_tool_calls": 0)", "parallel_tool_calls"},
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
