#include "http_gateway/api/response_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "http_gateway/json/json_text.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

// JSON has no infinity; a token that cannot come has this.
constexpr float kLeastLogprob = -9999.0F;

// Length of the UTF-8 character that begins `text`; 0 if there is none.
size_t CharacterBytes(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  const size_t size = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (size == 0 || lead > 0xf4 || size > text.size()) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  }
  if (size < 3) return size;
  const auto second = static_cast<unsigned char>(text[1]);
  if (lead == 0xe0 && second < 0xa0) return 0;   // overlong
  if (lead == 0xed && second >= 0xa0) return 0;  // surrogates
  if (lead == 0xf0 && second < 0x90) return 0;   // overlong
  if (lead == 0xf4 && second >= 0x90) return 0;  // beyond U+10FFFF
  return size;
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t size = CharacterBytes(text);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

int64_t Characters(std::string_view text) {
  int64_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return count;
}

absl::Duration ToDuration(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

std::string Milliseconds(absl::Duration duration) {
  return absl::StrFormat("%.3f", absl::ToDoubleMilliseconds(duration));
}

void Separate(std::string* list) {
  if (!list->empty()) list->push_back(',');
}

// {"token": ..., "logprob": ..., "bytes": [...]   (no end)
void AppendToken(std::string_view bytes, float logprob, std::string* out) {
  out->append("{\"token\":");
  AppendJsonString(TokenText(bytes), out);
  absl::StrAppend(out, ",\"logprob\":", LogprobJson(logprob), ",\"bytes\":[");
  for (size_t i = 0; i < bytes.size(); ++i) {
    absl::StrAppend(out, i == 0 ? "" : ",", static_cast<int>(static_cast<unsigned char>(bytes[i])));
  }
  out->push_back(']');
}

}  // namespace

std::string LogprobJson(float logprob) {
  if (!(logprob > kLeastLogprob)) return "-9999.0";
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof(digits), logprob).ptr};
}

void UsageSum::Add(const v1::Finished& finished, bool counts_prompt) {
  if (counts_prompt) {
    sum_.prompt_tokens += finished.prompt_tokens();
    sum_.cached_tokens += finished.cached_tokens();
    sum_.cached_generated_tokens += finished.cached_generated_tokens();
  }
  sum_.completion_tokens += finished.completion_tokens();
  sum_.accepted_prediction_tokens += finished.accepted_prediction_tokens();
  sum_.rejected_prediction_tokens += finished.rejected_prediction_tokens();
  const v1::Timings& timings = finished.timings();
  sum_.queue = std::max(sum_.queue, ToDuration(timings.queue()));
  sum_.prefill = std::max(sum_.prefill, ToDuration(timings.prefill()));
  sum_.first_token = std::max(sum_.first_token, ToDuration(timings.time_to_first_token()));
  sum_.decode = std::max(sum_.decode, ToDuration(timings.decode()));
  const auto tokens = static_cast<double>(finished.completion_tokens());
  weighted_ratio_ += finished.kv_read_ratio() * tokens;
  if (!finished.has_unseen_mass()) return;
  if (!sum_.unseen_mass.has_value()) sum_.unseen_mass.emplace();
  const v1::UnseenMass& mass = finished.unseen_mass();
  weighted_mass_ += mass.mean() * tokens;
  mass_tokens_ += finished.completion_tokens();
  sum_.unseen_mass->set_largest(std::max(sum_.unseen_mass->largest(), mass.largest()));
}

Usage UsageSum::Total() const {
  Usage total = sum_;
  if (total.completion_tokens > 0) {
    total.kv_read_ratio = weighted_ratio_ / static_cast<double>(total.completion_tokens);
  }
  if (mass_tokens_ > 0) {
    total.unseen_mass->set_mean(weighted_mass_ / static_cast<double>(mass_tokens_));
  }
  return total;
}

std::string UsageJson(const Usage& usage) {
  const auto& mass = usage.unseen_mass;
  return absl::StrCat(
      R"({"prompt_tokens":)", usage.prompt_tokens, R"(,"completion_tokens":)",
      usage.completion_tokens, R"(,"total_tokens":)", usage.prompt_tokens + usage.completion_tokens,
      R"(,"prompt_tokens_details":{"cached_tokens":)", usage.cached_tokens,
      R"(,"cached_generated_tokens":)", usage.cached_generated_tokens,
      R"(},"completion_tokens_details":{"accepted_prediction_tokens":)",
      usage.accepted_prediction_tokens, R"(,"rejected_prediction_tokens":)",
      usage.rejected_prediction_tokens, R"(},"kv_read_ratio":)",
      absl::StrFormat("%.6g", usage.kv_read_ratio), R"(,"unseen_mass":)",
      mass.has_value()
          ? absl::StrFormat(R"({"mean":%.6g,"largest":%.6g})", mass->mean(), mass->largest())
          : "null",
      R"(,"timings":{"queue_ms":)", Milliseconds(usage.queue), R"(,"prefill_ms":)",
      Milliseconds(usage.prefill), R"(,"first_token_ms":)", Milliseconds(usage.first_token),
      R"(,"decode_ms":)", Milliseconds(usage.decode), "}}");
}

std::string AnswerHead::Json() const {
  return absl::StrCat(R"({"id":)", JsonString(id), R"(,"object":)", JsonString(object),
                      R"(,"created":)", created, R"(,"model":)", JsonString(model));
}

std::string_view FinishReasonText(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
    case v1::FINISH_REASON_DEADLINE:  // stop_reason says which
      return "length";
    default:
      return "";
  }
}

std::string StopReasonJson(const v1::Finished& finished) {
  if (finished.reason() == v1::FINISH_REASON_DEADLINE) return "\"timeout\"";
  if (finished.has_matched_stop()) return JsonString(finished.matched_stop());
  if (finished.has_matched_token_id()) return absl::StrCat(finished.matched_token_id());
  return "null";
}

std::string TokenText(std::string_view bytes) {
  if (IsUtf8(bytes)) return std::string(bytes);
  std::string text = "bytes:";
  for (const char c : bytes) absl::StrAppendFormat(&text, "\\x%02x", static_cast<unsigned char>(c));
  return text;
}

std::string ChatLogprobs(const v1::OutputChunk& chunk) {
  std::string list;
  for (const v1::PositionLogprobs& position : chunk.logprobs()) {
    Separate(&list);
    AppendToken(position.token_bytes(), position.logprob(), &list);
    list.append(",\"top_logprobs\":[");
    for (int i = 0; i < position.alternatives_size(); ++i) {
      const v1::TokenLogprob& alternative = position.alternatives(i);
      if (i > 0) list.push_back(',');
      AppendToken(alternative.token_bytes(), alternative.logprob(), &list);
      list.push_back('}');
    }
    list.append("]}");
  }
  return list;
}

void CompletionLogprobs::SkipText(std::string_view text) { offset_ += Characters(text); }

void CompletionLogprobs::Add(
    std::string_view token_bytes, const std::string& logprob,
    const google::protobuf::RepeatedPtrField<v1::TokenLogprob>& alternatives) {
  for (std::string* const list : {&tokens_, &logprobs_, &alternatives_, &offsets_}) {
    Separate(list);
  }
  AppendJsonString(TokenText(token_bytes), &tokens_);
  logprobs_.append(logprob);
  absl::StrAppend(&offsets_, offset_);
  if (logprob == "null") {
    alternatives_.append("null");
    return;
  }
  std::string object;
  for (const v1::TokenLogprob& alternative : alternatives) {
    Separate(&object);
    AppendJsonString(TokenText(alternative.token_bytes()), &object);
    absl::StrAppend(&object, ":", LogprobJson(alternative.logprob()));
  }
  absl::StrAppend(&alternatives_, "{", object, "}");
}

void CompletionLogprobs::Append(const v1::OutputChunk& chunk) {
  for (const v1::PositionLogprobs& position : chunk.logprobs()) {
    Add(position.token_bytes(), LogprobJson(position.logprob()), position.alternatives());
    offset_ += Characters(position.token_bytes());
  }
}

void CompletionLogprobs::AppendPrompt(const v1::ScoredTokens& tokens, std::string_view text) {
  // Where a tokenizer has changed the text (its normal form), tokens are found again behind that.
  constexpr size_t kChangedMax = 32;
  for (const v1::ScoredToken& token : tokens.tokens()) {
    const std::string& bytes = token.token_bytes();
    const size_t reach = prompt_at_ == 0 ? 0 : kChangedMax;
    const size_t found = bytes.empty() ? std::string_view::npos
                                       : text.substr(prompt_at_, bytes.size() + reach).find(bytes);
    if (found != std::string_view::npos) {
      offset_ += Characters(text.substr(prompt_at_, found));
      prompt_at_ += found;
    }
    Add(bytes, token.has_logprob() ? LogprobJson(token.logprob()) : "null", token.alternatives());
    if (found == std::string_view::npos) continue;
    offset_ += Characters(bytes);
    prompt_at_ += bytes.size();
  }
}

void CompletionLogprobs::AppendAll(const CompletionLogprobs& behind) {
  if (behind.empty()) return;
  for (std::string* const list : {&tokens_, &logprobs_, &alternatives_, &offsets_}) {
    Separate(list);
  }
  tokens_.append(behind.tokens_);
  logprobs_.append(behind.logprobs_);
  alternatives_.append(behind.alternatives_);
  offsets_.append(behind.offsets_);
}

std::string CompletionLogprobs::Take() {
  std::string json =
      absl::StrCat(R"({"tokens":[)", tokens_, R"(],"token_logprobs":[)", logprobs_,
                   R"(],"top_logprobs":[)", alternatives_, R"(],"text_offset":[)", offsets_, "]}");
  for (std::string* const list : {&tokens_, &logprobs_, &alternatives_, &offsets_}) list->clear();
  return json;
}

std::string ToolCallJson(std::string_view id, std::string_view name, std::string_view arguments,
                         int index) {
  std::string json = "{";
  if (index >= 0) absl::StrAppend(&json, "\"index\":", index, ",");
  absl::StrAppend(&json, R"("id":)", JsonString(id), R"(,"type":"function","function":{"name":)",
                  JsonString(name), R"(,"arguments":)", JsonString(arguments), "}}");
  return json;
}

}  // namespace retroinfer::gateway
