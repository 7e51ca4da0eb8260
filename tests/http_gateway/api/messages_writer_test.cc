#include "http_gateway/api/messages_writer.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/http_gateway/event_stream.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;
using test_support::EventsOf;
using test_support::NamesOf;
using test_support::StreamEvent;

std::unique_ptr<AnswerWriter> Make(bool streams) {
  MessagesOptions options;
  options.head = {"msg_1", "", 7, "m"};
  options.streams = streams;
  options.reader.tool_form = ToolForm::kHermes;
  options.reader.functions = CallableFunctions::Named({"f"});
  options.reader.splitter.emplace(false);
  return MakeMessagesWriter(std::move(options));
}

v1::Finished Finished(v1::FinishReason reason, const char* stop = nullptr) {
  v1::Finished finished;
  finished.set_reason(reason);
  if (stop != nullptr) finished.set_matched_stop(stop);
  return finished;
}

void Write(AnswerWriter& writer, const std::vector<const char*>& texts,
           const v1::Finished& finished) {
  writer.Begin();
  v1::OutputChunk chunk;
  chunk.set_prompt_tokens(10);
  chunk.set_cached_tokens(4);
  for (const char* const text : texts) {
    chunk.set_text(text);
    writer.Output(0, chunk);
  }
  writer.Finish(0, finished);
}

const std::vector<const char*> kAnswer = {"<think>so",
                                          " it</think>",
                                          "He",
                                          "llo",
                                          R"(<tool_call>{"name": "f", )",
                                          R"("arguments": {"a": 1}}</tool_call>)"};
constexpr Usage kUsage = {.prompt_tokens = 10, .cached_tokens = 4, .completion_tokens = 7};

TEST(MessagesWriter, StreamsBlocks) {
  const auto writer = Make(true);
  Write(*writer, kAnswer, Finished(v1::FINISH_REASON_STOP));
  writer->End(kUsage);
  const std::vector<StreamEvent> events = EventsOf(std::string(writer->unsent()));
  EXPECT_EQ(NamesOf(events),
            "message_start content_block_start content_block_delta+ content_block_stop "
            "content_block_start content_block_delta+ content_block_stop "
            "content_block_start content_block_delta content_block_stop "
            "message_delta message_stop ");
  std::string deltas;
  for (const StreamEvent& event : events) {
    EXPECT_EQ(event.data["type"], event.name);
    if (event.name != "content_block_delta") continue;
    const Json& delta = event.data["delta"];
    absl::StrAppend(&deltas, event.data["index"].dump(), delta["type"].get<std::string>(), " ");
  }
  EXPECT_EQ(deltas,
            "0thinking_delta 0thinking_delta 0signature_delta 1text_delta 1text_delta "
            "2input_json_delta ");
  const Json& start = events.front().data["message"];
  EXPECT_EQ(start["role"], "assistant");
  EXPECT_EQ(start["model"], "m");
  EXPECT_TRUE(start["content"].empty() && start["stop_reason"].is_null());
  EXPECT_EQ(start["usage"]["input_tokens"], 6);
  EXPECT_EQ(start["usage"]["cache_read_input_tokens"], 4);
  const Json& end = events[events.size() - 2].data;
  EXPECT_EQ(end["delta"]["stop_reason"], "tool_use");
  EXPECT_EQ(end["usage"], Json::parse(R"({"input_tokens": 6, "cache_creation_input_tokens": 0,
      "cache_read_input_tokens": 4, "output_tokens": 7})"));
}

TEST(MessagesWriter, WritesOneMessage) {
  const auto writer = Make(false);
  Write(*writer, kAnswer, Finished(v1::FINISH_REASON_STOP));
  EXPECT_EQ(writer->unsent(), "");
  const Json message = Json::parse(writer->Whole(kUsage));
  EXPECT_EQ(message["id"], "msg_1");
  EXPECT_EQ(message["type"], "message");
  ASSERT_EQ(message["content"].size(), 3U);
  EXPECT_EQ(message["content"][0]["thinking"], "so it");
  EXPECT_TRUE(message["content"][0]["signature"].is_string());
  EXPECT_EQ(message["content"][1]["text"], "Hello");
  EXPECT_EQ(message["content"][2]["type"], "tool_use");
  EXPECT_EQ(message["content"][2]["input"]["a"], 1);
  EXPECT_EQ(message["stop_reason"], "tool_use");
  EXPECT_EQ(message["usage"]["output_tokens"], 7);
}

TEST(MessagesWriter, SaysWhatEndedTheAnswer) {
  const auto end = [](const v1::Finished& finished) {
    const auto writer = Make(false);
    Write(*writer, {"text"}, finished);
    const Json message = Json::parse(writer->Whole(kUsage));
    return absl::StrCat(message["stop_reason"].dump(), message["stop_sequence"].dump());
  };
  EXPECT_EQ(end(Finished(v1::FINISH_REASON_STOP)), "\"end_turn\"null");
  EXPECT_EQ(end(Finished(v1::FINISH_REASON_STOP, "END")), R"("stop_sequence""END")");
  EXPECT_EQ(end(Finished(v1::FINISH_REASON_LENGTH)), "\"max_tokens\"null");
  EXPECT_EQ(end(Finished(v1::FINISH_REASON_DEADLINE)), "\"max_tokens\"null");
}

TEST(MessagesWriter, ACallThatWasCutHasNoInput) {
  const auto writer = Make(false);
  Write(*writer, {R"(<tool_call>{"name": "f", "arguments": {"a": )"},
        Finished(v1::FINISH_REASON_LENGTH));
  const Json message = Json::parse(writer->Whole(kUsage));
  EXPECT_EQ(message["stop_reason"], "max_tokens");
  for (const Json& block : message["content"]) {
    if (block["type"] == "tool_use") {
      EXPECT_EQ(block["input"], Json::object());
    }
  }
}

TEST(MessagesWriter, ASilentStreamStartsWithAPing) {
  const auto writer = Make(true);
  writer->Begin();
  EXPECT_EQ(writer->unsent(), "");
  v1::PrefillProgress progress;
  progress.set_total_tokens(20);
  writer->Progress(0, progress);
  writer->KeepAlive();
  ApiError error;
  error.type = "overloaded_error";
  error.form = ErrorForm::kAnthropic;
  writer->Fail(error);
  const std::vector<StreamEvent> events = EventsOf(std::string(writer->unsent()));
  EXPECT_EQ(NamesOf(events), "message_start ping error ");
  EXPECT_EQ(events[0].data["message"]["usage"]["input_tokens"], 20);
  EXPECT_EQ(events[2].data["error"]["type"], "overloaded_error");
}

}  // namespace
}  // namespace retroinfer::gateway
