#include <gtest/gtest.h>

#include "http_gateway/api/choice.h"
#include "http_gateway/json/strict_json.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

v1::OutputChunk Chunk(const std::string& text, float logprob) {
  v1::OutputChunk chunk;
  chunk.set_text(text);
  v1::PositionLogprobs& position = *chunk.add_logprobs();
  position.set_logprob(logprob);
  position.set_token_bytes(text);
  v1::TokenLogprob& other = *position.add_alternatives();
  other.set_token_bytes("other");
  other.set_logprob(-1);
  return chunk;
}

v1::Finished Matched() {
  v1::Finished finished;
  finished.set_reason(v1::FINISH_REASON_STOP);
  finished.set_matched_stop("END");
  return finished;
}

TEST(CompletionChoice, Streams) {
  const auto choice = MakeCompletionChoice({.index = 1, .streams = true, .echo = "Once"});
  ChunkWriter chunks("", "\n");
  choice->Begin(&chunks);
  const Json first = Json::parse(chunks.text());
  EXPECT_EQ(first["text"], "Once");
  chunks.Clear();
  choice->Output(Chunk(" more", -0.5), &chunks);
  const Json output = Json::parse(chunks.text());
  EXPECT_EQ(output["text"], " more");
  EXPECT_EQ(output["index"], 1);
  EXPECT_TRUE(output["logprobs"].is_null() && output["finish_reason"].is_null());
  chunks.Clear();
  choice->Finish(Matched(), &chunks);
  const Json last = Json::parse(chunks.text());
  EXPECT_EQ(last["text"], "");
  EXPECT_EQ(last["finish_reason"], "stop");
  EXPECT_EQ(last["stop_reason"], "END");
}

TEST(CompletionChoice, TheWholeHasEchoAndLogprobs) {
  const auto choice = MakeCompletionChoice({.logprobs = true, .echo = "\u00e9:"});
  ChunkWriter chunks("", "\n");
  choice->Begin(&chunks);
  choice->Output(Chunk("ab", -0.5), &chunks);
  choice->Output(Chunk("c", -0.25), &chunks);
  choice->Finish(Matched(), &chunks);
  EXPECT_EQ(chunks.text(), "");
  const Json whole = Json::parse(choice->Whole());
  EXPECT_EQ(whole["text"], "\u00e9:abc");
  EXPECT_EQ(whole["logprobs"]["tokens"].dump(), R"(["ab","c"])");
  EXPECT_EQ(whole["logprobs"]["token_logprobs"].dump(), "[-0.5,-0.25]");
  EXPECT_EQ(whole["logprobs"]["text_offset"].dump(), "[2,4]");
  EXPECT_EQ(whole["logprobs"]["top_logprobs"][0].dump(), R"({"other":-1})");
}

TEST(CompletionChoice, AChunkWithoutTextOrLogprobsIsNotSent) {
  const auto choice = MakeCompletionChoice({.streams = true});
  v1::OutputChunk chunk;
  chunk.add_token_ids(5);
  ChunkWriter chunks("", "\n");
  choice->Output(chunk, &chunks);
  EXPECT_EQ(chunks.text(), "");
}

}  // namespace
}  // namespace retroinfer::gateway
