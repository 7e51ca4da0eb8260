// Turns the sampled tokens of one request into the text that its client gets, and says when a stop
// string, stop token or end-of-sequence token has ended it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gpu_worker/engine/generation.h"
#include "gpu_worker/engine/stop_matcher.h"
#include "gpu_worker/engine/stop_tokens.h"
#include "text/tokenizer/incremental_detokenizer.h"

namespace retroinfer {

// Text comes in whole characters and is held back while it may be the beginning of a stop string;
// tokens come at once. The text ends before the stop string or token that ended it, unless
// include_stop_str_in_output is set; its tokens are in the output in any case.
//
// With min_tokens = m, the first m tokens are never an end: an end-of-sequence or stop token among
// them is an ordinary token (the sampler bans them), and so is a stop string that is complete
// before the m-th. max_tokens is the caller's business.
//
// Threads: one at a time.
class OutputProcessor {
 public:
  // REQUIRES: `sampling` is valid (ValidateSampling); `tokenizer` outlives this.
  OutputProcessor(const Tokenizer& tokenizer, const SamplingParams& sampling,
                  std::span<const int32_t> eos_token_ids);

  // Adds the next token. Returns true if it ends the request.
  //
  // REQUIRES: no earlier call returned true; Flush() was not called.
  bool Append(const OutputToken& token);

  // Releases the text that was held back, if the request ended for another reason than a stop
  // string. The bytes of an unfinished character become U+FFFD.
  void Flush();

  // Returns what has been added since the last call.
  OutputDelta TakeDelta();

  const std::string& matched_stop() const { return matched_stop_; }  // empty: none
  int32_t matched_token() const { return stop_tokens_.matched(); }   // -1: none

 private:
  const std::vector<std::string> stop_;
  StopTokens stop_tokens_;
  const int64_t min_tokens_;
  const bool include_stop_;
  IncrementalDetokenizer detokenizer_;
  StopMatcher matcher_;
  OutputDelta delta_;
  std::string matched_stop_;
};

}  // namespace retroinfer
