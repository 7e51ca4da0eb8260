#include "http_gateway/api/chat_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A chat with the function add, and what more its body has.
ChatRequest Chat(const std::string& more, const std::string& function_more = "") {
  const Json body = Json::parse(absl::StrCat(
      R"({"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function",
          "function": {"name": "add", "parameters": {"properties": {}})",
      function_more, "}}]", more, "}"));
  absl::StatusOr<ChatRequest> chat = ReadChatRequest(body);
  EXPECT_TRUE(chat.ok()) << chat.status();
  return *std::move(chat);
}

ChatFormat Format(ToolForm form) { return {.tool_form = form}; }

ChatFormat Thinking(ThinkingOpening usual) {
  using enum ThinkingOpening;
  return {.tool_form = ToolForm::kHermes, .thinking = {usual, kClosed, usual}};
}

ChatPlan Plan(const ChatFormat& format, ChatRequest* chat) {
  absl::StatusOr<ChatPlan> plan = PlanChat(format, chat);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

TEST(ChatPlan, CallsThatAreTheModelsOwnChoiceAreNotConstrained) {
  ChatRequest chat = Chat("");
  const ChatPlan plan = Plan(Format(ToolForm::kHermes), &chat);
  EXPECT_FALSE(chat.call.has_constraint());
  EXPECT_EQ(plan.reader.tool_form, ToolForm::kHermes);
  EXPECT_TRUE(plan.reader.functions.Has("add"));
  EXPECT_FALSE(plan.reader.is_forced || plan.reader.one_call);
  EXPECT_TRUE(plan.reader.splitter.has_value());
  EXPECT_EQ(chat.call.sampling().shown_special_tokens_size(), 0);
}

TEST(ChatPlan, WhatMustBeACallIsAGrammar) {
  ChatRequest chat = Chat(R"(, "tool_choice": "required")");
  const ChatPlan plan = Plan(Format(ToolForm::kHermes), &chat);
  EXPECT_THAT(chat.call.constraint().grammar(), HasSubstr("root ::= calls\n"));
  EXPECT_THAT(chat.call.constraint().grammar(), HasSubstr("properties"));
  EXPECT_EQ(plan.constraint_param, "tool_choice");
  EXPECT_TRUE(plan.reader.is_forced);
  ASSERT_TRUE(plan.relaxed.has_value());
  EXPECT_THAT(plan.relaxed->grammar(), Not(HasSubstr("properties")));
  ChatRequest strict = Chat(R"(, "tool_choice": "required")", R"(, "strict": true)");
  EXPECT_FALSE(Plan(Format(ToolForm::kHermes), &strict).relaxed.has_value());
}

TEST(ChatPlan, StrictFunctionsAndSingleCallsAskForAGrammar) {
  ChatRequest strict = Chat("", R"(, "strict": true)");
  ChatPlan plan = Plan(Format(ToolForm::kHermes), &strict);
  EXPECT_EQ(plan.constraint_param, "tools");
  EXPECT_FALSE(plan.reader.is_forced) << "text may be a call in another form";
  EXPECT_FALSE(plan.relaxed.has_value());
  EXPECT_THAT(strict.call.constraint().grammar(), HasSubstr("properties"));
  ChatRequest single = Chat(R"(, "parallel_tool_calls": false)");
  plan = Plan(Format(ToolForm::kHermes), &single);
  EXPECT_EQ(plan.constraint_param, "parallel_tool_calls");
  EXPECT_TRUE(plan.reader.one_call);
  EXPECT_FALSE(plan.reader.is_forced);
  EXPECT_THAT(single.call.constraint().grammar(), HasSubstr("%json {\"type\":\"object\"}"));
}

TEST(ChatPlan, AFormatAndFunctionsAreOneGrammar) {
  ChatRequest chat = Chat(R"(, "response_format": {"type": "json_object"})");
  const ChatPlan plan = Plan(Format(ToolForm::kHermes), &chat);
  EXPECT_EQ(plan.constraint_param, "response_format");
  EXPECT_THAT(chat.call.constraint().grammar(),
              HasSubstr("root ::= calls | %json {\"type\":\"object\"}\n"));
}

TEST(ChatPlan, ThoughtsComeBeforeWhatIsConstrained) {
  ChatRequest opened = Chat(R"(, "tool_choice": "required")");
  const ChatPlan plan = Plan(Thinking(ThinkingOpening::kOpened), &opened);
  EXPECT_EQ(opened.call.constraint().thoughts().open(), "");
  EXPECT_EQ(opened.call.constraint().thoughts().close(), "</think>");
  EXPECT_EQ(plan.relaxed->thoughts().close(), "</think>");
  ChatRequest perhaps = Chat(R"(, "tool_choice": "required")");
  Plan(Thinking(ThinkingOpening::kUnknown), &perhaps);
  EXPECT_EQ(perhaps.call.constraint().thoughts().open(), "<think>");
  ChatRequest off =
      Chat(R"(, "tool_choice": "required", "chat_template_kwargs": {"enable_thinking": false})");
  Plan(Thinking(ThinkingOpening::kOpened), &off);
  EXPECT_FALSE(off.call.constraint().has_thoughts());
  ChatRequest never = Chat(R"(, "tool_choice": "required")");
  Plan(Format(ToolForm::kHermes), &never);
  EXPECT_FALSE(never.call.constraint().has_thoughts());
}

TEST(ChatPlan, AMessageThatGoesOnHasNoThoughts) {
  ChatRequest chat =
      Chat(R"(, "continue_final_message": true, "response_format": {"type": "json_object"})");
  const ChatPlan plan = Plan(Thinking(ThinkingOpening::kOpened), &chat);
  EXPECT_FALSE(plan.reader.splitter.has_value());
  EXPECT_FALSE(chat.call.constraint().has_thoughts());
}

TEST(ChatPlan, TagsThatAreSpecialTokensAreShown) {
  for (const ToolForm form : {ToolForm::kMistral, ToolForm::kMistralArgs}) {
    ChatRequest chat = Chat("");
    Plan(Format(form), &chat);
    EXPECT_THAT(chat.call.sampling().shown_special_tokens(),
                ElementsAre("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"));
  }
}

TEST(ChatPlan, AModelWithoutAKnownFormIsOfferedNoFunctions) {
  ChatRequest chat = Chat("");
  const absl::Status status = PlanChat(Format(ToolForm::kNone), &chat).status();
  EXPECT_EQ(common::ReasonOf(status).metadata["param"], "tools");
  EXPECT_THAT(std::string(status.message()), HasSubstr("--tool-call-parser"));
  ChatRequest text = Chat("");
  EXPECT_EQ(Plan(Format(ToolForm::kText), &text).reader.tool_form, ToolForm::kNone);
  ChatRequest forced = Chat(R"(, "tool_choice": "required")");
  EXPECT_FALSE(PlanChat(Format(ToolForm::kText), &forced).ok());
  ChatRequest none = Chat(R"(, "tool_choice": "none")");
  EXPECT_TRUE(PlanChat(Format(ToolForm::kNone), &none).ok());
}

}  // namespace
}  // namespace retroinfer::gateway
