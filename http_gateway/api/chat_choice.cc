#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "http_gateway/api/call_id.h"
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
        reader_(options_.reader) {}

  void Begin(ChunkWriter* chunks) override {
    if (options_.streams) Delta(R"("role":"assistant","content":"")", chunks);
  }

  void Output(const v1::OutputChunk& chunk, ChunkWriter* chunks) override {
    if (options_.logprobs) {
      const std::string entries = ChatLogprobs(chunk);
      if (!entries.empty() && !logprobs_.empty()) logprobs_.push_back(',');
      logprobs_.append(entries);
    }
    Add(reader_.Append(chunk.text()), chunks);
  }

  void Finish(const v1::Finished& finished, ChunkWriter* chunks) override {
    Add(reader_.Finish(), chunks);
    finish_reason_ = FinishReasonText(finished.reason());
    if (reader_.num_calls() > 0 && finish_reason_ == "stop") finish_reason_ = "tool_calls";
    stop_reason_ = StopReasonJson(finished);
    if (options_.streams) Delta("", chunks, JsonString(finish_reason_));
  }

  std::string Whole() const override {
    std::string message = R"("role":"assistant","content":)";
    message.append(content_.empty() && !calls_.empty() ? "null" : JsonString(content_));
    if (!reasoning_.empty()) {
      absl::StrAppend(&message, R"(,"reasoning_content":)", JsonString(reasoning_));
    }
    if (!calls_.empty()) absl::StrAppend(&message, R"(,"tool_calls":[)", CallsJson(), "]");
    return absl::StrCat(R"({"index":)", options_.index, R"(,"message":{)", message, "},",
                        R"("logprobs":)", LogprobsJson(logprobs_), R"(,"finish_reason":)",
                        JsonString(finish_reason_), R"(,"stop_reason":)", stop_reason_, "}");
  }

 private:
  struct Call {
    std::string id;
    std::string name;
    std::string arguments;
  };

  void Add(const std::vector<AnswerPiece>& pieces, ChunkWriter* chunks) {
    for (const AnswerPiece& piece : pieces) {
      if (options_.streams) {
        Send(piece, chunks);
      } else {
        Keep(piece);
      }
    }
  }

  void Send(const AnswerPiece& piece, ChunkWriter* chunks) {
    switch (piece.kind) {
      case AnswerPiece::Kind::kReasoning:
        return TextDelta(R"("reasoning_content":)", piece.text, "", chunks);
      case AnswerPiece::Kind::kText:
        return TextDelta(R"("content":)", piece.text, "", chunks);
      case AnswerPiece::Kind::kCallBegin:
        return Delta(absl::StrCat(R"("tool_calls":[)",
                                  ToolCallJson(DrawCallId(options_.reader.tool_form), piece.text,
                                               "", ++call_index_),
                                  "]"),
                     chunks);
      case AnswerPiece::Kind::kCallArguments:
        return TextDelta(
            absl::StrCat(R"("tool_calls":[{"index":)", call_index_, R"(,"function":{"arguments":)"),
            piece.text, "}}]", chunks);
      case AnswerPiece::Kind::kCallEnd:
        return;
    }
  }

  void Keep(const AnswerPiece& piece) {
    switch (piece.kind) {
      case AnswerPiece::Kind::kReasoning:
        reasoning_.append(piece.text);
        return;
      case AnswerPiece::Kind::kText:
        content_.append(piece.text);
        return;
      case AnswerPiece::Kind::kCallBegin:
        calls_.push_back({DrawCallId(options_.reader.tool_form), piece.text, ""});
        return;
      case AnswerPiece::Kind::kCallArguments:
        calls_.back().arguments.append(piece.text);
        return;
      case AnswerPiece::Kind::kCallEnd:
        return;
    }
  }

  std::string CallsJson() const {
    std::string json;
    for (const Call& call : calls_) {
      absl::StrAppend(&json, json.empty() ? "" : ",",
                      ToolCallJson(call.id, call.name, call.arguments, -1));
    }
    return json;
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

  // A delta of one member, whose text comes between `before` and `behind`.
  void TextDelta(std::string_view before, std::string_view text, std::string_view behind,
                 ChunkWriter* chunks) {
    std::string* const out = chunks->Begin();
    out->append(begin_).append(before);
    AppendJsonString(text, out);
    out->append(behind);
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
  AnswerReader reader_;
  int call_index_ = -1;   // with `streams`: of the call that is being sent
  std::string logprobs_;  // entries that no delta has carried

  // Without `streams`.
  std::string reasoning_;
  std::string content_;
  std::vector<Call> calls_;

  std::string finish_reason_;
  std::string stop_reason_ = "null";
};

}  // namespace

std::unique_ptr<Choice> MakeChatChoice(ChatChoiceOptions options) {
  return std::make_unique<ChatChoice>(std::move(options));
}

}  // namespace retroinfer::gateway
