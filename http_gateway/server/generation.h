// One POST of /v1/completions or /v1/chat/completions, from its parsed body to the end of its
// answer.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "http_gateway/api/api_error.h"
#include "http_gateway/api/chat_request.h"
#include "http_gateway/api/choice.h"
#include "http_gateway/api/completion_request.h"
#include "http_gateway/api/response_json.h"
#include "http_gateway/http/exchange.h"
#include "http_gateway/server/gateway_metrics.h"
#include "http_gateway/worker/model_watch.h"
#include "http_gateway/worker/worker_client.h"

namespace retroinfer::gateway {

// What generations need of the gateway; outlives them all.
struct GenerationContext {
  WorkerClient* worker = nullptr;
  ModelWatch* models = nullptr;
  GatewayMetrics* metrics = nullptr;
  // Comments keep proxies and clients from giving a silent stream up.
  absl::Duration keepalive = absl::Seconds(5);
  int generations_max = 1024;
  int generations = 0;  // that are not over
};

// The answer begins with the first event, so that what the worker refuses has its HTTP status; a
// stream that has none for a while begins anyway, and tells of errors in an event. While the client
// does not take what was sent, nothing more is read from the worker.
//
// Threads: the io_context's.
// Owns:    its calls, which end with it.
class Generation final : public Responder, public std::enable_shared_from_this<Generation> {
 public:
  static constexpr size_t kUnsentMax = 32 << 10;         // bytes, until the client reads on
  static constexpr size_t kLogprobsBytesMax = 64 << 20;  // of an answer that is not streamed

  // `request_id`: valid for the worker. `authorization`: of the one for whom it is; empty: the
  // gateway's own.
  Generation(GenerationContext* context, std::shared_ptr<Exchange> exchange, std::string request_id,
             HttpHeaders headers, std::string authorization);
  ~Generation() override;

  void Start(CompletionRequest request);
  void Start(ChatRequest request);

  void OnSent() override;
  void OnClientGone() override;
  void OnTick(absl::Time now) override;

 private:
  struct Call;  // of the worker
  using Status = absl::Status;

  void Prepare(bool with_chat, std::function<void(const ModelState&)> next);
  void PrepareEcho(size_t index);
  void PrepareCompletion();
  void PrepareChat(const ModelState& model);
  void PrepareForcedCall(const std::string& opening);
  void StartCalls();
  void AddCompletionChoices();
  int Continuations() const;

  void OnEvent(size_t call, generation::v1::GenerateResponse&& event);
  void OnPrompt(size_t call, const generation::v1::ScoredTokens& tokens);
  void OnCallEnd(size_t call, const Status& status);
  void OnProgress(size_t call, const generation::v1::PrefillProgress& progress);
  void BeginStream();
  void SendChunks();
  void SendChunk(const std::string& more);
  void Complete();
  void Fail(const Status& status, ErrorOrigin origin);
  void Close();

  GenerationContext* const context_;
  std::shared_ptr<Exchange> exchange_;  // null: the answer is over, or the client has gone
  const std::string request_id_;
  const HttpHeaders headers_;
  const std::string authorization_;
  const absl::Time arrival_;

  RequestOptions options_;
  std::vector<generation::v1::GenerateRequest> requests_;  // of the calls
  CompletionRequest completion_;
  ChatRequest chat_;
  bool is_chat_ = false;

  AnswerHead head_;
  std::optional<ChunkWriter> chunks_;  // while calls run
  std::vector<std::string> echoes_;
  std::vector<std::unique_ptr<Choice>> choices_;  // by prompt, then continuation
  std::vector<std::unique_ptr<Call>> calls_;
  size_t calls_ended_ = 0;
  UsageSum usage_;
  bool calls_started_ = false;
  bool streaming_ = false;  // the head has been sent
  absl::Time last_write_;
};

}  // namespace retroinfer::gateway
