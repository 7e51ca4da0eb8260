// One POST of /v1/completions, /v1/chat/completions, /v1/responses or /v1/messages, from its parsed
// body to the end of its answer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "http_gateway/api/answer_reader.h"
#include "http_gateway/api/answer_writer.h"
#include "http_gateway/api/chat_request.h"
#include "http_gateway/api/completion_request.h"
#include "http_gateway/api/response_json.h"
#include "http_gateway/server/computed_answer.h"

namespace retroinfer::gateway {

// The answer begins with the first event, so that what the worker refuses has its HTTP status; a
// stream that has none for a while begins anyway, and tells of errors in an event. While the client
// does not take what was sent, nothing more is read from the worker.
//
// Threads: the io_context's.
// Owns:    its calls, which end with it.
class Generation final : public ComputedAnswer {
 public:
  static constexpr size_t kUnsentMax = 32 << 10;         // bytes, until the client reads on
  static constexpr size_t kLogprobsBytesMax = 64 << 20;  // of an answer that is not streamed

  Generation(GenerationContext* context, AnswerRecipient recipient);
  ~Generation() override;

  void Start(CompletionRequest request);
  void Start(ChatRequest request);

  void OnSent() override;
  void OnTick(absl::Time now) override;

 private:
  struct Call;  // of the worker
  using Status = absl::Status;

  void PrepareEcho(size_t index);
  void PrepareChat(const ModelState& model);
  void MakeChatWriter(const AnswerReaderOptions& reader);
  void PrepareCompletions();
  void StartCalls();
  void StartCall(size_t index, generation::v1::GenerateRequest* request);
  int Continuations() const;

  void OnEvent(size_t call, generation::v1::GenerateResponse&& event);
  void OnPrompt(size_t call, const generation::v1::ScoredTokens& tokens);
  void OnCallEnd(size_t call, const Status& status);
  void BeginStream();
  void Send();  // what the writer has
  void Complete();
  void Fail(const Status& status, ErrorOrigin origin) override;
  void CancelCalls() override;

  std::vector<generation::v1::GenerateRequest> requests_;  // of the calls
  CompletionRequest completion_;
  ChatRequest chat_;

  // Asked for where the worker refuses the constraint; until the first event.
  std::optional<generation::v1::GenerateRequest> relaxed_;

  std::vector<std::string> echoes_;
  std::unique_ptr<AnswerWriter> writer_;  // since the calls are prepared
  std::vector<std::unique_ptr<Call>> calls_;
  size_t calls_ended_ = 0;
  UsageSum usage_;
  bool calls_started_ = false;
  bool streaming_ = false;  // the head has been sent
  absl::Time last_write_;
};

}  // namespace retroinfer::gateway
