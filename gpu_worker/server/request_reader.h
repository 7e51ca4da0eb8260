// Turns what clients send into what the engine takes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gpu_worker/assembly/served_model.h"
#include "gpu_worker/server/caller.h"
#include "gpu_worker/server/conversation_prompt.h"
#include "gpu_worker/server/generate_call.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer {

// Applies defaults, tokenizes, and checks everything that generation.proto promises about requests.
// The engine checks again what it depends on.
//
// Threads: immutable; any thread.
class RequestReader {
 public:
  static constexpr int kMaxContinuations = 16;
  static constexpr int kMaxScored = 64;  // continuations of a call of Score
  // Requests of the engine that a call makes: Score's prompt, those that share a sequence, others.
  static constexpr int kMaxEngineRequests = kMaxContinuations + 2;
  static constexpr size_t kMaxRequestIdBytes = 128;
  static constexpr size_t kMaxSaltBytes = 256;
  // Of text to be tokenized only, which may be longer than any prompt: it is divided later.
  static constexpr size_t kMaxTokenizedBytes = size_t{16} << 20;

  // REQUIRES: `model` outlives this.
  RequestReader(const ServedModel& model, int64_t max_model_len)
      : model_(model), max_model_len_(max_model_len) {}

  // Cost: tokenizes; about a second for 5 MB of text.
  // `caller`: whose limits and share hold.
  absl::StatusOr<GenerateCall::Submission> Read(
      const generation::v1::GenerateRequest& request, absl::Time call_deadline,
      const Caller& caller = std::make_shared<const common::Tenant>()) const;
  // `engine` says which continuations one of its requests can measure.
  absl::StatusOr<GenerateCall::Submission> ReadScore(
      const generation::v1::ScoreRequest& request, absl::Time call_deadline, const Engine& engine,
      const Caller& caller = std::make_shared<const common::Tenant>()) const;
  absl::StatusOr<std::vector<int32_t>> Tokenize(
      const generation::v1::TokenizeRequest& request) const;
  absl::StatusOr<std::string> Detokenize(const generation::v1::DetokenizeRequest& request) const;

  // Returns what a request without options gets, as far as it differs from the defaults that
  // generation.proto writes.
  generation::v1::SamplingOptions DefaultSampling() const;
  generation::v1::AttentionOptions DefaultAttention() const;

 private:
  // For GenerateRequest and ScoreRequest.
  template <typename Request>
  absl::StatusOr<ConversationPrompt> ReadPrompt(const Request& request) const;
  absl::StatusOr<std::vector<std::vector<int32_t>>> ReadContinuations(
      const generation::v1::ScoreRequest& request) const;
  absl::StatusOr<std::vector<int32_t>> EncodeText(std::string_view text,
                                                  const EncodeOptions& options) const;
  absl::StatusOr<ConversationPrompt> EncodeMessages(const generation::v1::Messages& messages) const;
  absl::StatusOr<SamplingParams> ReadSampling(const generation::v1::SamplingOptions& options,
                                              int64_t prompt_tokens) const;
  // `prompt_tokens`: chooses among measured ratios, if the request names none.
  absl::StatusOr<AttentionSettings> ReadAttention(const generation::v1::AttentionOptions& options,
                                                  int64_t prompt_tokens) const;
  // Refuses, before any work, what cannot have at most max_model_len_ tokens, unless it has
  // `allowed_bytes` at most.
  absl::Status CheckLength(size_t text_bytes, size_t allowed_bytes = 0) const;
  absl::Status CheckCount(size_t num_tokens) const;

  const ServedModel& model_;
  const int64_t max_model_len_;
};

}  // namespace retroinfer
