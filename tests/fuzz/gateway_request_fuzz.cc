// What strangers send to the gateway, and what models write. The first byte says what the rest is:
// the body of a chat (c), a response (o), a message (a), a completion (p), /score (s), /tokenize
// (t) or /detokenize (d); or an answer with calls in the form of Hermes (h), Llama (l), Qwen3-Coder
// (q), Mistral (m) or JSON (j), or with thoughts (r); or one that is written as responses and
// messages (w).
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "http_gateway/api/answer_reader.h"
#include "http_gateway/api/api_error.h"
#include "http_gateway/api/chat_plan.h"
#include "http_gateway/api/chat_request.h"
#include "http_gateway/api/completion_request.h"
#include "http_gateway/api/messages_request.h"
#include "http_gateway/api/messages_writer.h"
#include "http_gateway/api/reasoning_splitter.h"
#include "http_gateway/api/responses_request.h"
#include "http_gateway/api/responses_writer.h"
#include "http_gateway/api/score_request.h"
#include "http_gateway/api/tokenize_request.h"
#include "http_gateway/json/json_text.h"

namespace {

using namespace retroinfer::gateway;  // NOLINT: one file

void Require(bool condition) {
  if (!condition) std::abort();
}

// A refusal is an error that the client can read, in both shapes, and its own fault.
void CheckRefusal(const absl::Status& status) {
  for (const ErrorForm form : {ErrorForm::kOpenAi, ErrorForm::kAnthropic}) {
    const ApiError error = ToApiError(status, ErrorOrigin::kGateway, form);
    Require(error.http_status == 400);
    Require(ParseStrictJson(error.ToJson()).ok());
  }
}

template <typename T>
void CheckBody(std::string_view body, absl::StatusOr<T> (*read)(const Json&, IgnoredNames*),
               void (*check)(const T&)) {
  const absl::StatusOr<Json> json = ParseStrictJson(body, {.values_max = 10'000, .depth_max = 64});
  if (!json.ok()) return CheckRefusal(json.status());
  IgnoredNames ignored;
  for (IgnoredNames* const names : {&ignored, static_cast<IgnoredNames*>(nullptr)}) {
    const absl::StatusOr<T> request = read(*json, names);
    if (request.ok()) {
      check(*request);
    } else {
      CheckRefusal(request.status());
    }
  }
  // A header has room for it.
  Require(ignored.ToString().size() <=
          (IgnoredNames::kNamesMax + 1) * (IgnoredNames::kNameBytesMax + 2));
}

// gRPC would refuse it as broken if a string were not UTF-8.
template <typename Message>
void CheckMessage(const Message& message) {
  Message copy;
  Require(copy.ParseFromString(message.SerializeAsString()));
}

// Whatever the model's form of calls is, the worker is asked for what it can read, or the client is
// told.
void CheckChat(const ChatRequest& request) {
  CheckMessage(request.call);
  for (const ToolForm form :
       {ToolForm::kNone, ToolForm::kText, ToolForm::kHermes, ToolForm::kLlama, ToolForm::kQwenCoder,
        ToolForm::kMistral, ToolForm::kMistralArgs, ToolForm::kJson}) {
    ChatRequest chat = request;
    const absl::StatusOr<ChatPlan> plan = PlanChat({.tool_form = form}, &chat);
    if (!plan.ok()) {
      CheckRefusal(plan.status());
      continue;
    }
    CheckMessage(chat.call);
    Require(plan->reader.functions.empty() || !request.tools.functions.empty());
  }
}

// Beside that, what a response repeats are members of an object.
void CheckForm(const ChatRequest& request) {
  CheckChat(request);
  Require(request.call.messages().messages_size() > 0);
  Require(ParseStrictJson("{" + request.echo + "}").ok());
}

// Text as it is, calls between marks.
class Shown {
 public:
  explicit Shown(ToolForm form)
      : reader_({.tool_form = form, .functions = CallableFunctions::Named({"f", "g"})}) {}
  void Append(std::string_view text) { Show(reader_.Append(text)); }
  std::string Finish() {
    Show(reader_.Finish());
    Require(!in_call_);
    return text_;
  }

 private:
  void Show(const std::vector<AnswerPiece>& pieces) {
    using Kind = AnswerPiece::Kind;
    for (const AnswerPiece& piece : pieces) {
      Require(in_call_ == (piece.kind == Kind::kCallArguments || piece.kind == Kind::kCallEnd));
      Require(piece.text.empty() == (piece.kind == Kind::kCallEnd));
      if (piece.kind == Kind::kCallBegin) {
        in_call_ = true;
        text_.append("[call ");
      } else if (piece.kind == Kind::kCallEnd) {
        in_call_ = false;
        text_.append("]");
      }
      text_.append(piece.text);
    }
  }

  AnswerReader reader_;
  bool in_call_ = false;
  std::string text_;
};

// An answer means the same however it is cut.
void CheckCalls(ToolForm form, std::string_view text) {
  Shown whole(form), pieces(form);
  whole.Append(text);
  for (const char c : text) pieces.Append({&c, 1});
  Require(pieces.Finish() == whole.Finish());
}

void CheckThoughts(std::string_view text) {
  for (const bool inside : {false, true}) {
    ReasoningSplitter whole(inside), pieces(inside);
    ReasoningSplitter::Parts expected = whole.Append(text);
    const ReasoningSplitter::Parts rest = whole.Finish();
    expected.reasoning.append(rest.reasoning);
    expected.content.append(rest.content);
    ReasoningSplitter::Parts shown;
    const auto add = [&shown](const ReasoningSplitter::Parts& parts) {
      shown.reasoning.append(parts.reasoning);
      shown.content.append(parts.content);
    };
    for (const char c : text) add(pieces.Append({&c, 1}));
    add(pieces.Finish());
    Require(shown.reasoning == expected.reasoning && shown.content == expected.content);
    Require(expected.reasoning.size() + expected.content.size() <= text.size());
  }
}

// Each event is one line of JSON, and so is the whole answer.
void CheckWriter(AnswerWriter& writer, std::string_view text) {
  namespace v1 = retroinfer::generation::v1;
  writer.Begin();
  v1::OutputChunk chunk;
  for (size_t at = 0; at < text.size(); ++at) {
    chunk.mutable_text()->push_back(text[at]);
    const bool is_whole = at + 1 == text.size() || (text[at + 1] & 0xc0) != 0x80;
    if (!is_whole) continue;
    writer.Output(0, chunk);
    chunk.clear_text();
  }
  v1::Finished finished;
  finished.set_reason(v1::FINISH_REASON_STOP);
  writer.Finish(0, finished);
  Require(ParseStrictJson(writer.Whole({})).ok());
  writer.End({});
  std::string_view events = writer.unsent();
  while (!events.empty()) {
    const size_t end = events.find("\n\n");
    Require(end != std::string_view::npos);
    const std::string_view event = events.substr(0, end);
    const size_t data = event.find("\ndata: ");
    Require(event.starts_with("event: ") && data != std::string_view::npos);
    Require(ParseStrictJson(std::string(event.substr(data + 7))).ok());
    events.remove_prefix(end + 2);
  }
}

void CheckForms(std::string_view text) {
  if (!ParseStrictJson(JsonString(text)).ok()) return;  // no UTF-8
  AnswerReaderOptions reader;
  reader.tool_form = ToolForm::kHermes;
  reader.functions = CallableFunctions::Named({"f", "g"});
  reader.splitter.emplace(false);
  const AnswerHead head = {"id", "", 1, "m"};
  CheckWriter(*MakeResponsesWriter(
                  {.head = head, .streams = true, .reader = reader, .echo = R"("tools":[])"}),
              text);
  CheckWriter(*MakeMessagesWriter({.head = head, .streams = true, .reader = reader}), text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  namespace v1 = retroinfer::generation::v1;
  switch (data[0]) {
    case 'c':
      CheckBody<ChatRequest>(rest, ReadChatRequest, CheckChat);
      break;
    case 'o':
      CheckBody<ChatRequest>(rest, ReadResponsesRequest, CheckForm);
      break;
    case 'a':
      CheckBody<ChatRequest>(rest, ReadMessagesRequest, CheckForm);
      break;
    case 'w':
      CheckForms(rest);
      break;
    case 'p':
      CheckBody<CompletionRequest>(rest, ReadCompletionRequest,
                                   [](const CompletionRequest& request) {
                                     Require(!request.calls.empty());
                                     for (const auto& call : request.calls) CheckMessage(call);
                                   });
      break;
    case 's':
      CheckBody<ScoreCall>(rest, ReadScoreRequest, [](const ScoreCall& call) {
        Require(call.request.continuations_size() <=
                static_cast<int>(ScoreCall::kContinuationsMax));
        CheckMessage(call.request);
      });
      break;
    case 't':
      CheckBody<TokenizeCall>(rest, ReadTokenizeRequest,
                              [](const TokenizeCall& call) { CheckMessage(call.request); });
      break;
    case 'd':
      CheckBody<v1::DetokenizeRequest>(rest, ReadDetokenizeRequest,
                                       CheckMessage<v1::DetokenizeRequest>);
      break;
    case 'h':
      CheckCalls(ToolForm::kHermes, rest);
      break;
    case 'l':
      CheckCalls(ToolForm::kLlama, rest);
      break;
    case 'q':
      CheckCalls(ToolForm::kQwenCoder, rest);
      break;
    case 'm':
      CheckCalls(ToolForm::kMistral, rest);
      break;
    case 'j':
      CheckCalls(ToolForm::kJson, rest);
      break;
    case 'r':
      CheckThoughts(rest);
      break;
    default:
      break;
  }
  return 0;
}
