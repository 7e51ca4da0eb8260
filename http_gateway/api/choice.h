// One continuation on its way from the worker's events to OpenAI's deltas.
#pragma once

#include <memory>
#include <string>

#include "http_gateway/api/answer_reader.h"
#include "http_gateway/api/chunk_writer.h"
#include "http_gateway/api/response_json.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::gateway {

// Takes events of one continuation. With `streams` each event appends chunks, each with one JSON
// object of `choices`; none if there is nothing to send yet. Without, all of it is kept, and
// Whole() gives the one object of the answer.
//
// Threads: one at a time.
class Choice {
 public:
  virtual ~Choice() = default;
  virtual void Begin(ChunkWriter* chunks) = 0;  // what comes before the first output
  // Scores of the prompt, in order. Without `streams` they may come behind output.
  virtual void Prompt(const generation::v1::ScoredTokens& /*tokens*/, ChunkWriter* /*chunks*/) {}
  virtual void Output(const generation::v1::OutputChunk& chunk, ChunkWriter* chunks) = 0;
  virtual void Finish(const generation::v1::Finished& finished, ChunkWriter* chunks) = 0;
  // The whole choice. REQUIRES: Finish() was called.
  virtual std::string Whole() const = 0;
  // Bytes of log-probabilities that are kept for Whole().
  virtual size_t logprobs_bytes() const { return 0; }
};

struct CompletionChoiceOptions {
  int index = 0;
  bool streams = false;
  bool logprobs = false;
  std::string echo;  // comes before the output: the prompt's whole text
};
std::unique_ptr<Choice> MakeCompletionChoice(CompletionChoiceOptions options);

struct ChatChoiceOptions {
  int index = 0;
  bool streams = false;
  bool logprobs = false;
  AnswerReaderOptions reader;
};
std::unique_ptr<Choice> MakeChatChoice(ChatChoiceOptions options);

}  // namespace retroinfer::gateway
