#include "http_gateway/api/messages_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "http_gateway/api/answer_items.h"
#include "http_gateway/api/chunk_writer.h"
#include "http_gateway/json/json_text.h"
#include "http_gateway/json/strict_json.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

using Kind = AnswerItem::Kind;

constexpr char kSignature[] = "unsigned";  // clients keep thoughts that have one
constexpr common::JsonLimits kArgumentsJson = {
    .bytes_max = size_t{64} << 20, .values_max = 1'000'000, .depth_max = 64};

// The prompt's tokens are told apart by whether they were in the cache.
std::string UsageMember(int64_t prompt_tokens, int64_t cached_tokens, int64_t output_tokens) {
  return absl::StrCat(R"({"input_tokens":)", prompt_tokens - cached_tokens,
                      R"(,"cache_creation_input_tokens":0,"cache_read_input_tokens":)",
                      cached_tokens, R"(,"output_tokens":)", output_tokens, "}");
}

// A call's arguments where they must be an object; those of a call that was cut are none.
std::string InputOf(const AnswerItem& call) {
  const absl::StatusOr<Json> json = ParseStrictJson(call.text, kArgumentsJson);
  return json.ok() && json->is_object() ? json->dump() : "{}";
}

// A block as a whole.
std::string BlockJson(const AnswerItem& item) {
  switch (item.kind) {
    case Kind::kThoughts:
      return absl::StrCat(R"({"type":"thinking","thinking":)", JsonString(item.text),
                          R"(,"signature":")", kSignature, "\"}");
    case Kind::kCall:
      return absl::StrCat(R"({"type":"tool_use","id":)", JsonString(item.call_id), R"(,"name":)",
                          JsonString(item.name), R"(,"input":)", InputOf(item), "}");
    case Kind::kText:
      break;
  }
  return absl::StrCat(R"({"type":"text","text":)", JsonString(item.text), "}");
}

class MessagesWriter final : public AnswerWriter, private AnswerItems::Listener {
 public:
  explicit MessagesWriter(MessagesOptions options)
      : options_(std::move(options)), items_(options_.reader, this), events_("", "\n\n") {}

  // The message starts with the first thing that is known of it: it tells of the prompt.
  void Begin() override {}
  void Progress(size_t /*choice*/, const v1::PrefillProgress& progress) override {
    Start(progress.total_tokens(), progress.cached_tokens());
  }
  void Output(size_t /*choice*/, const v1::OutputChunk& chunk) override {
    Start(chunk.prompt_tokens(), chunk.cached_tokens());
    items_.Append(chunk.text(), chunk.completion_tokens());
  }
  void Finish(size_t /*choice*/, const v1::Finished& finished) override {
    Start(finished.prompt_tokens(), finished.cached_tokens());
    items_.Finish();
    switch (finished.reason()) {
      case v1::FINISH_REASON_STOP:
        stop_reason_ = items_.num_calls() > 0        ? "tool_use"
                       : finished.has_matched_stop() ? "stop_sequence"
                                                     : "end_turn";
        if (finished.has_matched_stop()) stop_sequence_ = JsonString(finished.matched_stop());
        break;
      default:
        stop_reason_ = "max_tokens";
    }
  }

  void End(const Usage& usage) override {
    Event("message_delta", absl::StrCat(R"(,"delta":{"stop_reason":")", stop_reason_,
                                        R"(","stop_sequence":)", stop_sequence_, R"(},"usage":)",
                                        UsageMember(usage.prompt_tokens, usage.cached_tokens,
                                                    usage.completion_tokens)));
    Event("message_stop", "");
  }
  void Fail(const ApiError& error) override {
    events_.AppendRaw(absl::StrCat("event: error\ndata: ", error.ToJson(), "\n\n"));
  }
  void KeepAlive() override {
    Start(0, 0);
    Event("ping", "");
  }

  std::string Whole(const Usage& usage) const override {
    std::string content;
    for (const AnswerItem& item : items_.items()) {
      absl::StrAppend(&content, content.empty() ? "" : ",", BlockJson(item));
    }
    return Message(content, absl::StrCat("\"", stop_reason_, "\""),
                   UsageMember(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens));
  }

  std::string_view unsent() const override { return events_.text(); }
  void ClearUnsent() override { events_.Clear(); }

 private:
  std::string Message(const std::string& content, const std::string& stop_reason,
                      const std::string& usage) const {
    return absl::StrCat(R"({"id":)", JsonString(options_.head.id),
                        R"(,"type":"message","role":"assistant","model":)",
                        JsonString(options_.head.model), R"(,"content":[)", content,
                        R"(],"stop_reason":)", stop_reason, R"(,"stop_sequence":)", stop_sequence_,
                        R"(,"usage":)", usage, "}");
  }

  void Start(int64_t prompt_tokens, int64_t cached_tokens) {
    if (!options_.streams || std::exchange(has_started_, true)) return;
    Event("message_start",
          absl::StrCat(R"(,"message":)",
                       Message("", "null", UsageMember(prompt_tokens, cached_tokens, 0))));
  }

  // `members`: behind the type.
  void Event(const char* type, std::string_view members) {
    std::string* const out = events_.Begin();
    absl::StrAppend(out, "event: ", type, "\ndata: {\"type\":\"", type, "\"");
    out->append(members).push_back('}');
    events_.End();
  }

  // `members`: of the delta.
  void Delta(size_t index, const char* type, const char* name, std::string_view text) {
    Event("content_block_delta", absl::StrCat(R"(,"index":)", index, R"(,"delta":{"type":")", type,
                                              R"(",")", name, R"(":)", JsonString(text), "}"));
  }

  void OnItemBegin(size_t index, const AnswerItem& item) override {
    if (!options_.streams) return;
    const std::string block = item.kind == Kind::kThoughts
                                  ? R"({"type":"thinking","thinking":"","signature":""})"
                                  : BlockJson(item);
    Event("content_block_start",
          absl::StrCat(R"(,"index":)", index, R"(,"content_block":)", block));
  }

  void OnItemText(size_t index, const AnswerItem& item, std::string_view text) override {
    if (!options_.streams) return;
    switch (item.kind) {
      case Kind::kThoughts:
        return Delta(index, "thinking_delta", "thinking", text);
      case Kind::kText:
        return Delta(index, "text_delta", "text", text);
      case Kind::kCall:
        return Delta(index, "input_json_delta", "partial_json", text);
    }
  }

  void OnItemEnd(size_t index, const AnswerItem& item) override {
    if (!options_.streams) return;
    if (item.kind == Kind::kThoughts) Delta(index, "signature_delta", "signature", kSignature);
    Event("content_block_stop", absl::StrCat(R"(,"index":)", index));
  }

  const MessagesOptions options_;
  AnswerItems items_;
  ChunkWriter events_;
  bool has_started_ = false;
  std::string stop_reason_;
  std::string stop_sequence_ = "null";  // JSON
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeMessagesWriter(MessagesOptions options) {
  return std::make_unique<MessagesWriter>(std::move(options));
}

}  // namespace retroinfer::gateway
