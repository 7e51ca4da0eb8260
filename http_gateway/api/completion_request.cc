#include "http_gateway/api/completion_request.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "http_gateway/api/constraint_fields.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

constexpr int64_t kLogprobsMax = 20;

absl::Status SetIds(const Json& list, const std::string& path, v1::GenerateRequest* request) {
  std::vector<int32_t> ids;
  RETURN_IF_ERROR(Fields::ReadIds(list, path, &ids));
  request->mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
  return absl::OkStatus();
}

absl::Status AddPrompts(const Json& prompt, const v1::GenerateRequest& shared,
                        std::vector<v1::GenerateRequest>* calls) {
  if (prompt.is_string()) {
    calls->emplace_back(shared).set_text(prompt.get<std::string>());
    return absl::OkStatus();
  }
  if (!prompt.is_array() || prompt.empty()) {
    return ParamError("prompt", "prompt must be a string, a list of token ids, or a list of either",
                      prompt.is_array() ? "EMPTY_PROMPT" : "INVALID_TYPE");
  }
  if (prompt.front().is_number()) return SetIds(prompt, "prompt", &calls->emplace_back(shared));
  if (prompt.size() > CompletionRequest::kPromptsMax) {
    return ParamError("prompt", absl::StrCat("prompt has ", prompt.size(), " prompts, at most ",
                                             CompletionRequest::kPromptsMax, " are allowed"));
  }
  for (const Json& item : prompt) {
    v1::GenerateRequest& call = calls->emplace_back(shared);
    if (item.is_string()) {
      call.set_text(item.get<std::string>());
    } else {
      RETURN_IF_ERROR(SetIds(item, absl::StrCat("prompt[", calls->size() - 1, "]"), &call));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CompletionRequest> ReadCompletionRequest(const Json& body, IgnoredNames* ignored) {
  CompletionRequest result;
  v1::GenerateRequest shared;
  ASSIGN_OR_RETURN(Fields fields, Fields::Of(body, "", ignored));
  RETURN_IF_ERROR(ReadCommonFields(fields, &result.options, &shared));
  RETURN_IF_ERROR(ReadMaxTokens(fields, {"max_tokens"}, shared.mutable_sampling(), 0));
  std::optional<int64_t> logprobs;
  RETURN_IF_ERROR(fields.Read("logprobs", &logprobs, 0, kLogprobsMax));
  if (logprobs.has_value()) {
    shared.mutable_sampling()->set_logprobs(static_cast<int32_t>(*logprobs));
  }
  std::optional<bool> flag;
  RETURN_IF_ERROR(fields.Read("echo", &flag));
  result.echo = flag.value_or(false);
  const bool is_nothing = shared.sampling().has_max_tokens() && shared.sampling().max_tokens() == 0;
  if (is_nothing && !result.echo) {
    return ParamError("max_tokens", "max_tokens is 0: that is for echo, where the prompt is all");
  }
  if (result.echo && (is_nothing || logprobs.has_value())) {
    shared.mutable_sampling()->set_prompt_logprobs(static_cast<int32_t>(logprobs.value_or(0)));
  }
  flag.reset();
  RETURN_IF_ERROR(fields.Read("add_special_tokens", &flag));
  if (flag.has_value()) shared.set_add_special_tokens(*flag);
  std::optional<int64_t> best_of;
  RETURN_IF_ERROR(fields.Read("best_of", &best_of, 1, 16));
  const int64_t n = shared.sampling().has_n() ? shared.sampling().n() : 1;
  if (best_of.has_value() && *best_of != n) {
    return ParamError("best_of", "best_of is not offered: ask for n answers and choose",
                      "UNSUPPORTED_PARAMETER");
  }
  if (n > 1 && result.options.stream && shared.sampling().has_prompt_logprobs()) {
    return ParamError("n", "n must be 1 where echo with logprobs is streamed");
  }
  RETURN_IF_ERROR(fields.NotOffered("suffix", "the model continues text, it fills no gaps", ""));
  ASSIGN_OR_RETURN(result.options.constraint_param, ReadConstraint(fields, &shared));
  const Json* const prompt = fields.Find("prompt");
  if (prompt == nullptr) return ParamError("prompt", "prompt is missing", "MISSING_PARAMETER");
  RETURN_IF_ERROR(fields.CheckUnknown());
  RETURN_IF_ERROR(AddPrompts(*prompt, shared, &result.calls));
  if (result.calls.size() * static_cast<size_t>(n) > CompletionRequest::kPromptsMax) {
    return ParamError(
        "n", absl::StrCat("prompts times n must be at most ", CompletionRequest::kPromptsMax));
  }
  return result;
}

}  // namespace retroinfer::gateway
