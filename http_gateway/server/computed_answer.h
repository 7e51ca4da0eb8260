// What generations and scorings have in common: an answer that the worker computes.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "http_gateway/api/api_error.h"
#include "http_gateway/api/response_json.h"
#include "http_gateway/api/sampling_fields.h"
#include "http_gateway/http/exchange.h"
#include "http_gateway/server/gateway_metrics.h"
#include "http_gateway/server/model_names.h"
#include "http_gateway/worker/model_watch.h"
#include "http_gateway/worker/worker_client.h"

namespace retroinfer::gateway {

// What these answers need of the gateway; outlives them all.
struct GenerationContext {
  WorkerClient* worker = nullptr;
  ModelWatch* models = nullptr;
  const ModelNames* names = nullptr;
  GatewayMetrics* metrics = nullptr;
  // Comments keep proxies and clients from giving a silent stream up.
  absl::Duration keepalive = absl::Seconds(5);
  int generations_max = 1024;
  int generations = 0;  // that are not over, scorings included
};

// Whom an answer is for.
struct AnswerRecipient {
  std::shared_ptr<Exchange> exchange;
  std::string request_id;  // valid for the worker
  HttpHeaders headers;     // of the response
  // The client's header, passed on to the worker; empty: the calls have the gateway's own key.
  std::string authorization;
  ErrorForm error_form = ErrorForm::kOpenAi;
};

// One request, from its parsed body to the end of its answer. Counts among the context's
// generations while it lives.
//
// Threads: the io_context's.
class ComputedAnswer : public Responder, public std::enable_shared_from_this<ComputedAnswer> {
 public:
  ~ComputedAnswer() override;
  ComputedAnswer(const ComputedAnswer&) = delete;
  ComputedAnswer& operator=(const ComputedAnswer&) = delete;

  // Gives the response one header more. To be called before the answer begins.
  void AddHeader(std::string name, std::string value);
  void OnClientGone() final;
  void OnShutdown(const absl::Status& status) final;

 protected:
  ComputedAnswer(GenerationContext* context, AnswerRecipient recipient);

  // Calls `next` with what is known of the model, unless the answer is over by then. Fails if the
  // worker does not tell, or options_ ask for another model.
  void AwaitModel(bool with_chat, std::function<void(const ModelState&)> next);
  // Ends the answer with an error.
  virtual void Fail(const absl::Status& status, ErrorOrigin origin) = 0;
  // Cancels the calls of the worker that have not ended.
  virtual void CancelCalls() = 0;
  // Cancels the calls; nothing is sent to the client from now on. To be called by the destructors
  // of what has calls.
  void Close();

  // Of a request that was ended there, although nobody here has cancelled it.
  static absl::Status AbortedByWorker();

  GenerationContext* const context_;
  std::shared_ptr<Exchange> exchange_;  // null: the answer is over, or the client has gone
  const std::string request_id_;
  HttpHeaders headers_;
  const std::string authorization_;
  const ErrorForm error_form_;
  const absl::Time arrival_;
  RequestOptions options_;
  AnswerHead head_;
};

}  // namespace retroinfer::gateway
