#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "http_gateway/api/choice.h"
#include "http_gateway/json/strict_json.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

v1::OutputChunk Chunk(const std::string& text) {
  v1::OutputChunk chunk;
  chunk.set_text(text);
  return chunk;
}

v1::Finished Stopped() {
  v1::Finished finished;
  finished.set_reason(v1::FINISH_REASON_STOP);
  return finished;
}

// The deltas of a stream, each with its finish reason.
Json Stream(Choice& choice, const std::vector<std::string>& texts,
            const v1::Finished& finished = Stopped()) {
  ChunkWriter chunks("", "\n");
  choice.Begin(&chunks);
  for (const std::string& text : texts) choice.Output(Chunk(text), &chunks);
  choice.Finish(finished, &chunks);
  Json list = Json::array();
  const std::string text(chunks.text());
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    list.push_back(Json::parse(std::string(line)));
  }
  return list;
}

TEST(ChatChoice, AStreamHasTheRoleThenDeltasThenTheReason) {
  const auto choice = MakeChatChoice({.index = 2, .streams = true});
  const Json list = Stream(*choice, {"Hel", "lo"});
  ASSERT_EQ(list.size(), 4U);
  EXPECT_EQ(list[0]["delta"]["role"], "assistant");
  EXPECT_EQ(list[1]["delta"], Json::parse(R"({"content": "Hel"})"));
  EXPECT_EQ(list[2]["delta"]["content"], "lo");
  EXPECT_TRUE(list[2]["finish_reason"].is_null());
  EXPECT_EQ(list[3]["delta"], Json::object());
  EXPECT_EQ(list[3]["finish_reason"], "stop");
  for (const Json& item : list) EXPECT_EQ(item["index"], 2);
}

TEST(ChatChoice, ThoughtsAndCallsAreDeltasOfTheirOwn) {
  ChatChoiceOptions options = {
      .streams = true,
      .reader = {.tool_form = ToolForm::kHermes, .functions = CallableFunctions::Named({"add"})}};
  options.reader.splitter.emplace(false);
  const auto choice = MakeChatChoice(options);
  const Json list = Stream(*choice, {"<think>hm</think>I ", "add.<tool_call>{\"name\": \"add\", ",
                                     "\"arguments\": {\"a\": 1}}</tool_call>"});
  ASSERT_EQ(list.size(), 7U) << list.dump(1);
  EXPECT_EQ(list[1]["delta"]["reasoning_content"], "hm");
  EXPECT_EQ(list[2]["delta"]["content"], "I");
  EXPECT_EQ(list[3]["delta"]["content"], " add.");
  const Json call = list[4]["delta"]["tool_calls"][0];
  EXPECT_EQ(call["index"], 0);
  EXPECT_EQ(call["id"].get<std::string>().size(), 29U);
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"]["name"], "add");
  EXPECT_EQ(call["function"]["arguments"], "");
  EXPECT_EQ(list[5]["delta"]["tool_calls"],
            Json::parse(R"([{"index": 0, "function": {"arguments": "{\"a\": 1}"}}])"));
  EXPECT_EQ(list[6]["finish_reason"], "tool_calls");
}

TEST(ChatChoice, TheWholeHasAllOfIt) {
  ChatChoiceOptions options = {
      .reader = {.tool_form = ToolForm::kLlama, .functions = CallableFunctions::Named({"add"})}};
  options.reader.splitter.emplace(true);
  const auto choice = MakeChatChoice(options);
  Stream(*choice, {"so\n</think>\n", "{\"name\": \"add\", \"parameters\": {}}"});
  const Json whole = Json::parse(choice->Whole());
  EXPECT_EQ(whole["message"]["reasoning_content"], "so");
  EXPECT_TRUE(whole["message"]["content"].is_null());
  EXPECT_EQ(whole["message"]["tool_calls"][0]["function"]["name"], "add");
  EXPECT_FALSE(whole["message"]["tool_calls"][0].contains("index"));
  EXPECT_EQ(whole["finish_reason"], "tool_calls");
}

TEST(ChatChoice, AnAnswerThatIsCutIsNoCallsEnd) {
  const auto choice = MakeChatChoice({.streams = false});
  v1::Finished finished;
  finished.set_reason(v1::FINISH_REASON_LENGTH);
  Stream(*choice, {"abc"}, finished);
  const Json whole = Json::parse(choice->Whole());
  EXPECT_EQ(whole["message"]["content"], "abc");
  EXPECT_EQ(whole["finish_reason"], "length");
  EXPECT_TRUE(whole["logprobs"].is_null());
}

TEST(ChatChoice, LogprobsOfTextThatIsHeldBackComeLater) {
  const auto choice = MakeChatChoice(
      {.streams = true,
       .logprobs = true,
       .reader = {.tool_form = ToolForm::kHermes, .functions = CallableFunctions::Named({"add"})}});
  v1::OutputChunk held = Chunk("<tool");
  held.add_logprobs()->set_token_bytes("<tool");
  ChunkWriter chunks("", "\n");
  choice->Output(held, &chunks);
  EXPECT_EQ(chunks.text(), "");
  v1::OutputChunk next = Chunk("x");
  next.add_logprobs()->set_token_bytes("x");
  choice->Output(next, &chunks);
  const Json delta = Json::parse(chunks.text());
  EXPECT_EQ(delta["delta"]["content"], "<toolx");
  EXPECT_EQ(delta["logprobs"]["content"].size(), 2U);
}

}  // namespace
}  // namespace retroinfer::gateway
