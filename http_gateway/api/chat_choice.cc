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
        begin_(absl::StrCat(R"({"index":)", options_.index, R"(,"delta":{)")),
        splitter_(options_.splitter),
        calls_(options_.tool_form, options_.tool_names) {}

  void Begin(ChunkWriter* chunks) override {
    if (options_.streams) Delta(R"("role":"assistant","content":"")", chunks);
    Add(calls_.Append(options_.opening), chunks);
  }

  void Output(const v1::OutputChunk& chunk, ChunkWriter* chunks) override {
    if (options_.logprobs) {
      const std::string entries = ChatLogprobs(chunk);
      if (!entries.empty() && !logprobs_.empty()) logprobs_.push_back(',');
      logprobs_.append(entries);
    }
    if (splitter_.has_value()) {
      Add(splitter_->Append(chunk.text()), chunks);
    } else {
      AddContent(chunk.text(), chunks);
    }
  }

  void Finish(const v1::Finished& finished, ChunkWriter* chunks) override {
    if (splitter_.has_value()) Add(splitter_->Finish(), chunks);
    Add(calls_.Finish(), chunks);
    finish_reason_ = FinishReasonText(finished.reason());
    if (num_calls_ > 0 && finish_reason_ == "stop") finish_reason_ = "tool_calls";
    stop_reason_ = StopReasonJson(finished);
    if (options_.streams) Delta("", chunks, JsonString(finish_reason_));
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
  void Add(const ReasoningSplitter::Parts& parts, ChunkWriter* chunks) {
    if (!parts.reasoning.empty()) {
      if (options_.streams) {
        TextDelta(R"("reasoning_content":)", parts.reasoning, chunks);
      } else {
        reasoning_.append(parts.reasoning);
      }
    }
    AddContent(parts.content, chunks);
  }

  // Text that may have calls in it.
  void AddContent(const std::string& text, ChunkWriter* chunks) {
    if (text.empty()) return;
    if (calls_.finds_none()) return AddText(text, chunks);
    Add(calls_.Append(text), chunks);
  }

  void AddText(const std::string& text, ChunkWriter* chunks) {
    if (options_.streams) {
      TextDelta(R"("content":)", text, chunks);
    } else {
      content_.append(text);
    }
  }

  void Add(const std::vector<AnswerPiece>& pieces, ChunkWriter* chunks) {
    for (const AnswerPiece& piece : pieces) {
      if (piece.call.has_value()) {
        AddCall(*piece.call, chunks);
      } else {
        AddText(piece.text, chunks);
      }
    }
  }

  void AddCall(const ToolCall& call, ChunkWriter* chunks) {
    const int index = num_calls_++;
    const std::string id =
        absl::StrCat("call_", options_.call_id_stem, "_", options_.index, "_", index);
    if (options_.streams) {
      Delta(absl::StrCat(R"("tool_calls":[)", ToolCallJson(call, id, index), "]"), chunks);
    } else {
      absl::StrAppend(&tool_calls_, index == 0 ? "" : ",", ToolCallJson(call, id, -1));
    }
  }

  std::string LogprobsJson(const std::string& entries) const {
    if (!options_.logprobs) return "null";
    return absl::StrCat(R"({"content":[)", entries, R"(],"refusal":null})");
  }

  void Delta(std::string_view members, ChunkWriter* chunks,
             std::string_view finish_reason = "null") {
    std::string* const out = chunks->Begin();
    out->append(begin_).append(members);
    EndDelta(finish_reason, out);
    chunks->End();
  }

  // A delta of one member.
  void TextDelta(std::string_view name, std::string_view text, ChunkWriter* chunks) {
    std::string* const out = chunks->Begin();
    out->append(begin_).append(name);
    AppendJsonString(text, out);
    EndDelta("null", out);
    chunks->End();
  }

  // Log-probabilities go with the next delta, whatever it is about.
  void EndDelta(std::string_view finish_reason, std::string* out) {
    out->append(R"(},"logprobs":)");
    if (logprobs_.empty()) {
      out->append("null");
    } else {
      out->append(LogprobsJson(std::exchange(logprobs_, "")));
    }
    out->append(R"(,"finish_reason":)").append(finish_reason);
    out->append(R"(,"stop_reason":)").append(stop_reason_).push_back('}');
  }

  const ChatChoiceOptions options_;
  const std::string begin_;  // of the object, up to the members of its delta
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
