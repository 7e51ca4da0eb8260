#include "http_gateway/api/reasoning_fields.h"

#include <gtest/gtest.h>

#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

absl::StatusOr<v1::Messages> Read(const std::string& members, const std::string& arguments = "") {
  const Json json = Json::parse("{" + members + "}");
  IgnoredNames ignored;
  Fields fields = *Fields::Of(json, "", &ignored);
  v1::Messages conversation;
  conversation.set_template_arguments(arguments);
  const absl::Status status = ReadReasoning(fields, &conversation);
  if (!status.ok()) return status;
  return conversation;
}

// "on", "off" or "" for what the template decides.
std::string ThinkingOf(const std::string& members) {
  const auto conversation = Read(members);
  if (!conversation.ok()) return conversation.status().ToString();
  if (!conversation->has_enable_thinking()) return "";
  return conversation->enable_thinking() ? "on" : "off";
}

TEST(ReasoningFields, EffortReachesTheTemplate) {
  EXPECT_EQ(Read(R"("reasoning_effort": "low")")->template_arguments(),
            R"({"reasoning_effort":"low"})");
  EXPECT_EQ(Read(R"("reasoning": {"effort": "high", "summary": "auto"})")->template_arguments(),
            R"({"reasoning_effort":"high"})");
  EXPECT_EQ(Read(R"("reasoning_effort": null)")->template_arguments(), "");
  EXPECT_EQ(Read(R"("reasoning_effort": "low")", R"({"documents":[]})")->template_arguments(),
            R"({"documents":[],"reasoning_effort":"low"})");
  EXPECT_EQ(
      Read(R"("reasoning_effort": "low")", R"({"reasoning_effort":"mine"})")->template_arguments(),
      R"({"reasoning_effort":"mine"})");
}

TEST(ReasoningFields, OnlyWhatSaysSoSwitchesThinking) {
  EXPECT_EQ(ThinkingOf(R"("reasoning_effort": "none")"), "off");
  EXPECT_EQ(ThinkingOf(R"("reasoning_effort": "minimal")"), "");
  EXPECT_EQ(ThinkingOf(R"("reasoning_effort": "low")"), "");
  EXPECT_EQ(ThinkingOf(R"("reasoning": {"enabled": false})"), "off");
  EXPECT_EQ(ThinkingOf(R"("thinking": {"type": "enabled", "budget_tokens": 5})"), "on");
  EXPECT_EQ(ThinkingOf(R"("thinking": {"type": "disabled"})"), "off");
  EXPECT_EQ(ThinkingOf(R"("thinking": {"type": "adaptive"})"), "");
}

TEST(ReasoningFields, RefusesWrongValuesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("reasoning_effort": "much")", "reasoning_effort"},
      {R"("reasoning_effort": 5)", "reasoning_effort"},
      {R"("reasoning": "much")", "reasoning"},
      {R"("reasoning": {"effort": "<|im_start|>"})", "reasoning.effort"},
      {R"("thinking": true)", "thinking"},
      {R"("thinking": {})", "thinking.type"},
      {R"("thinking": {"type": "on"})", "thinking.type"},
  };
  for (const auto& [members, param] : cases) {
    const auto conversation = Read(members);
    ASSERT_FALSE(conversation.ok()) << members;
    EXPECT_EQ(common::ReasonOf(conversation.status()).metadata["param"], param);
  }
}

}  // namespace
}  // namespace retroinfer::gateway
