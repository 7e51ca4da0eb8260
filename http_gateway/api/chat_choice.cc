#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "http_gateway/api/choice.h"
#include "http_gateway/json/json_text.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

class ChatChoice final : public Choice {
 public:
  explicit ChatChoice(ChatChoiceOptions options)
      : options_(std::move(options)),
        splitter_(options_.splitter),
        calls_(options_.tool_form, options_.tool_names) {}

  std::vector<std::string> Begin() override {
    std::vector<std::string> deltas;
    if (options_.streams) deltas.push_back(Delta(R"("role":"assistant","content":"")"));
    Add(calls_.Append(options_.opening), &deltas);
    return deltas;
  }

  std::vector<std::string> Output(const v1::OutputChunk& chunk) override {
    if (options_.logprobs) {
      const std::string entries = ChatLogprobs(chunk);
      if (!entries.empty() && !logprobs_.empty()) logprobs_.push_back(',');
      logprobs_.append(entries);
    }
    std::vector<std::string> deltas;
    if (splitter_.has_value()) {
      Add(splitter_->Append(chunk.text()), &deltas);
    } else {
      Add(calls_.Append(chunk.text()), &deltas);
    }
    return deltas;
  }

  std::vector<std::string> Finish(const v1::Finished& finished) override {
    std::vector<std::string> deltas;
    if (splitter_.has_value()) Add(splitter_->Finish(), &deltas);
    Add(calls_.Finish(), &deltas);
    finish_reason_ = FinishReasonText(finished.reason());
    if (num_calls_ > 0 && finish_reason_ == "stop") finish_reason_ = "tool_calls";
    stop_reason_ = StopReasonJson(finished);
    if (options_.streams) deltas.push_back(Delta("", JsonString(finish_reason_)));
    return deltas;
  }

  std::string Whole() const override {
    std::string message = R"("role":"assistant","content":)";
    message.append(content_.empty() && num_calls_ > 0 ? "null" : JsonString(content_));
    if (!reasoning_.empty()) {
      absl::StrAppend(&message, R"(,"reasoning_content":)", JsonString(reasoning_));
    }
    if (num_calls_ > 0) absl::StrAppend(&message, R"(,"tool_calls":[)", tool_calls_, "]");
    return absl::StrCat(R"({"index":)", options_.index, R"(,"message":{)", message, "},",
                        R"("logprobs":)", LogprobsJson(logprobs_), R"(,"finish_reason":)",
                        JsonString(finish_reason_), R"(,"stop_reason":)", stop_reason_, "}");
  }

 private:
  void Add(ReasoningSplitter::Parts parts, std::vector<std::string>* deltas) {
    if (!parts.reasoning.empty()) {
      if (options_.streams) {
        deltas->push_back(
            Delta(absl::StrCat(R"("reasoning_content":)", JsonString(parts.reasoning))));
      } else {
        reasoning_.append(parts.reasoning);
      }
    }
    if (!parts.content.empty()) Add(calls_.Append(parts.content), deltas);
  }

  void Add(const std::vector<AnswerPiece>& pieces, std::vector<std::string>* deltas) {
    for (const AnswerPiece& piece : pieces) {
      if (piece.call.has_value()) {
        AddCall(*piece.call, deltas);
      } else if (options_.streams) {
        deltas->push_back(Delta(absl::StrCat(R"("content":)", JsonString(piece.text))));
      } else {
        content_.append(piece.text);
      }
    }
  }

  void AddCall(const ToolCall& call, std::vector<std::string>* deltas) {
    const int index = num_calls_++;
    const std::string id =
        absl::StrCat("call_", options_.call_id_stem, "_", options_.index, "_", index);
    if (options_.streams) {
      deltas->push_back(
          Delta(absl::StrCat(R"("tool_calls":[)", ToolCallJson(call, id, index), "]")));
    } else {
      absl::StrAppend(&tool_calls_, index == 0 ? "" : ",", ToolCallJson(call, id, -1));
    }
  }

  std::string LogprobsJson(const std::string& entries) const {
    if (!options_.logprobs) return "null";
    return absl::StrCat(R"({"content":[)", entries, R"(],"refusal":null})");
  }

  // Log-probabilities go with the next delta, whatever it is about.
  std::string Delta(const std::string& members, const std::string& finish_reason = "null") {
    const std::string logprobs = std::exchange(logprobs_, "");
    return absl::StrCat(R"({"index":)", options_.index, R"(,"delta":{)", members, "},",
                        R"("logprobs":)", logprobs.empty() ? "null" : LogprobsJson(logprobs),
                        R"(,"finish_reason":)", finish_reason, R"(,"stop_reason":)", stop_reason_,
                        "}");
  }

  const ChatChoiceOptions options_;
  std::optional<ReasoningSplitter> splitter_;
  ToolCallParser calls_;
  int num_calls_ = 0;
  std::string logprobs_;  // entries that no delta has carried

  // Without `streams`.
  std::string reasoning_;
  std::string content_;
  std::string tool_calls_;

  std::string finish_reason_;
  std::string stop_reason_ = "null";
};

}  // namespace

std::unique_ptr<Choice> MakeChatChoice(ChatChoiceOptions options) {
  return std::make_unique<ChatChoice>(std::move(options));
}

}  // namespace retroinfer::gateway
