#include <utility>

#include "absl/strings/str_cat.h"
#include "http_gateway/api/choice.h"
#include "http_gateway/json/json_text.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

class CompletionChoice final : public Choice {
 public:
  explicit CompletionChoice(CompletionChoiceOptions options)
      : options_(std::move(options)),
        begin_(absl::StrCat(R"({"index":)", options_.index, R"(,"text":)")) {
    logprobs_.SkipText(options_.echo);
  }

  void Begin(ChunkWriter* chunks) override {
    if (!options_.echo.empty()) Text(options_.echo, chunks);
  }

  void Prompt(const v1::ScoredTokens& tokens, ChunkWriter* chunks) override {
    if (!options_.logprobs) return;
    prompt_logprobs_.AppendPrompt(tokens, options_.echo);
    if (!options_.streams) return;
    Append("", prompt_logprobs_.Take(), "null", chunks->Begin());
    chunks->End();
  }

  void Output(const v1::OutputChunk& chunk, ChunkWriter* chunks) override {
    if (options_.logprobs) logprobs_.Append(chunk);
    if (chunk.text().empty() && (!options_.streams || logprobs_.empty())) return;
    Text(chunk.text(), chunks);
  }

  void Finish(const v1::Finished& finished, ChunkWriter* chunks) override {
    finish_reason_ = FinishReasonText(finished.reason());
    stop_reason_ = StopReasonJson(finished);
    if (!options_.streams) return;
    Append("", TakeLogprobs(), JsonString(finish_reason_), chunks->Begin());
    chunks->End();
  }

  std::string Whole() const override {
    CompletionLogprobs logprobs = prompt_logprobs_;
    logprobs.AppendAll(logprobs_);
    std::string json;
    Append(text_, options_.logprobs ? logprobs.Take() : "null", JsonString(finish_reason_), &json);
    return json;
  }

  size_t logprobs_bytes() const override { return prompt_logprobs_.bytes() + logprobs_.bytes(); }

 private:
  void Text(const std::string& text, ChunkWriter* chunks) {
    if (options_.streams) {
      Append(text, TakeLogprobs(), "null", chunks->Begin());
      chunks->End();
    } else {
      text_.append(text);
    }
  }
  std::string TakeLogprobs() { return logprobs_.empty() ? "null" : logprobs_.Take(); }
  void Append(std::string_view text, std::string_view logprobs, std::string_view finish_reason,
              std::string* out) const {
    out->append(begin_);
    AppendJsonString(text, out);
    out->append(R"(,"logprobs":)").append(logprobs);
    out->append(R"(,"finish_reason":)").append(finish_reason);
    out->append(R"(,"stop_reason":)").append(stop_reason_).push_back('}');
  }

  const CompletionChoiceOptions options_;
  const std::string begin_;  // of the object, up to the text
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
