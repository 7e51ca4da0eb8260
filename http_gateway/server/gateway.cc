#include "http_gateway/server/gateway.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"
#include "http_gateway/api/api_error.h"
#include "http_gateway/api/stable_prompt.h"
#include "http_gateway/api/stats_json.h"
#include "http_gateway/api/tokenize_request.h"
#include "http_gateway/json/json_text.h"
#include "http_gateway/page/page_file.h"
#include "http_gateway/server/error_response.h"
#include "http_gateway/server/scoring.h"
#include "retroinfer/rpc/v1/health.pb.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

constexpr char kTokenizeMethod[] = "/retroinfer.generation.v1.GenerationService/Tokenize";
constexpr char kDetokenizeMethod[] = "/retroinfer.generation.v1.GenerationService/Detokenize";
constexpr char kHealthMethod[] = "/grpc.health.v1.Health/Check";
constexpr char kHealthPath[] = "/health";
constexpr char kPagePath[] = "/";
constexpr std::string_view kGet = "GET";
constexpr char kModelsPrefix[] = "/v1/models/";
// However many pages ask, the worker is asked no more often than this.
constexpr absl::Duration kStatsAge = absl::Milliseconds(250);
constexpr absl::Duration kHealthTimeout = absl::Seconds(2);
constexpr absl::Duration kTokenizerTimeout = absl::Seconds(60);
// A body of this size takes about a millisecond, for which all streams wait.
constexpr size_t kLargeBodyBytes = 64 << 10;
constexpr size_t kRequestIdMax = 100;  // the worker takes 128; prompts of a list get numbers

bool IsRequestId(const std::string& id) {
  if (id.empty() || id.size() > kRequestIdMax) return false;
  for (const char c : id) {
    if (!absl::ascii_isalnum(c) && std::string_view("._:-").find(c) == std::string_view::npos) {
      return false;
    }
  }
  return true;
}

std::string NewRequestId() {
  thread_local absl::BitGen random;
  return absl::StrFormat("%016x%016x", absl::Uniform<uint64_t>(random),
                         absl::Uniform<uint64_t>(random));
}

std::string UnescapePath(std::string_view path) {
  std::string text;
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] == '%' && i + 2 < path.size() && absl::ascii_isxdigit(path[i + 1]) &&
        absl::ascii_isxdigit(path[i + 2])) {
      text.push_back(static_cast<char>(std::stoi(std::string(path.substr(i + 1, 2)), nullptr, 16)));
      i += 2;
    } else {
      text.push_back(path[i]);
    }
  }
  return text;
}

bool IsJson(const std::string& content_type) {
  const std::string type(
      absl::StripAsciiWhitespace(content_type.substr(0, content_type.find(';'))));
  return absl::EqualsIgnoreCase(type, "application/json");
}

std::string ModelJson(const v1::GetModelInfoResponse& info, int64_t created) {
  return absl::StrCat(R"({"id":)", JsonString(info.model_name()), R"(,"object":"model","created":)",
                      created, R"(,"owned_by":"retroinfer","max_model_len":)", info.max_model_len(),
                      "}");
}

// Null: the request has none.
v1::Messages* ConversationOf(ChatRequest& request) { return request.call.mutable_messages(); }
v1::Messages* ConversationOf(ScoreCall& call) {
  return call.request.has_messages() ? call.request.mutable_messages() : nullptr;
}
v1::Messages* ConversationOf(TokenizeCall& call) {
  return call.request.has_messages() ? call.request.mutable_messages() : nullptr;
}
v1::Messages* ConversationOf(CompletionRequest&) { return nullptr; }
v1::Messages* ConversationOf(v1::DetokenizeRequest&) { return nullptr; }

}  // namespace

struct Gateway::Request {
  void Respond(HttpResponse response) const {
    response.headers.insert(response.headers.end(), headers.begin(), headers.end());
    exchange->Respond(std::move(response));
  }

  HttpRequest http;
  std::shared_ptr<Exchange> exchange;
  std::string id;
  HttpHeaders headers;  // of the response
};

Gateway::Gateway(const GatewayOptions& options, WorkerClient& worker, common::Metrics& metrics,
                 boost::asio::io_context& io)
    : options_(options),
      worker_(worker),
      metrics_(metrics),
      io_(io),
      models_(worker),
      counts_(metrics),
      generation_context_{.worker = &worker,
                          .models = &models_,
                          .metrics = &counts_,
                          .keepalive = options.keepalive,
                          .generations_max = options.generations_max},
      started_(absl::ToUnixSeconds(absl::Now())) {}

Gateway::~Gateway() {
  parser_.stop();
  parser_.join();
}

const std::vector<Gateway::Route>& Gateway::Routes() {
  static const std::vector<Route> routes = {
      {"GET", "/v1/models", &Gateway::Models},
      {"POST", "/v1/completions", &Gateway::Complete},
      {"POST", "/v1/chat/completions", &Gateway::Chat},
      {"POST", "/score", &Gateway::Score},
      {"POST", "/tokenize", &Gateway::Tokenize},
      {"POST", "/detokenize", &Gateway::Detokenize},
      {"GET", kHealthPath, &Gateway::Health},
      {"GET", "/metrics", &Gateway::Metrics},
      {"GET", "/stats", &Gateway::Stats},
      {"GET", kPagePath, &Gateway::Page},
  };
  return routes;
}

// The route of a path; of another method if there is none of this one.
const Gateway::Route* Gateway::Find(const std::string& method, const std::string& path) const {
  std::string known = path;
  if (absl::StartsWith(path, kModelsPrefix)) known = "/v1/models";
  if (options_.page && FindPageFile(path) != nullptr) known = kPagePath;
  const std::string wanted = method == "HEAD" ? "GET" : method;
  const Route* other = nullptr;
  for (const Route& route : Routes()) {
    if (known != route.path || (route.handler == &Gateway::Page && !options_.page)) continue;
    if (wanted == route.method) return &route;
    other = &route;
  }
  return other;
}

// What Compute() answers.
bool Gateway::IsWork(const Route& route) {
  return route.handler == &Gateway::Complete || route.handler == &Gateway::Chat ||
         route.handler == &Gateway::Score;
}

absl::Status Gateway::Admit(const HttpRequest& head) {
  const Route* const route = Find(head.method, head.path);
  const bool is_preflight = head.method == "OPTIONS" && !options_.cors_origins.empty();
  const bool is_page = route != nullptr && route->handler == &Gateway::Page;
  if (head.path != kHealthPath && !is_page && !is_preflight) {
    const std::shared_ptr<const common::KeyRing> ring = options_.keys->ring();
    RETURN_IF_ERROR(ring->Find(head.authorization).status());
    // A call for all clients, such as the one for the model's name, needs a tenant's key, too.
    if (ring->names_tenants()) worker_.UseAuthorization(head.authorization);
  }
  if (route == nullptr) {
    return common::WithReason(
        absl::NotFoundError("there is nothing at this path; see GET /v1/models, POST "
                            "/v1/completions, POST /v1/chat/completions"),
        "UNKNOWN_PATH");
  }
  if (is_preflight) return absl::OkStatus();
  if (head.method != route->method && !(head.method == "HEAD" && route->method == kGet)) {
    return common::WithReason(
        absl::UnimplementedError(absl::StrCat("this path takes ", route->method)),
        "METHOD_NOT_ALLOWED");
  }
  if (head.method == "POST" && !IsJson(head.content_type)) {
    return common::WithReason(
        absl::InvalidArgumentError("send the header 'Content-Type: application/json'"),
        "UNSUPPORTED_MEDIA_TYPE");
  }
  if (draining_ && IsWork(*route)) return DrainingError();  // before its body comes
  return absl::OkStatus();
}

HttpHeaders Gateway::HeadersFor(const HttpRequest& request, const std::string& request_id) const {
  HttpHeaders headers = {{"X-Request-Id", request_id}};
  if (options_.cors_origins.empty()) return headers;
  headers.emplace_back("Vary", "Origin");
  for (const std::string& origin : options_.cors_origins) {
    if (request.origin.empty() || (origin != "*" && origin != request.origin)) continue;
    headers.emplace_back("Access-Control-Allow-Origin", origin);
    headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    if (request.method == "OPTIONS") {
      headers.emplace_back("Access-Control-Allow-Methods", "GET, POST");
      headers.emplace_back("Access-Control-Allow-Headers",
                           "Authorization, Content-Type, X-Request-Id");
      headers.emplace_back("Access-Control-Max-Age", "600");
    }
    break;
  }
  return headers;
}

std::shared_ptr<Responder> Gateway::Handle(HttpRequest request,
                                           const std::shared_ptr<Exchange>& exchange) {
  auto state = std::make_shared<Request>();
  state->id = IsRequestId(request.request_id) ? request.request_id : NewRequestId();
  state->headers = HeadersFor(request, state->id);
  state->exchange = exchange;
  if (request.method == "OPTIONS") {
    exchange->Respond({.status = 204, .headers = state->headers, .content_type = "text/plain"});
    return nullptr;
  }
  const Route* const route = Find(request.method, request.path);
  state->http = std::move(request);
  return (this->*route->handler)(state);
}

HttpResponse Gateway::Refusal(const absl::Status& status) {
  return ErrorResponse(status, ErrorOrigin::kGateway);
}

void Gateway::OnAnswer(const std::string& path, int status) {
  const bool known = Find("", path) != nullptr && !absl::StartsWith(path, kModelsPrefix);
  counts_.OnResponse(known ? path : "other", status);
}

std::shared_ptr<Responder> Gateway::Models(const std::shared_ptr<Request>& request) {
  const bool with_name = absl::StartsWith(request->http.path, kModelsPrefix);
  const std::string name =
      with_name ? UnescapePath(request->http.path.substr(std::string_view(kModelsPrefix).size()))
                : "";
  models_.Get(false, [this, request, with_name, name](const auto& model) {
    HttpResponse response;
    if (!model.ok()) {
      response = ErrorResponse(model.status(), ErrorOrigin::kWorker);
    } else if (!with_name) {
      response.body =
          absl::StrCat(R"({"object":"list","data":[)", ModelJson((*model)->info, started_), "]}");
    } else if (name == (*model)->info.model_name()) {
      response.body = ModelJson((*model)->info, started_);
    } else {
      response =
          ErrorResponse(common::WithReason(absl::NotFoundError("this model is not served here"),
                                           "MODEL_NOT_FOUND"),
                        ErrorOrigin::kGateway);
    }
    request->Respond(std::move(response));
  });
  return nullptr;
}

std::shared_ptr<Responder> Gateway::Page(const std::shared_ptr<Request>& request) {
  request->Respond(PageResponse(*FindPageFile(request->http.path), request->http.if_none_match));
  return nullptr;
}

std::shared_ptr<Responder> Gateway::Stats(const std::shared_ptr<Request>& request) {
  models_.Get(
      false,
      [this, request](const auto& model) {
        HttpResponse response;
        if (model.ok()) {
          response.body = StatsJson((*model)->info);
        } else {
          response = ErrorResponse(model.status(), ErrorOrigin::kWorker);
        }
        request->Respond(std::move(response));
      },
      kStatsAge);
  return nullptr;
}

std::shared_ptr<Responder> Gateway::Health(const std::shared_ptr<Request>& request) {
  if (draining_) {
    request->Respond({.status = 503, .headers = {}, .body = R"({"status":"draining"})"});
    return nullptr;
  }
  worker_.Call<rpc::v1::HealthCheckRequest, rpc::v1::HealthCheckResponse>(
      kHealthMethod, {}, kHealthTimeout,
      [request](const absl::Status& status, const rpc::v1::HealthCheckResponse& health) {
        const bool serving =
            status.ok() && health.status() == rpc::v1::HealthCheckResponse::SERVING_STATUS_SERVING;
        request->exchange->Respond({.status = serving ? 200 : 503,
                                    .headers = request->headers,
                                    .body = serving ? R"({"status":"ok"})"
                                            : status.ok()
                                                ? R"({"status":"the worker is not ready"})"
                                                : R"({"status":"the worker does not answer"})"});
      });
  return nullptr;
}

std::shared_ptr<Responder> Gateway::Metrics(const std::shared_ptr<Request>& request) {
  request->exchange->Respond({.headers = request->headers,
                              .content_type = "text/plain; version=0.0.4; charset=utf-8",
                              .body = metrics_.Render()});
  return nullptr;
}

template <typename T>
void Gateway::Parse(const std::shared_ptr<Request>& request, absl::StatusOr<T> (*read)(const Json&),
                    std::function<void(T)> next) {
  const auto parse = [read](const std::string& body) -> absl::StatusOr<T> {
    ASSIGN_OR_RETURN(const Json json, ParseStrictJson(body));
    return read(json);
  };
  const auto go_on = [this, request, next = std::move(next)](absl::StatusOr<T> parsed) {
    request->http.body = {};
    if (parsed.ok()) {
      v1::Messages* const conversation = ConversationOf(*parsed);
      if (conversation != nullptr && !options_.keep_billing_header) {
        DropBillingHeader(conversation);
      }
      return next(*std::move(parsed));
    }
    HttpResponse response = ErrorResponse(parsed.status(), ErrorOrigin::kGateway);
    request->Respond(std::move(response));
  };
  if (request->http.body.size() < kLargeBodyBytes) return go_on(parse(request->http.body));
  boost::asio::post(parser_, [this, request, parse, go_on] {
    auto parsed = std::make_shared<absl::StatusOr<T>>(parse(request->http.body));
    boost::asio::post(io_, [go_on, parsed] { go_on(std::move(*parsed)); });
  });
}

template <typename Answerer, typename T>
std::shared_ptr<Responder> Gateway::Compute(const std::shared_ptr<Request>& request,
                                            absl::StatusOr<T> (*read)(const Json&)) {
  absl::Status refusal;
  if (draining_) {  // its head came before
    refusal = DrainingError();
  } else if (generation_context_.generations >= generation_context_.generations_max) {
    refusal =
        common::WithReason(absl::ResourceExhaustedError(absl::StrCat(
                               generation_context_.generations,
                               " requests are being answered, as many as this gateway takes")),
                           "TOO_MANY_STREAMS");
  }
  if (!refusal.ok()) {
    request->Respond(ErrorResponse(refusal, ErrorOrigin::kGateway));
    return nullptr;
  }
  const bool is_tenants = options_.keys->ring()->names_tenants();
  auto answerer = std::make_shared<Answerer>(
      &generation_context_, request->exchange, request->id, request->headers,
      is_tenants ? request->http.authorization : std::string());
  Parse<T>(request, read, [answerer](T parsed) { answerer->Start(std::move(parsed)); });
  return answerer;
}

std::shared_ptr<Responder> Gateway::Complete(const std::shared_ptr<Request>& request) {
  return Compute<Generation, CompletionRequest>(request, ReadCompletionRequest);
}

std::shared_ptr<Responder> Gateway::Chat(const std::shared_ptr<Request>& request) {
  return Compute<Generation, ChatRequest>(request, ReadChatRequest);
}

std::shared_ptr<Responder> Gateway::Score(const std::shared_ptr<Request>& request) {
  return Compute<Scoring, ScoreCall>(request, ReadScoreRequest);
}

std::shared_ptr<Responder> Gateway::Tokenize(const std::shared_ptr<Request>& request) {
  Parse<TokenizeCall>(request, ReadTokenizeRequest, [this, request](const TokenizeCall& call) {
    worker_.Call<v1::TokenizeRequest, v1::TokenizeResponse>(
        kTokenizeMethod, call.request, kTokenizerTimeout,
        [this, request, return_tokens = call.return_tokens](const absl::Status& status,
                                                            const v1::TokenizeResponse& tokens) {
          HttpResponse response;
          if (status.ok()) {
            response.body = TokenizeJson(tokens, return_tokens);
          } else {
            response = ErrorResponse(status, ErrorOrigin::kWorker);
          }
          request->Respond(std::move(response));
        });
  });
  return nullptr;
}

std::shared_ptr<Responder> Gateway::Detokenize(const std::shared_ptr<Request>& request) {
  Parse<v1::DetokenizeRequest>(
      request, ReadDetokenizeRequest, [this, request](const v1::DetokenizeRequest& call) {
        worker_.Call<v1::DetokenizeRequest, v1::DetokenizeResponse>(
            kDetokenizeMethod, call, kTokenizerTimeout,
            [this, request](const absl::Status& status, const v1::DetokenizeResponse& text) {
              HttpResponse response;
              if (status.ok()) {
                response.body = absl::StrCat(R"({"prompt":)", JsonString(text.text()), "}");
              } else {
                response = ErrorResponse(status, ErrorOrigin::kWorker);
              }
              request->Respond(std::move(response));
            });
      });
  return nullptr;
}

}  // namespace retroinfer::gateway
