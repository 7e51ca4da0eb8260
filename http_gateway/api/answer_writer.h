// An answer on its way from the worker's events to what the client reads.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "http_gateway/api/api_error.h"
#include "http_gateway/api/response_json.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::gateway {

// One for each form of answers (completions and chats, responses, messages). Of an answer that is
// streamed each call may add events to unsent(); of one that is not all is kept for Whole().
// `choice` counts continuations, those of the first prompt first.
//
// Threads: one at a time.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // What comes before the first output. To be called first.
  virtual void Begin() = 0;
  virtual void Progress(size_t /*choice*/, const generation::v1::PrefillProgress& /*progress*/) {}
  // Scores of the choice's prompt, in order. Without a stream they may come behind output.
  virtual void Prompt(size_t /*choice*/, const generation::v1::ScoredTokens& /*tokens*/) {}
  virtual void Output(size_t choice, const generation::v1::OutputChunk& chunk) = 0;
  virtual void Finish(size_t choice, const generation::v1::Finished& finished) = 0;

  // The end of a stream. REQUIRES: all choices are finished.
  virtual void End(const Usage& usage) = 0;
  // The end of a stream that fails.
  virtual void Fail(const ApiError& error) = 0;
  // Something that means nothing, for those who give a silent stream up.
  virtual void KeepAlive() = 0;
  // The answer as one JSON text. REQUIRES: it is no stream; all choices are finished.
  virtual std::string Whole(const Usage& usage) const = 0;

  // Bytes of log-probabilities that are kept for Whole().
  virtual size_t logprobs_bytes() const { return 0; }
  virtual std::string_view unsent() const = 0;
  virtual void ClearUnsent() = 0;
};

}  // namespace retroinfer::gateway
