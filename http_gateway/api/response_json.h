// The JSON of answers, as OpenAI's clients read it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::gateway {

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;            // of the prompt
  int64_t cached_generated_tokens = 0;  // of those, of KV that is not exact
  int64_t completion_tokens = 0;
  int64_t accepted_prediction_tokens = 0;  // of those, drafted ones
  int64_t rejected_prediction_tokens = 0;  // tried beside them
  // Share of the KV that decode steps read; the mean over continuations by their tokens.
  double kv_read_ratio = 0;
  // As generation.proto has it: the mean as above, and the largest; none where no continuation
  // tells.
  std::optional<generation::v1::UnseenMass> unseen_mass;
  // Each the longest among the continuations.
  absl::Duration queue, prefill, first_token, decode;
};

// Sums over the continuations of a request.
class UsageSum {
 public:
  // `counts_prompt`: false for further continuations of a prompt.
  void Add(const generation::v1::Finished& finished, bool counts_prompt);
  Usage Total() const;

 private:
  Usage sum_;
  double weighted_ratio_ = 0;
  double weighted_mass_ = 0;
  int64_t mass_tokens_ = 0;  // of continuations that tell their mass
};

std::string UsageJson(const Usage& usage);

// What all chunks of an answer begin with, up to and without the list of choices.
struct AnswerHead {
  std::string id;
  std::string object;  // "chat.completion.chunk", ...
  int64_t created = 0;
  std::string model;

  std::string Json() const;  // {"id":...,"model":"..."   (no end)
};

// "stop", "length" or, for what is neither, "".
std::string_view FinishReasonText(generation::v1::FinishReason reason);

// What ended an answer beside its reason: the stop string, the token, "timeout", or null. JSON.
std::string StopReasonJson(const generation::v1::Finished& finished);

// A token's text, or "bytes:\xe2\x80" where it is a part of a character only.
std::string TokenText(std::string_view bytes);

// The fewest digits that read as the same float again; -9999.0 for minus infinity, a token that
// cannot come, since JSON has no infinity.
std::string LogprobJson(float logprob);

// Entries of logprobs.content of chat, behind each other with commas.
std::string ChatLogprobs(const generation::v1::OutputChunk& chunk);

// The lists of logprobs of completions; grows with each chunk.
class CompletionLogprobs {
 public:
  void Append(const generation::v1::OutputChunk& chunk);
  // Tokens of a prompt, in order, of which `text` is the whole text. Their offsets are where they
  // are in it; one that is not there (the tokenizer's begin-of-text) takes no room.
  void AppendPrompt(const generation::v1::ScoredTokens& tokens, std::string_view text);
  size_t bytes() const {
    return tokens_.size() + logprobs_.size() + alternatives_.size() + offsets_.size();
  }
  // Appends the entries of `behind`.
  void AppendAll(const CompletionLogprobs& behind);
  bool empty() const { return tokens_.empty(); }
  // Returns the object and forgets its entries; text offsets of later ones go on from there.
  std::string Take();
  // Counts the characters of an echoed prompt, which come before the first token.
  void SkipText(std::string_view text);

 private:
  void Add(std::string_view token_bytes, const std::string& logprob,
           const google::protobuf::RepeatedPtrField<generation::v1::TokenLogprob>& alternatives);

  std::string tokens_, logprobs_, alternatives_, offsets_;
  int64_t offset_ = 0;
  size_t prompt_at_ = 0;  // bytes of the prompt's text that have their tokens
};

// An element of tool_calls. `index`: written where it is not negative, as chunks need it.
std::string ToolCallJson(std::string_view id, std::string_view name, std::string_view arguments,
                         int index);

}  // namespace retroinfer::gateway
