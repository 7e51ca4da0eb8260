#include "http_gateway/api/responses_writer.h"

#include <gtest/gtest.h>

#include "absl/strings/str_replace.h"
#include "tests/http_gateway/event_stream.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;
using test_support::EventsOf;
using test_support::NamesOf;
using test_support::StreamEvent;

std::unique_ptr<AnswerWriter> Make(bool streams) {
  ResponsesOptions options;
  options.head = {"resp_1", "", 7, "m"};
  options.streams = streams;
  options.reader.tool_form = ToolForm::kHermes;
  options.reader.functions = CallableFunctions::Named({"f"});
  options.reader.splitter.emplace(false);
  options.echo = R"("tools":[],"tool_choice":"auto")";
  return MakeResponsesWriter(std::move(options));
}

void Write(AnswerWriter& writer, const std::vector<const char*>& texts, v1::FinishReason reason) {
  writer.Begin();
  v1::OutputChunk chunk;
  for (const char* const text : texts) {
    chunk.set_text(text);
    chunk.set_completion_tokens(chunk.completion_tokens() + 1);
    writer.Output(0, chunk);
  }
  v1::Finished finished;
  finished.set_reason(reason);
  writer.Finish(0, finished);
}

const std::vector<const char*> kAnswer = {"<think>so",
                                          " it",
                                          "</think>",
                                          "He",
                                          "llo",
                                          R"(<tool_call>{"name": "f", )",
                                          R"("arguments": {"a": 1}}</tool_call>)"};
constexpr Usage kUsage = {.prompt_tokens = 10, .cached_tokens = 4, .completion_tokens = 7};

TEST(ResponsesWriter, StreamsTypedEventsThatAreNumbered) {
  const auto writer = Make(true);
  Write(*writer, kAnswer, v1::FINISH_REASON_STOP);
  writer->End(kUsage);
  const std::vector<StreamEvent> events = EventsOf(std::string(writer->unsent()));
  EXPECT_EQ(absl::StrReplaceAll(NamesOf(events), {{"response.", ""}}),
            "created in_progress "
            "output_item.added content_part.added reasoning_text.delta+ reasoning_text.done "
            "content_part.done output_item.done "
            "output_item.added content_part.added output_text.delta+ output_text.done "
            "content_part.done output_item.done "
            "output_item.added function_call_arguments.delta function_call_arguments.done "
            "output_item.done completed ");
  std::string text, arguments;
  for (size_t i = 0; i < events.size(); ++i) {
    const Json& data = events[i].data;
    EXPECT_EQ(data["type"], events[i].name);
    EXPECT_EQ(data["sequence_number"], i);
    if (data["type"] == "response.output_text.delta") text += data["delta"];
    if (data["type"] == "response.function_call_arguments.delta") arguments += data["delta"];
    if (data.contains("item_id")) {
      EXPECT_TRUE(data["output_index"].is_number());
    }
  }
  EXPECT_EQ(text, "Hello");
  EXPECT_EQ(Json::parse(arguments)["a"], 1);
  EXPECT_TRUE(events[0].data["response"]["usage"].is_null());
  EXPECT_EQ(events[0].data["response"]["status"], "in_progress");
  EXPECT_EQ(events[0].data["response"]["tool_choice"], "auto");
}

TEST(ResponsesWriter, TheEndHasTheWholeResponse) {
  const auto stream = Make(true);
  Write(*stream, kAnswer, v1::FINISH_REASON_STOP);
  stream->End(kUsage);
  const Json last = EventsOf(std::string(stream->unsent())).back().data["response"];
  const auto writer = Make(false);
  Write(*writer, kAnswer, v1::FINISH_REASON_STOP);
  EXPECT_EQ(writer->unsent(), "");
  for (const Json& response : {last, Json::parse(writer->Whole(kUsage))}) {
    EXPECT_EQ(response["id"], "resp_1");
    EXPECT_EQ(response["object"], "response");
    EXPECT_EQ(response["status"], "completed");
    EXPECT_TRUE(response["error"].is_null() && response["incomplete_details"].is_null());
    const Json& output = response["output"];
    ASSERT_EQ(output.size(), 3U);
    EXPECT_EQ(output[0]["type"], "reasoning");
    EXPECT_EQ(output[0]["content"][0]["text"], "so it");
    EXPECT_EQ(output[1]["role"], "assistant");
    EXPECT_EQ(output[1]["status"], "completed");
    EXPECT_EQ(output[1]["content"][0]["text"], "Hello");
    EXPECT_EQ(output[2]["type"], "function_call");
    EXPECT_EQ(output[2]["name"], "f");
    EXPECT_EQ(Json::parse(output[2]["arguments"].get<std::string>())["a"], 1);
    EXPECT_FALSE(output[2]["call_id"].get<std::string>().empty());
    EXPECT_EQ(response["usage"], Json::parse(R"({"input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 3}, "total_tokens": 17})"));
  }
}

TEST(ResponsesWriter, AnAnswerThatIsCutIsIncomplete) {
  const auto writer = Make(true);
  Write(*writer, {"one", " two"}, v1::FINISH_REASON_LENGTH);
  writer->End(kUsage);
  const std::vector<StreamEvent> events = EventsOf(std::string(writer->unsent()));
  EXPECT_EQ(events.back().name, "response.incomplete");
  const Json& response = events.back().data["response"];
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
  const auto late = Make(false);
  Write(*late, {"one"}, v1::FINISH_REASON_DEADLINE);
  EXPECT_EQ(Json::parse(late->Whole(kUsage))["incomplete_details"]["stop_reason"], "timeout");
}

TEST(ResponsesWriter, FailsWithAResponse) {
  const auto writer = Make(true);
  writer->Begin();
  writer->KeepAlive();
  ApiError error;
  error.code = "context_length_exceeded";
  error.message = "too \"long\"";
  writer->Fail(error);
  const std::vector<StreamEvent> events = EventsOf(std::string(writer->unsent()));
  EXPECT_EQ(NamesOf(events), "response.created response.in_progress response.failed ");
  const Json& response = events.back().data["response"];
  EXPECT_EQ(response["status"], "failed");
  EXPECT_EQ(response["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(response["error"]["message"], "too \"long\"");
}

}  // namespace
}  // namespace retroinfer::gateway
