#include "gpu_worker/server/request_reader.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/clock/steady_now.h"
#include "common/rpc/policy_name.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"
#include "gpu_worker/engine/sampling_validation.h"
#include "gpu_worker/server/constraint_reader.h"
#include "gpu_worker/server/prediction_reader.h"
#include "gpu_worker/server/proto_time.h"
#include "gpu_worker/server/request_choices.h"
#include "gpu_worker/server/special_tokens.h"

namespace retroinfer {
namespace {

namespace v1 = generation::v1;

absl::Status Invalid(std::string_view reason, const std::string& message) {
  return common::WithReason(absl::InvalidArgumentError(message), reason);
}

// Attaches a reason to an error of the tokenizer or the template that has none.
absl::Status BecauseOfInput(absl::Status status) {
  if (!common::ReasonOf(status).reason.empty()) return status;
  return common::WithReason(
      status, absl::IsResourceExhausted(status) ? "REQUEST_TOO_LARGE" : "INVALID_INPUT");
}

// Of the options that GenerateRequest and TokenizeRequest have in common.
template <typename Request>
EncodeOptions EncodeOptionsOf(const Request& request) {
  return {.add_special = !request.has_add_special_tokens() || request.add_special_tokens(),
          .parse_special = request.parse_special()};
}

uint64_t RandomBits() {
  thread_local absl::BitGen random;
  return absl::Uniform<uint64_t>(random);
}

absl::StatusOr<std::string> ReadRequestId(const std::string& id) {
  if (id.empty()) return absl::StrFormat("gen-%016x", RandomBits());
  if (id.size() > RequestReader::kMaxRequestIdBytes) {
    return Invalid("INVALID_REQUEST",
                   absl::StrCat("request_id has ", id.size(), " characters, at most ",
                                RequestReader::kMaxRequestIdBytes, " are allowed"));
  }
  const bool is_clean = std::all_of(id.begin(), id.end(), [](char c) {
    return absl::ascii_isalnum(c) || std::string_view("._:-").find(c) != std::string_view::npos;
  });
  if (is_clean) return id;
  return Invalid("INVALID_REQUEST", "request_id may have the characters A-Z a-z 0-9 . _ : - only");
}

// The earlier of the call's deadline and the request's timeout.
struct Deadline {
  absl::Time time;
  bool is_of_call;
};
template <typename Request>
absl::StatusOr<Deadline> ReadDeadline(const Request& request, absl::Time of_call) {
  if (!request.has_timeout()) return Deadline{of_call, true};
  const google::protobuf::Duration& timeout = request.timeout();
  const bool well_formed = timeout.nanos() >= 0 && timeout.nanos() < 1'000'000'000;
  const absl::Duration duration = GetDuration(timeout);
  if (!well_formed || duration <= absl::ZeroDuration()) {
    return Invalid("INVALID_REQUEST", absl::StrCat("timeout is ", absl::FormatDuration(duration),
                                                   ", it must be more than 0"));
  }
  const absl::Time time = common::SteadyNow() + duration;
  return time < of_call ? Deadline{time, false} : Deadline{of_call, true};
}

absl::Status CheckSalt(std::string_view salt) {
  if (salt.size() <= RequestReader::kMaxSaltBytes) return absl::OkStatus();
  return Invalid("INVALID_REQUEST", absl::StrCat("cache_salt has ", salt.size(), " bytes, at most ",
                                                 RequestReader::kMaxSaltBytes, " are allowed"));
}

// Of a field that is not set: -1.
template <typename Request>
absl::StatusOr<int32_t> ReadPromptLogprobs(const Request& request) {
  if (!request.has_prompt_logprobs()) return -1;
  if (request.prompt_logprobs() >= 0) return request.prompt_logprobs();
  return Invalid("INVALID_SAMPLING", absl::StrCat("prompt_logprobs is ", request.prompt_logprobs(),
                                                  ", it must be in [0, ", kMaxLogprobs, "]"));
}

absl::StatusOr<int> ReadNumber(const v1::SamplingOptions& options) {
  const int n = options.has_n() ? options.n() : 1;
  if (n >= 1 && n <= RequestReader::kMaxContinuations) return n;
  return Invalid("INVALID_SAMPLING", absl::StrCat("n is ", n, ", it must be in [1, ",
                                                  RequestReader::kMaxContinuations, "]"));
}

// A request that asks for none has the usual one, or the highest that its key allows.
absl::StatusOr<int32_t> ReadPriority(int32_t priority, const common::Tenant& tenant) {
  if (priority == 0) return std::max(priority, tenant.highest_priority);
  if (priority >= tenant.highest_priority) return priority;
  return common::WithReason(
      absl::PermissionDeniedError(absl::StrCat("priority is ", priority, ", the key of tenant ",
                                               tenant.name, " allows ", tenant.highest_priority,
                                               " and larger numbers, which run later")),
      "PRIORITY_NOT_ALLOWED");
}

}  // namespace

absl::StatusOr<GenerateCall::Submission> RequestReader::Read(const v1::GenerateRequest& request,
                                                             absl::Time call_deadline,
                                                             const Caller& caller) const {
  GenerateCall::Submission submission;
  ASSIGN_OR_RETURN(submission.request_id, ReadRequestId(request.request_id()));
  RETURN_IF_ERROR(CheckSalt(request.cache_salt()));
  GenerationRequest shared;
  ASSIGN_OR_RETURN(shared.tenant, TenantOf(caller, request.tenant()));
  ASSIGN_OR_RETURN(shared.priority, ReadPriority(request.priority(), *shared.tenant));
  ASSIGN_OR_RETURN(const Deadline deadline, ReadDeadline(request, call_deadline));
  ASSIGN_OR_RETURN(const int n, ReadNumber(request.sampling()));
  ASSIGN_OR_RETURN(shared.num_prompt_logprobs, ReadPromptLogprobs(request.sampling()));
  ASSIGN_OR_RETURN(ConversationPrompt prompt, ReadPrompt(request));
  shared.prompt = std::move(prompt.tokens);
  ASSIGN_OR_RETURN(shared.attention, ReadAttention(request.attention(), std::ssize(shared.prompt)));
  submission.earlier_tokens = prompt.earlier_tokens;
  ASSIGN_OR_RETURN(shared.sampling,
                   ReadSampling(request.sampling(), static_cast<int64_t>(shared.prompt.size())));
  ASSIGN_OR_RETURN(shared.sampling.constraint, ReadConstraint(request, shared.sampling, model_));
  shared.cache_salt = SaltOf(*caller, request.cache_salt());
  ASSIGN_OR_RETURN(shared.reuse, ReadReuse(request));
  ASSIGN_OR_RETURN(shared.drafts, ReadSpeculation(request));
  if (shared.drafts) {
    ASSIGN_OR_RETURN(shared.prediction,
                     ReadPrediction(request.prediction(), *model_.tokenizer, max_model_len_));
  }
  shared.open_ended =
      !request.sampling().has_max_tokens() && model_.default_sampling.max_tokens == 0;
  shared.deadline = deadline.time;
  shared.return_progress = true;  // the running counts need it; the queue drops what is not wanted
  RETURN_IF_ERROR(ValidateRequest(shared, model_.vocab_size, max_model_len_));
  if (IsScoring(shared) && n > 1) {
    return Invalid("INVALID_SAMPLING",
                   absl::StrCat("n is ", n, ", it must be 1 where max_tokens is 0"));
  }

  const uint64_t seed = request.sampling().has_seed() ? request.sampling().seed() : RandomBits();
  const std::string scoped_id = ScopedRequestId(*caller, submission.request_id);
  for (int i = 0; i < n; ++i) {
    GenerationRequest& continuation = submission.continuations.emplace_back(shared);
    continuation.request_id = GenerateCall::EngineRequestId(scoped_id, i);
    continuation.sampling.seed = seed + static_cast<uint64_t>(i);
    if (i > 0) continuation.num_prompt_logprobs = -1;  // they have the prompt in common
  }
  submission.want_progress = request.return_progress();
  submission.want_logprobs = request.sampling().has_logprobs();
  submission.tokenizer = model_.tokenizer;
  submission.tenant = caller->name;
  submission.deadline_is_of_call = deadline.is_of_call;
  return submission;
}

template <typename Request>
absl::StatusOr<ConversationPrompt> RequestReader::ReadPrompt(const Request& request) const {
  ConversationPrompt prompt;
  switch (request.input_case()) {
    case Request::kText: {
      if (request.text().empty()) {
        return Invalid("EMPTY_PROMPT", "the text is empty, at least one token is needed");
      }
      RETURN_IF_ERROR(CheckLength(request.text().size()));
      ASSIGN_OR_RETURN(prompt.tokens, EncodeText(request.text(), EncodeOptionsOf(request)));
      return prompt;
    }
    case Request::kTokenIds:
      RETURN_IF_ERROR(CheckCount(static_cast<size_t>(request.token_ids().ids_size())));
      prompt.tokens.assign(request.token_ids().ids().begin(), request.token_ids().ids().end());
      return prompt;
    case Request::kMessages:
      return EncodeMessages(request.messages());
    case Request::INPUT_NOT_SET:
      break;
  }
  return Invalid("EMPTY_PROMPT", "the request has no input: set text, token_ids or messages");
}

absl::StatusOr<std::vector<std::vector<int32_t>>> RequestReader::ReadContinuations(
    const v1::ScoreRequest& request) const {
  if (request.continuations_size() > kMaxScored) {
    return Invalid("INVALID_REQUEST",
                   absl::StrCat("there are ", request.continuations_size(),
                                " continuations, at most ", kMaxScored, " are allowed in a call"));
  }
  if (request.continuations().empty() && !request.has_prompt_logprobs()) {
    return Invalid("INVALID_REQUEST",
                   "nothing is to be scored: set continuations, prompt_logprobs, or both");
  }
  std::vector<std::vector<int32_t>> continuations;
  for (const v1::Continuation& continuation : request.continuations()) {
    std::vector<int32_t>& tokens = continuations.emplace_back();
    if (continuation.has_text()) {
      RETURN_IF_ERROR(CheckLength(continuation.text().size()));
      ASSIGN_OR_RETURN(
          tokens, EncodeText(continuation.text(),
                             {.add_special = false, .parse_special = request.parse_special()}));
    } else {
      RETURN_IF_ERROR(CheckCount(static_cast<size_t>(continuation.token_ids().ids_size())));
      tokens.assign(continuation.token_ids().ids().begin(), continuation.token_ids().ids().end());
    }
  }
  return continuations;
}

namespace {

// Divides what a call of Score asks for into requests of the engine: one for all that it can
// measure together, one for each of the others.
class ScoreDivision {
 public:
  ScoreDivision(const GenerationRequest& shared, const Engine& engine)
      : shared_(shared), engine_(engine) {}

  absl::Status Divide(std::vector<std::vector<int32_t>> continuations) {
    const int32_t prompt_logprobs = std::exchange(shared_.num_prompt_logprobs, -1);
    std::vector<int> together, alone;
    for (size_t i = 0; i < continuations.size(); ++i) {
      const bool fits = engine_.CanMeasureTogether(shared_.attention, std::ssize(shared_.prompt),
                                                   std::ssize(continuations[i]));
      (fits ? together : alone).push_back(static_cast<int>(i));
    }
    if (together.empty() && alone.size() == 1) std::swap(together, alone);
    if (alone.size() > static_cast<size_t>(RequestReader::kMaxContinuations)) {
      return Invalid("INVALID_REQUEST",
                     absl::StrCat(alone.size(),
                                  " continuations are too long to share one sequence "
                                  "under this attention policy, at most ",
                                  RequestReader::kMaxContinuations,
                                  " such are allowed in a call: divide them, or use policy full"));
    }
    // A prompt that is measured is not found in the cache: it has a request of its own where others
    // look for it there.
    const bool is_apart = prompt_logprobs >= 0 && (together.empty() || !alone.empty());
    if (is_apart) Add({}, prompt_logprobs, continuations);
    if (!together.empty()) Add(together, is_apart ? -1 : prompt_logprobs, continuations);
    for (const int i : alone) Add({i}, -1, continuations);
    return absl::OkStatus();
  }

  std::vector<GenerationRequest> requests;
  std::vector<std::vector<int>> numbers;

 private:
  void Add(const std::vector<int>& which, int32_t prompt_logprobs,
           std::vector<std::vector<int32_t>>& continuations) {
    GenerationRequest& request = requests.emplace_back(shared_);
    request.num_prompt_logprobs = prompt_logprobs;
    size_t longest = 0;
    for (const int i : which) {
      std::vector<int32_t>& tokens = continuations[static_cast<size_t>(i)];
      longest = std::max(longest, tokens.size());
      request.continuations.push_back(std::move(tokens));
    }
    constexpr size_t kMost = std::numeric_limits<int32_t>::max();
    request.sampling.max_tokens = static_cast<int32_t>(std::min(longest, kMost));
    numbers.push_back(which);
  }

  GenerationRequest shared_;
  const Engine& engine_;
};

}  // namespace

absl::StatusOr<GenerateCall::Submission> RequestReader::ReadScore(const v1::ScoreRequest& request,
                                                                  absl::Time call_deadline,
                                                                  const Engine& engine,
                                                                  const Caller& caller) const {
  GenerateCall::Submission submission;
  ASSIGN_OR_RETURN(submission.request_id, ReadRequestId(request.request_id()));
  RETURN_IF_ERROR(CheckSalt(request.cache_salt()));
  GenerationRequest shared;
  shared.tenant = caller;
  ASSIGN_OR_RETURN(shared.priority, ReadPriority(request.priority(), *caller));
  ASSIGN_OR_RETURN(const Deadline deadline, ReadDeadline(request, call_deadline));
  ASSIGN_OR_RETURN(shared.num_prompt_logprobs, ReadPromptLogprobs(request));
  ASSIGN_OR_RETURN(auto continuations, ReadContinuations(request));
  ASSIGN_OR_RETURN(ConversationPrompt prompt, ReadPrompt(request));
  shared.prompt = std::move(prompt.tokens);
  ASSIGN_OR_RETURN(shared.attention, ReadAttention(request.attention(), std::ssize(shared.prompt)));
  if (request.has_logprobs() && request.logprobs() < 0) {
    return Invalid("INVALID_SAMPLING", absl::StrCat("logprobs is ", request.logprobs(),
                                                    ", it must be in [0, ", kMaxLogprobs, "]"));
  }
  shared.sampling.temperature = 0;
  shared.sampling.num_logprobs = request.logprobs();
  shared.cache_salt = SaltOf(*caller, request.cache_salt());
  shared.deadline = deadline.time;
  shared.return_progress = true;  // as in Read()
  if (shared.prompt.empty()) {    // before the engine is asked about it
    return Invalid("EMPTY_PROMPT", "the context is empty, at least one token is needed");
  }
  ScoreDivision division(shared, engine);
  RETURN_IF_ERROR(division.Divide(std::move(continuations)));
  const std::string scoped_id = ScopedRequestId(*caller, submission.request_id);
  for (size_t i = 0; i < division.requests.size(); ++i) {
    GenerationRequest& one = division.requests[i];
    one.request_id = GenerateCall::EngineRequestId(scoped_id, static_cast<int>(i));
    RETURN_IF_ERROR(ValidateRequest(one, model_.vocab_size, max_model_len_));
  }
  submission.continuations = std::move(division.requests);
  submission.scored = std::move(division.numbers);
  submission.want_progress = request.return_progress();
  submission.want_logprobs = true;
  submission.tokenizer = model_.tokenizer;
  submission.tenant = caller->name;
  submission.deadline_is_of_call = deadline.is_of_call;
  return submission;
}

absl::Status RequestReader::CheckLength(size_t text_bytes, size_t allowed_bytes) const {
  const size_t bytes_max =
      std::max(allowed_bytes, model_.tokenizer->TextBytesMax(static_cast<size_t>(max_model_len_)));
  if (text_bytes <= bytes_max) return absl::OkStatus();
  return common::WithReason(
      absl::InvalidArgumentError(absl::StrCat(
          "The prompt is too long: this model's maximum context length is ", max_model_len_,
          " tokens, which have at most ", bytes_max, " bytes. However, you sent a text of ",
          text_bytes, " bytes. Shorten the prompt.")),
      "CONTEXT_TOO_LONG",
      {{"prompt_bytes", absl::StrCat(text_bytes)},
       {"max_model_len", absl::StrCat(max_model_len_)}});
}

absl::Status RequestReader::CheckCount(size_t num_tokens) const {
  if (num_tokens <= static_cast<size_t>(max_model_len_)) return absl::OkStatus();
  return common::WithReason(
      absl::InvalidArgumentError(absl::StrCat(
          "The prompt is too long: this model's maximum context length is ", max_model_len_,
          " tokens. However, you sent ", num_tokens, " token ids. Send fewer.")),
      "CONTEXT_TOO_LONG",
      {{"prompt_tokens", absl::StrCat(num_tokens)},
       {"max_model_len", absl::StrCat(max_model_len_)}});
}

absl::StatusOr<std::vector<int32_t>> RequestReader::EncodeText(std::string_view text,
                                                               const EncodeOptions& options) const {
  auto tokens = model_.tokenizer->Encode(text, options);
  if (!tokens.ok()) return BecauseOfInput(tokens.status());
  return tokens;
}

absl::StatusOr<ConversationPrompt> RequestReader::EncodeMessages(
    const v1::Messages& messages) const {
  RETURN_IF_ERROR(CheckLength(ConversationBytes(messages)));
  auto prompt = EncodeConversation(*model_.chat_template, messages);
  if (absl::IsFailedPrecondition(prompt.status())) return prompt;
  if (!prompt.ok()) return BecauseOfInput(prompt.status());
  if (prompt->tokens.empty()) {
    return Invalid("EMPTY_PROMPT",
                   "the chat template makes no token of these messages, at least one is needed");
  }
  return prompt;
}

absl::StatusOr<SamplingParams> RequestReader::ReadSampling(const v1::SamplingOptions& options,
                                                           int64_t prompt_tokens) const {
  SamplingParams sampling = model_.default_sampling;
  if (options.has_temperature()) sampling.temperature = options.temperature();
  if (options.has_top_p()) sampling.top_p = options.top_p();
  if (options.has_top_k()) sampling.top_k = options.top_k();
  if (options.has_min_p()) sampling.min_p = options.min_p();
  if (options.has_repetition_penalty()) sampling.repetition_penalty = options.repetition_penalty();
  if (options.has_frequency_penalty()) sampling.frequency_penalty = options.frequency_penalty();
  if (options.has_presence_penalty()) sampling.presence_penalty = options.presence_penalty();
  if (options.has_max_tokens()) {
    sampling.max_tokens = options.max_tokens();
  } else {
    // At least 1, so that a prompt that leaves no room is refused by its length.
    const int64_t room = std::max<int64_t>(max_model_len_ - prompt_tokens, 1);
    const bool is_limited = sampling.max_tokens != 0 && sampling.max_tokens < room;
    if (!is_limited) sampling.max_tokens = static_cast<int32_t>(room);
  }
  if (options.has_min_tokens()) sampling.min_tokens = options.min_tokens();
  sampling.stop.assign(options.stop().begin(), options.stop().end());
  sampling.stop_token_ids.assign(options.stop_token_ids().begin(), options.stop_token_ids().end());
  if (options.has_ignore_eos()) sampling.ignore_eos = options.ignore_eos();
  RETURN_IF_ERROR(ReadSpecialTokens(*model_.tokenizer, options, &sampling));
  if (options.has_include_stop_str_in_output()) {
    sampling.include_stop_str_in_output = options.include_stop_str_in_output();
  }
  sampling.num_logprobs = -1;
  if (options.has_logprobs()) {
    if (options.logprobs() < 0) {
      return Invalid("INVALID_SAMPLING", absl::StrCat("logprobs is ", options.logprobs(),
                                                      ", it must be in [0, ", kMaxLogprobs, "]"));
    }
    sampling.num_logprobs = options.logprobs();
  }
  if (options.logit_bias().size() > kMaxLogitBiases) {  // before it is copied
    return Invalid("INVALID_SAMPLING",
                   absl::StrCat("logit_bias has ", options.logit_bias().size(),
                                " entries, at most ", kMaxLogitBiases, " are allowed"));
  }
  sampling.logit_bias = {options.logit_bias().begin(), options.logit_bias().end()};
  // None at all make sense where the prompt is measured.
  RETURN_IF_ERROR(
      ValidateSampling(sampling, model_.vocab_size, options.has_prompt_logprobs() ? 0 : 1));
  return sampling;
}

absl::StatusOr<AttentionSettings> RequestReader::ReadAttention(const v1::AttentionOptions& options,
                                                               int64_t prompt_tokens) const {
  AttentionSettings attention = model_.AttentionFor(prompt_tokens);
  if (options.policy() != v1::ATTENTION_POLICY_UNSPECIFIED) {
    const std::optional<PolicyKind> kind = PolicyOfName(common::NameOfPolicy(options.policy()));
    if (!kind.has_value()) {
      return Invalid("INVALID_ATTENTION",
                     absl::StrCat("attention policy ", static_cast<int>(options.policy()),
                                  " is not known to this server"));
    }
    attention.policy = *kind;
  }
  if (options.has_retrieval_ratio()) attention.retrieval_ratio = options.retrieval_ratio();
  if (options.has_estimation_ratio()) attention.estimation_ratio = options.estimation_ratio();
  if (options.has_max_unseen_mass()) attention.max_unseen_mass = options.max_unseen_mass();
  if (options.has_streaming_window()) attention.streaming_window = options.streaming_window();
  if (options.has_tail_tokens()) attention.tail_tokens = options.tail_tokens();
  ASSIGN_OR_RETURN(attention.prefill, ReadPrefill(options, attention.policy, attention.prefill));
  RETURN_IF_ERROR(ValidateAttention(attention));
  return attention;
}

absl::StatusOr<std::vector<int32_t>> RequestReader::Tokenize(
    const v1::TokenizeRequest& request) const {
  switch (request.input_case()) {
    case v1::TokenizeRequest::kText:
      RETURN_IF_ERROR(CheckLength(request.text().size(), kMaxTokenizedBytes));
      return EncodeText(request.text(), EncodeOptionsOf(request));
    case v1::TokenizeRequest::kMessages: {
      ASSIGN_OR_RETURN(ConversationPrompt prompt, EncodeMessages(request.messages()));
      return std::move(prompt.tokens);
    }
    case v1::TokenizeRequest::INPUT_NOT_SET:
      break;
  }
  return Invalid("INVALID_INPUT", "the request has no input: set text or messages");
}

absl::StatusOr<std::string> RequestReader::Detokenize(const v1::DetokenizeRequest& request) const {
  RETURN_IF_ERROR(CheckCount(static_cast<size_t>(request.token_ids_size())));
  const std::vector<int32_t> ids(request.token_ids().begin(), request.token_ids().end());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < model_.vocab_size) continue;
    return Invalid("TOKEN_OUT_OF_RANGE",
                   absl::StrCat("token ", i, " is ", ids[i], ", ids must be in [0, ",
                                model_.vocab_size - 1, "]"));
  }
  return model_.tokenizer->Decode(ids, request.skip_special_tokens());
}

v1::SamplingOptions RequestReader::DefaultSampling() const {
  const SamplingParams& given = model_.default_sampling;
  const SamplingParams plain;
  v1::SamplingOptions out;
  if (given.temperature != plain.temperature) out.set_temperature(given.temperature);
  if (given.top_p != plain.top_p) out.set_top_p(given.top_p);
  if (given.top_k != plain.top_k) out.set_top_k(given.top_k);
  if (given.min_p != plain.min_p) out.set_min_p(given.min_p);
  if (given.repetition_penalty != plain.repetition_penalty) {
    out.set_repetition_penalty(given.repetition_penalty);
  }
  return out;
}

v1::AttentionOptions RequestReader::DefaultAttention() const {
  v1::AttentionOptions out;
  const AttentionSettings& attention = model_.default_attention;
  out.set_policy(*common::PolicyNamed(PolicyName(attention.policy)));
  out.set_retrieval_ratio(attention.retrieval_ratio);
  out.set_estimation_ratio(attention.estimation_ratio);
  out.set_streaming_window(attention.streaming_window);
  out.set_prefill(ToProto(attention.prefill));
  return out;
}

}  // namespace retroinfer
