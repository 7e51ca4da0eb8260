#include "http_gateway/api/responses_writer.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "http_gateway/api/answer_items.h"
#include "http_gateway/api/chunk_writer.h"
#include "http_gateway/json/json_text.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

using Kind = AnswerItem::Kind;

const char* IdPrefix(Kind kind) {
  switch (kind) {
    case Kind::kThoughts:
      return "rs_";
    case Kind::kCall:
      return "fc_";
    case Kind::kText:
      break;
  }
  return "msg_";
}

std::string TextPart(Kind kind, std::string_view text) {
  return kind == Kind::kThoughts
             ? absl::StrCat(R"({"type":"reasoning_text","text":)", JsonString(text), "}")
             : absl::StrCat(R"({"type":"output_text","text":)", JsonString(text),
                            R"(,"annotations":[],"logprobs":[]})");
}

class ResponsesWriter final : public AnswerWriter, private AnswerItems::Listener {
 public:
  explicit ResponsesWriter(ResponsesOptions options)
      : options_(std::move(options)), items_(options_.reader, this), events_("", "\n\n") {}

  void Begin() override {
    for (const char* const type : {"response.created", "response.in_progress"}) {
      AddResponse(type, "in_progress", "null", nullptr);
    }
  }
  void Output(size_t /*choice*/, const v1::OutputChunk& chunk) override {
    items_.Append(chunk.text(), chunk.completion_tokens());
  }
  void Finish(size_t /*choice*/, const v1::Finished& finished) override {
    reason_ = finished.reason();
    items_.Finish();
  }

  void End(const Usage& usage) override {
    AddResponse(is_cut() ? "response.incomplete" : "response.completed", Status(), "null", &usage);
  }
  void Fail(const ApiError& error) override {
    AddResponse("response.failed", "failed",
                absl::StrCat(R"({"code":)", JsonString(error.code), R"(,"message":)",
                             JsonString(error.message), "}"),
                nullptr);
  }
  void KeepAlive() override { events_.AppendRaw(": keep-alive\n\n"); }
  std::string Whole(const Usage& usage) const override {
    return Response(Status(), "null", &usage);
  }

  std::string_view unsent() const override { return events_.text(); }
  void ClearUnsent() override { events_.Clear(); }

 private:
  // The answer ended because it was long, or took long.
  bool is_cut() const { return reason_ != v1::FINISH_REASON_STOP; }
  const char* Status() const { return is_cut() ? "incomplete" : "completed"; }

  std::string ItemId(size_t index, const AnswerItem& item) const {
    return absl::StrCat(IdPrefix(item.kind), options_.head.id, "_", index);
  }

  // An item as far as it has come.
  std::string ItemJson(size_t index, const AnswerItem& item, std::string_view status) const {
    const std::string begin = absl::StrCat(R"({"id":)", JsonString(ItemId(index, item)),
                                           R"(,"status":")", std::string(status), R"(","type":)");
    const std::string part = item.text.empty() ? "" : TextPart(item.kind, item.text);
    switch (item.kind) {
      case Kind::kThoughts:
        return absl::StrCat(begin, R"("reasoning","summary":[],"content":[)", part, "]}");
      case Kind::kCall:
        return absl::StrCat(begin, R"("function_call","call_id":)", JsonString(item.call_id),
                            R"(,"name":)", JsonString(item.name), R"(,"arguments":)",
                            JsonString(item.text), "}");
      case Kind::kText:
        break;
    }
    return absl::StrCat(begin, R"("message","role":"assistant","content":[)", part, "]}");
  }

  // Of an item that has ended: the last one may be cut.
  const char* ItemStatus(size_t index) const {
    return reason_.has_value() && is_cut() && index + 1 == items_.items().size() ? "incomplete"
                                                                                 : "completed";
  }

  std::string UsageMember(const Usage& usage) const {
    return absl::StrCat(
        R"({"input_tokens":)", usage.prompt_tokens, R"(,"input_tokens_details":{"cached_tokens":)",
        usage.cached_tokens, R"(},"output_tokens":)", usage.completion_tokens,
        R"(,"output_tokens_details":{"reasoning_tokens":)", items_.reasoning_tokens(),
        R"(},"total_tokens":)", usage.prompt_tokens + usage.completion_tokens, "}");
  }

  // `usage`: null while it is not known, and the items with it.
  std::string Response(std::string_view status, const std::string& error,
                       const Usage* usage) const {
    std::string output;
    if (usage != nullptr) {
      for (size_t i = 0; i < items_.items().size(); ++i) {
        absl::StrAppend(&output, i == 0 ? "" : ",", ItemJson(i, items_.items()[i], ItemStatus(i)));
      }
    }
    std::string details = "null";
    if (status == "incomplete") {
      details = reason_ == v1::FINISH_REASON_DEADLINE
                    ? R"({"reason":"max_output_tokens","stop_reason":"timeout"})"
                    : R"({"reason":"max_output_tokens"})";
    }
    return absl::StrCat(
        R"({"id":)", JsonString(options_.head.id), R"(,"object":"response","created_at":)",
        options_.head.created, R"(,"status":")", std::string(status), R"(","model":)",
        JsonString(options_.head.model), R"(,"background":false,"error":)", error,
        R"(,"incomplete_details":)", details, ",", options_.echo, R"(,"output":[)", output,
        R"(],"usage":)", usage == nullptr ? "null" : UsageMember(*usage), "}");
  }

  void AddResponse(const char* type, std::string_view status, const std::string& error,
                   const Usage* usage) {
    if (options_.streams) {
      Event(type, absl::StrCat(R"("response":)", Response(status, error, usage)));
    }
  }

  // `members`: behind the type and the number.
  void Event(const char* type, std::string_view members) {
    std::string* const out = events_.Begin();
    absl::StrAppend(out, "event: ", type, R"(
data: {"type":")",
                    type, R"(","sequence_number":)", num_events_++, ",");
    out->append(members).push_back('}');
    events_.End();
  }

  // An event about a part of an item.
  void PartEvent(const char* type, size_t index, const AnswerItem& item, std::string_view more) {
    Event(type, absl::StrCat(
                    R"("item_id":)", JsonString(ItemId(index, item)), R"(,"output_index":)", index,
                    item.kind == Kind::kCall ? "" : R"(,"content_index":0)", std::string(more)));
  }

  void OnItemBegin(size_t index, const AnswerItem& item) override {
    if (!options_.streams) return;
    Event("response.output_item.added", absl::StrCat(R"("output_index":)", index, R"(,"item":)",
                                                     ItemJson(index, item, "in_progress")));
    if (item.kind == Kind::kCall) return;
    PartEvent("response.content_part.added", index, item,
              absl::StrCat(R"(,"part":)", TextPart(item.kind, "")));
  }

  void OnItemText(size_t index, const AnswerItem& item, std::string_view text) override {
    if (!options_.streams) return;
    const std::string delta = absl::StrCat(R"(,"delta":)", JsonString(text));
    switch (item.kind) {
      case Kind::kThoughts:
        return PartEvent("response.reasoning_text.delta", index, item, delta);
      case Kind::kText:
        return PartEvent("response.output_text.delta", index, item,
                         absl::StrCat(delta, R"(,"logprobs":[])"));
      case Kind::kCall:
        return PartEvent("response.function_call_arguments.delta", index, item, delta);
    }
  }

  void OnItemEnd(size_t index, const AnswerItem& item) override {
    if (!options_.streams) return;
    const std::string text = JsonString(item.text);
    switch (item.kind) {
      case Kind::kThoughts:
        PartEvent("response.reasoning_text.done", index, item, absl::StrCat(R"(,"text":)", text));
        break;
      case Kind::kText:
        PartEvent("response.output_text.done", index, item,
                  absl::StrCat(R"(,"text":)", text, R"(,"logprobs":[])"));
        break;
      case Kind::kCall:
        PartEvent("response.function_call_arguments.done", index, item,
                  absl::StrCat(R"(,"name":)", JsonString(item.name), R"(,"arguments":)", text));
        break;
    }
    if (item.kind != Kind::kCall) {
      PartEvent("response.content_part.done", index, item,
                absl::StrCat(R"(,"part":)", TextPart(item.kind, item.text)));
    }
    Event("response.output_item.done", absl::StrCat(R"("output_index":)", index, R"(,"item":)",
                                                    ItemJson(index, item, ItemStatus(index))));
  }

  const ResponsesOptions options_;
  AnswerItems items_;
  ChunkWriter events_;
  int64_t num_events_ = 0;
  std::optional<v1::FinishReason> reason_;  // since Finish()
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeResponsesWriter(ResponsesOptions options) {
  return std::make_unique<ResponsesWriter>(std::move(options));
}

}  // namespace retroinfer::gateway
