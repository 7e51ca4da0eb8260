#include <utility>

#include "absl/strings/str_cat.h"
#include "http_gateway/api/choice.h"
#include "http_gateway/json/json_text.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

class CompletionChoice final : public Choice {
 public:
  explicit CompletionChoice(CompletionChoiceOptions options) : options_(std::move(options)) {
    logprobs_.SkipText(options_.echo);
  }

  std::vector<std::string> Begin() override {
    if (options_.echo.empty()) return {};
    return Text(options_.echo);
  }

  std::vector<std::string> Prompt(const v1::ScoredTokens& tokens) override {
    if (!options_.logprobs) return {};
    prompt_logprobs_.AppendPrompt(tokens, options_.echo);
    if (!options_.streams) return {};
    return {Format("", prompt_logprobs_.Take(), "null")};
  }

  std::vector<std::string> Output(const v1::OutputChunk& chunk) override {
    if (options_.logprobs) logprobs_.Append(chunk);
    if (chunk.text().empty() && (!options_.streams || logprobs_.empty())) return {};
    return Text(chunk.text());
  }

  std::vector<std::string> Finish(const v1::Finished& finished) override {
    finish_reason_ = FinishReasonText(finished.reason());
    stop_reason_ = StopReasonJson(finished);
    if (!options_.streams) return {};
    return {Json("", JsonString(finish_reason_))};
  }

  std::string Whole() const override {
    CompletionLogprobs logprobs = prompt_logprobs_;
    logprobs.AppendAll(logprobs_);
    return Format(text_, options_.logprobs ? logprobs.Take() : "null", JsonString(finish_reason_));
  }

  size_t logprobs_bytes() const override { return prompt_logprobs_.bytes() + logprobs_.bytes(); }

 private:
  std::vector<std::string> Text(const std::string& text) {
    if (options_.streams) return {Json(text, "null")};
    text_.append(text);
    return {};
  }
  std::string Json(const std::string& text, const std::string& finish_reason) {
    return Format(text, options_.logprobs && !logprobs_.empty() ? logprobs_.Take() : "null",
                  finish_reason);
  }
  std::string Format(const std::string& text, const std::string& logprobs,
                     const std::string& finish_reason) const {
    return absl::StrCat(R"({"index":)", options_.index, R"(,"text":)", JsonString(text),
                        R"(,"logprobs":)", logprobs, R"(,"finish_reason":)", finish_reason,
                        R"(,"stop_reason":)", stop_reason_, "}");
  }

  const CompletionChoiceOptions options_;
  CompletionLogprobs prompt_logprobs_;
  CompletionLogprobs logprobs_;
  std::string text_;
  std::string finish_reason_;
  std::string stop_reason_ = "null";
};

}  // namespace

std::unique_ptr<Choice> MakeCompletionChoice(CompletionChoiceOptions options) {
  return std::make_unique<CompletionChoice>(std::move(options));
}

}  // namespace retroinfer::gateway
