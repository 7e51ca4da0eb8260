#include "http_gateway/api/score_json.h"

#include <charconv>

#include "absl/strings/str_cat.h"
#include "http_gateway/json/json_text.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

constexpr char kNull[] = "null";
constexpr float kLeastLogprob = -9999.0F;  // as LogprobJson() says it

void AppendAlternatives(const v1::ScoredToken& token, std::string* out) {
  out->push_back('[');
  for (int i = 0; i < token.alternatives_size(); ++i) {
    const v1::TokenLogprob& other = token.alternatives(i);
    absl::StrAppend(out, i == 0 ? "" : ",", R"({"token_id":)", other.token_id(), R"(,"token":)");
    AppendJsonString(TokenText(other.token_bytes()), out);
    absl::StrAppend(out, R"(,"logprob":)", LogprobJson(other.logprob()), "}");
  }
  out->push_back(']');
}

std::string Digits(double number) {
  char digits[64];
  return {digits, std::to_chars(digits, digits + sizeof(digits), number).ptr};
}

}  // namespace

absl::Status ScoredList::Append(const v1::ScoredTokens& tokens) {
  if (tokens.first_token() != num_tokens_) {
    return absl::InternalError(absl::StrCat("the worker sent scores from token ",
                                            tokens.first_token(), " on, not from token ",
                                            num_tokens_));
  }
  for (const v1::ScoredToken& token : tokens.tokens()) {
    if (num_tokens_++ > 0) {
      for (auto* const list : {&tokens_, &ids_, &logprobs_, &ranks_, &greedy_, &alternatives_}) {
        list->push_back(',');
      }
    }
    AppendJsonString(TokenText(token.token_bytes()), &tokens_);
    absl::StrAppend(&ids_, token.token_id());
    if (!token.has_logprob()) {
      for (auto* const list : {&logprobs_, &ranks_, &greedy_, &alternatives_}) list->append(kNull);
      continue;
    }
    logprobs_.append(LogprobJson(token.logprob()));
    absl::StrAppend(&ranks_, token.rank());
    greedy_.append(token.is_greedy() ? "true" : "false");
    if (with_alternatives_) AppendAlternatives(token, &alternatives_);
    sum_ += static_cast<double>(token.logprob() > kLeastLogprob ? token.logprob() : kLeastLogprob);
    all_greedy_ = all_greedy_ && token.is_greedy();
  }
  return absl::OkStatus();
}

size_t ScoredList::bytes() const {
  return tokens_.size() + ids_.size() + logprobs_.size() + ranks_.size() + greedy_.size() +
         alternatives_.size();
}

std::string ScoredList::Members() const {
  std::string json = absl::StrCat(R"("sum_logprob":)", Digits(sum_), R"(,"all_greedy":)",
                                  all_greedy_ ? "true" : "false", R"(,"tokens":[)", tokens_,
                                  R"(],"token_ids":[)", ids_, R"(],"token_logprobs":[)", logprobs_,
                                  R"(],"ranks":[)", ranks_, R"(],"is_greedy":[)", greedy_, "]");
  if (with_alternatives_) absl::StrAppend(&json, R"(,"top_logprobs":[)", alternatives_, "]");
  return json;
}

Usage UsageOf(const v1::ScoreFinished& finished) {
  v1::Finished same;
  same.set_prompt_tokens(finished.prompt_tokens());
  same.set_cached_tokens(finished.cached_tokens());
  same.set_completion_tokens(finished.scored_tokens());
  *same.mutable_timings() = finished.timings();
  same.set_kv_read_ratio(finished.kv_read_ratio());
  if (finished.has_unseen_mass()) *same.mutable_unseen_mass() = finished.unseen_mass();
  UsageSum sum;
  sum.Add(same, true);
  return sum.Total();
}

}  // namespace retroinfer::gateway
