// What clients send to a worker: bytes that may be a message, and messages that may be a request.
// Whatever they are, they become requests that the engine can take, or a refusal that says why.
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "common/rpc/message_codec.h"
#include "common/status/error_reason.h"
#include "gpu_worker/engine/sampling_validation.h"
#include "gpu_worker/server/request_reader.h"
#include "retroinfer/generation/v1/contexts.pb.h"
#include "retroinfer/generation/v1/generation.pb.h"
#include "tests/fuzz/message_calls.h"
#include "tests/support/byte_tokenizer.h"

namespace {

using namespace retroinfer;  // NOLINT: one file
namespace v1 = retroinfer::generation::v1;

constexpr int64_t kMaxModelLen = 4096;
constexpr int32_t kVocabSize = 300;

void Require(bool condition) {
  if (!condition) std::abort();
}

// A refusal has a code that blames the client or the server's limits, and a reason.
void CheckRefusal(const absl::Status& status) {
  Require(absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
          absl::IsResourceExhausted(status));
  Require(!common::ReasonOf(status).reason.empty() && !status.message().empty());
}

void CheckSubmission(const GenerateCall::Submission& submission) {
  Require(!submission.request_id.empty() && submission.request_id.size() <= 128);
  Require(!submission.continuations.empty() && submission.continuations.size() <= 16);
  for (const GenerationRequest& request : submission.continuations) {
    Require(ValidateRequest(request, kVocabSize, kMaxModelLen).ok());
    Require(!request.prompt.empty() && request.cache_salt.size() <= 256);
    for (const int32_t token : request.prompt) Require(token >= 0 && token < kVocabSize);
  }
}

struct Server {
  Server() {
    fuzz::SilenceProtobuf();
    model.tokenizer = tokenizer.get();
    model.chat_template = &chat_template;
    model.vocab_size = kVocabSize;
    model.default_sampling.max_tokens = 64;
  }
  const std::unique_ptr<Tokenizer> tokenizer = MakeByteTokenizer(
      {.chat_template =
           "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.name }}{{ m.content }}"
           "{{ m.tool_calls | tojson }}{{ m.reasoning_content }}<|im_end|>{% endfor %}"
           "{% for tool in tools %}{{ tool.function.name }}{% endfor %}{{ extra }}"
           "{% if add_generation_prompt %}<|im_start|>{% endif %}"});
  const ChatTemplate chat_template = ChatTemplate::Create(*tokenizer);
  ServedModel model;
  const RequestReader reader{model, kMaxModelLen};
};

const std::vector<const google::protobuf::Message*>& Types() {
  static const auto* const types = new std::vector<const google::protobuf::Message*>{
      &v1::GenerateRequest::default_instance(),      &v1::TokenizeRequest::default_instance(),
      &v1::DetokenizeRequest::default_instance(),    &v1::AbortRequest::default_instance(),
      &v1::GetModelInfoRequest::default_instance(),  &v1::SaveContextRequest::default_instance(),
      &v1::ListContextsRequest::default_instance(),  &v1::ImportContextRequest::default_instance(),
      &v1::ExportContextRequest::default_instance(),
  };
  return *types;
}

void Handle(const Server& server, const fuzz::Call& call) {
  const grpc::Slice slice(call.bytes);
  const std::unique_ptr<google::protobuf::Message> message(
      Types()[call.kind % Types().size()]->New());
  const absl::Status parsed = common::ParseRequest(grpc::ByteBuffer(&slice, 1), message.get());
  if (!parsed.ok()) return CheckRefusal(parsed);
  Require(common::CheckKnownFields(*message).ok());
  if (const auto* generate = dynamic_cast<const v1::GenerateRequest*>(message.get())) {
    const auto submission = server.reader.Read(*generate, absl::InfiniteFuture());
    return submission.ok() ? CheckSubmission(*submission) : CheckRefusal(submission.status());
  }
  if (const auto* tokenize = dynamic_cast<const v1::TokenizeRequest*>(message.get())) {
    const auto tokens = server.reader.Tokenize(*tokenize);
    if (!tokens.ok()) return CheckRefusal(tokens.status());
    for (const int32_t token : *tokens) Require(token >= 0 && token < kVocabSize);
    return;
  }
  if (const auto* detokenize = dynamic_cast<const v1::DetokenizeRequest*>(message.get())) {
    const auto text = server.reader.Detokenize(*detokenize);
    if (!text.ok()) return CheckRefusal(text.status());
    v1::DetokenizeResponse response;
    response.set_text(*text);
    Require(response.ParseFromString(response.SerializeAsString()));  // it is UTF-8
  }
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  return retroinfer::fuzz::MutateCalls(data, size, max_size, seed, Types());
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const server = new Server;
  for (const fuzz::Call& call : fuzz::ReadCalls({reinterpret_cast<const char*>(data), size})) {
    Handle(*server, call);
  }
  return 0;
}
