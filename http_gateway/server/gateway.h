// What is at which path.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/door/key_ring.h"
#include "common/metrics/metrics.h"
#include "http_gateway/api/tool_form.h"
#include "http_gateway/http/exchange.h"
#include "http_gateway/json/ignored_names.h"
#include "http_gateway/json/strict_json.h"
#include "http_gateway/server/gateway_metrics.h"
#include "http_gateway/server/generation.h"
#include "http_gateway/server/model_names.h"
#include "http_gateway/worker/model_watch.h"
#include "http_gateway/worker/worker_client.h"

namespace retroinfer::gateway {

struct GatewayOptions {
  // None is needed by default. Keys of tenants are passed on to the worker, which has them, too.
  std::shared_ptr<common::KeyHolder> keys = *common::KeyHolder::Open("", "");
  std::vector<std::string> cors_origins;  // that pages may come from; "*": any. Empty: no CORS
  int generations_max = 1024;
  absl::Duration keepalive = absl::Seconds(5);
  bool page = true;                   // serve the page for people
  bool keep_billing_header = false;   // see DropBillingHeader()
  std::optional<ToolForm> tool_form;  // of the model's calls; nothing: as its template shows
  // Refuse parameters that change no answer, or are not known; else they are ignored, and a header
  // of the answer names them.
  bool strict_parameters = false;
  std::vector<std::string> model_names;  // see ModelNames
};

// OpenAI's HTTP API, and Anthropic's for messages, over a worker:
//
//   GET  /v1/models, /v1/models/NAME     POST /v1/completions, /v1/chat/completions, /v1/responses
//   GET  /health, /metrics, /stats       POST /v1/messages, /v1/messages/count_tokens
//                                        POST /score, /tokenize, /detokenize
//
// and, at /, a page for people. HEAD is GET without the body. All but /health and the page's files
// need the API key, if there is one. Bodies must say that they are JSON: what a page of a stranger
// can send without being asked (a form, text/plain) is refused.
//
// Threads: the io_context's; large bodies are parsed on a thread of its own.
class Gateway final : public RequestHandler {
 public:
  // REQUIRES: all outlive this, and `io` does not run when this ends.
  Gateway(const GatewayOptions& options, WorkerClient& worker, common::Metrics& metrics,
          boost::asio::io_context& io);
  ~Gateway() override;

  absl::Status Admit(const HttpRequest& head) override;
  std::shared_ptr<Responder> Handle(HttpRequest request,
                                    const std::shared_ptr<Exchange>& exchange) override;
  HttpResponse Refusal(const absl::Status& status, const std::string& path) override;
  void OnAnswer(const std::string& path, int status) override;

  int generations() const { return generation_context_.generations; }
  // From now on /health tells that this gateway ends, and new requests for generations and scores
  // are refused, as the worker refuses them while it drains.
  void StartDraining() { draining_ = true; }

 private:
  struct Request;  // one that is being answered, and its headers
  using Handler = std::shared_ptr<Responder> (Gateway::*)(const std::shared_ptr<Request>&);
  struct Route {
    const char* method;
    const char* path;
    Handler handler;
  };
  static const std::vector<Route>& Routes();
  static bool IsWork(const Route& route);
  const Route* Find(const std::string& method, const std::string& path) const;

  std::shared_ptr<Responder> Models(const std::shared_ptr<Request>& request);
  std::shared_ptr<Responder> Page(const std::shared_ptr<Request>& request);
  std::shared_ptr<Responder> Stats(const std::shared_ptr<Request>& request);
  std::shared_ptr<Responder> Health(const std::shared_ptr<Request>& request);
  std::shared_ptr<Responder> Metrics(const std::shared_ptr<Request>& request);
  std::shared_ptr<Responder> Complete(const std::shared_ptr<Request>& request);
  std::shared_ptr<Responder> Chat(const std::shared_ptr<Request>& request);
  std::shared_ptr<Responder> Responses(const std::shared_ptr<Request>& request);
  std::shared_ptr<Responder> Messages(const std::shared_ptr<Request>& request);
  std::shared_ptr<Responder> CountTokens(const std::shared_ptr<Request>& request);
  std::shared_ptr<Responder> Score(const std::shared_ptr<Request>& request);
  std::shared_ptr<Responder> Tokenize(const std::shared_ptr<Request>& request);
  std::shared_ptr<Responder> Detokenize(const std::shared_ptr<Request>& request);

  // Reads the body as a T by `read` (of a parsed body), here or, if it is large, elsewhere, and
  // passes the result to `next`. A conversation in it is made what the prompt is made of. What was
  // ignored is the last one of the request's headers then.
  template <typename T>
  using BodyReader = absl::StatusOr<T> (*)(const Json&, IgnoredNames*);
  template <typename T>
  void Parse(const std::shared_ptr<Request>& request, BodyReader<T> read,
             std::function<void(T)> next);
  // Lets an Answerer (Generation, Scoring) answer, unless generations_max are being answered.
  template <typename Answerer, typename T>
  std::shared_ptr<Responder> Compute(const std::shared_ptr<Request>& request, BodyReader<T> read);

  const GatewayOptions options_;
  const ModelNames names_;
  WorkerClient& worker_;
  common::Metrics& metrics_;
  boost::asio::io_context& io_;
  ModelWatch models_;
  GatewayMetrics counts_;
  GenerationContext generation_context_;
  const int64_t started_;  // seconds since 1970
  bool draining_ = false;
  boost::asio::thread_pool parser_{1};
};

}  // namespace retroinfer::gateway
