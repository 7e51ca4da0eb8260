#include "http_gateway/api/choices_writer.h"

#include <gtest/gtest.h>

#include "http_gateway/json/strict_json.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

std::unique_ptr<AnswerWriter> Make(bool streams, ChoicesOptions options) {
  options.head = {"id-1", "text_completion", 7, "m"};
  std::vector<std::unique_ptr<Choice>> choices;
  for (int i = 0; i < 2; ++i) {
    choices.push_back(MakeCompletionChoice({.index = i, .streams = streams}));
  }
  return MakeChoicesWriter(options, std::move(choices));
}

v1::OutputChunk Text(const char* text) {
  v1::OutputChunk chunk;
  chunk.set_text(text);
  return chunk;
}

v1::Finished Stop() {
  v1::Finished finished;
  finished.set_reason(v1::FINISH_REASON_STOP);
  return finished;
}

// What has been written since the last call.
std::string Take(AnswerWriter& writer) {
  std::string text(writer.unsent());
  writer.ClearUnsent();
  return text;
}

Json DataOf(const std::string& event) {
  EXPECT_TRUE(event.starts_with("data: ") && event.ends_with("}\n\n")) << event;
  return Json::parse(event.substr(6));
}

TEST(ChoicesWriter, WritesChunksAndTheirEnd) {
  const auto writer = Make(true, {.head = {}, .include_usage = true, .return_progress = true});
  writer->Begin();
  EXPECT_EQ(Take(*writer), "");
  v1::PrefillProgress progress;
  progress.set_total_tokens(9);
  writer->Progress(1, progress);
  const Json shown = DataOf(Take(*writer));
  EXPECT_EQ(shown["progress"]["total_tokens"], 9);
  EXPECT_EQ(shown["progress"]["index"], 1);
  writer->Output(1, Text("a"));
  const Json chunk = DataOf(Take(*writer));
  EXPECT_EQ(chunk["id"], "id-1");
  EXPECT_EQ(chunk["choices"][0]["index"], 1);
  EXPECT_EQ(chunk["choices"][0]["text"], "a");
  EXPECT_TRUE(chunk["usage"].is_null());
  writer->KeepAlive();
  EXPECT_EQ(Take(*writer), ": keep-alive\n\n");
  writer->Finish(0, Stop());
  writer->Finish(1, Stop());
  Take(*writer);
  writer->End({.prompt_tokens = 3, .completion_tokens = 1});
  const std::string end = Take(*writer);
  const size_t done = end.find("data: [DONE]\n\n");
  ASSERT_NE(done, std::string::npos);
  EXPECT_EQ(DataOf(end.substr(0, done))["usage"]["prompt_tokens"], 3);
}

TEST(ChoicesWriter, TellsNoProgressUnasked) {
  const auto writer = Make(true, {});
  writer->Progress(0, {});
  EXPECT_EQ(Take(*writer), "");
  ApiError error;
  error.message = "m";
  writer->Fail(error);
  EXPECT_EQ(DataOf(Take(*writer))["error"]["message"], "m");
}

TEST(ChoicesWriter, WritesOneObject) {
  const auto writer = Make(false, {});
  writer->Begin();
  writer->Output(0, Text("a"));
  writer->Output(1, Text("b"));
  writer->Finish(0, Stop());
  writer->Finish(1, Stop());
  EXPECT_EQ(Take(*writer), "");
  const Json whole = Json::parse(writer->Whole({.prompt_tokens = 3, .completion_tokens = 2}));
  EXPECT_EQ(whole["choices"][1]["text"], "b");
  EXPECT_EQ(whole["usage"]["total_tokens"], 5);
  EXPECT_EQ(writer->logprobs_bytes(), 0U);
}

}  // namespace
}  // namespace retroinfer::gateway
