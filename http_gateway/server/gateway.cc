#include "http_gateway/server/gateway.h"

#include <spdlog/spdlog.h>

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
#include "http_gateway/api/messages_request.h"
#include "http_gateway/api/model_json.h"
#include "http_gateway/api/responses_request.h"
#include "http_gateway/api/stable_prompt.h"
#include "http_gateway/api/stats_json.h"
#include "http_gateway/api/tokenize_request.h"
#include "http_gateway/json/json_text.h"
#include "http_gateway/page/page_file.h"
#include "http_gateway/server/cors.h"
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
constexpr char kResponsesPrefix[] = "/v1/responses/";
constexpr char kIgnoredHeader[] = "X-RetroInfer-Ignored";
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
  void Refuse(const absl::Status& status, ErrorOrigin origin) const {
    Respond(ErrorResponse(status, origin, {}, error_form));
  }

  HttpRequest http;
  std::shared_ptr<Exchange> exchange;
  std::string id;
  HttpHeaders headers;  // of the response
  ErrorForm error_form = ErrorForm::kOpenAi;
};

Gateway::Gateway(const GatewayOptions& options, WorkerClient& worker, common::Metrics& metrics,
                 boost::asio::io_context& io)
    : options_(options),
      names_(options.model_names),
      worker_(worker),
      metrics_(metrics),
      io_(io),
      models_(worker, options.tool_form),
      counts_(metrics),
      generation_context_{.worker = &worker,
                          .models = &models_,
                          .names = &names_,
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
      {"POST", "/v1/responses", &Gateway::Responses},
      {"POST", "/v1/messages", &Gateway::Messages},
      {"POST", "/v1/messages/count_tokens", &Gateway::CountTokens},
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
         route.handler == &Gateway::Responses || route.handler == &Gateway::Messages ||
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
  if (absl::StartsWith(head.path, kResponsesPrefix)) {
    return common::WithReason(
        absl::NotFoundError("responses are not stored here: send the whole input with each POST "
                            "/v1/responses"),
        "RESPONSE_NOT_FOUND");
  }
  if (route == nullptr) {
    return common::WithReason(
        absl::NotFoundError("there is nothing at this path; see GET /v1/models, POST "
                            "/v1/completions, /v1/chat/completions, /v1/responses, /v1/messages"),
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

std::shared_ptr<Responder> Gateway::Handle(HttpRequest request,
                                           const std::shared_ptr<Exchange>& exchange) {
  auto state = std::make_shared<Request>();
  state->id = IsRequestId(request.request_id) ? request.request_id : NewRequestId();
  state->headers = {{"X-Request-Id", state->id}};
  AddCorsHeaders(options_.cors_origins, request, &state->headers);
  state->error_form = ErrorFormOf(request.path);
  state->exchange = exchange;
  if (request.method == "OPTIONS") {
    exchange->Respond({.status = 204, .headers = state->headers, .content_type = "text/plain"});
    return nullptr;
  }
  const Route* const route = Find(request.method, request.path);
  state->http = std::move(request);
  return (this->*route->handler)(state);
}

HttpResponse Gateway::Refusal(const absl::Status& status, const std::string& path) {
  return ErrorResponse(status, ErrorOrigin::kGateway, {}, ErrorFormOf(path));
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
    if (!model.ok()) return request->Refuse(model.status(), ErrorOrigin::kWorker);
    const v1::GetModelInfoResponse& info = (*model)->info;
    if (!with_name) {
      return request->Respond(
          {.headers = {},
           .body = ModelListJson(names_.List(info.model_name()), started_, info.max_model_len())});
    }
    const absl::StatusOr<std::string> known = names_.NameFor(name, info.model_name());
    if (!known.ok()) return request->Refuse(known.status(), ErrorOrigin::kGateway);
    request->Respond({.headers = {}, .body = ModelJson(*known, started_, info.max_model_len())});
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
      [request](const auto& model) {
        if (!model.ok()) return request->Refuse(model.status(), ErrorOrigin::kWorker);
        request->Respond({.headers = {}, .body = StatsJson((*model)->info)});
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
void Gateway::Parse(const std::shared_ptr<Request>& request, BodyReader<T> read,
                    std::function<void(T)> next) {
  struct Body {
    absl::StatusOr<T> parsed = absl::UnknownError("");
    IgnoredNames ignored;
  };
  const auto parse = [read, is_strict = options_.strict_parameters](const std::string& text) {
    Body body;
    const absl::StatusOr<Json> json = ParseStrictJson(text);
    body.parsed = json.ok() ? read(*json, is_strict ? nullptr : &body.ignored) : json.status();
    return body;
  };
  const auto go_on = [this, request, next = std::move(next)](Body body) {
    request->http.body = {};
    if (!body.parsed.ok()) return request->Refuse(body.parsed.status(), ErrorOrigin::kGateway);
    if (!body.ignored.empty()) {
      const std::string names = body.ignored.ToString();
      spdlog::debug("request {} asks for what is ignored: {}", request->id, names);
      request->headers.emplace_back(kIgnoredHeader, names);
    }
    v1::Messages* const conversation = ConversationOf(*body.parsed);
    if (conversation != nullptr && !options_.keep_billing_header) DropBillingHeader(conversation);
    next(*std::move(body.parsed));
  };
  if (request->http.body.size() < kLargeBodyBytes) return go_on(parse(request->http.body));
  boost::asio::post(parser_, [this, request, parse, go_on] {
    auto body = std::make_shared<Body>(parse(request->http.body));
    boost::asio::post(io_, [go_on, body] { go_on(std::move(*body)); });
  });
}

template <typename Answerer, typename T>
std::shared_ptr<Responder> Gateway::Compute(const std::shared_ptr<Request>& request,
                                            BodyReader<T> read) {
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
    request->Refuse(refusal, ErrorOrigin::kGateway);
    return nullptr;
  }
  const bool is_tenants = options_.keys->ring()->names_tenants();
  auto answerer = std::make_shared<Answerer>(
      &generation_context_,
      AnswerRecipient{.exchange = request->exchange,
                      .request_id = request->id,
                      .headers = request->headers,
                      .authorization = is_tenants ? request->http.authorization : std::string(),
                      .error_form = request->error_form});
  Parse<T>(request, read, [answerer, request](T parsed) {
    const auto& [name, value] = request->headers.back();
    if (name == kIgnoredHeader) answerer->AddHeader(name, value);
    answerer->Start(std::move(parsed));
  });
  return answerer;
}

std::shared_ptr<Responder> Gateway::Complete(const std::shared_ptr<Request>& request) {
  return Compute<Generation, CompletionRequest>(request, ReadCompletionRequest);
}

std::shared_ptr<Responder> Gateway::Chat(const std::shared_ptr<Request>& request) {
  return Compute<Generation, ChatRequest>(request, ReadChatRequest);
}

std::shared_ptr<Responder> Gateway::Responses(const std::shared_ptr<Request>& request) {
  return Compute<Generation, ChatRequest>(request, ReadResponsesRequest);
}

std::shared_ptr<Responder> Gateway::Messages(const std::shared_ptr<Request>& request) {
  return Compute<Generation, ChatRequest>(request, ReadMessagesRequest);
}

std::shared_ptr<Responder> Gateway::CountTokens(const std::shared_ptr<Request>& request) {
  Parse<ChatRequest>(request, ReadMessagesRequest, [this, request](const ChatRequest& chat) {
    v1::TokenizeRequest call;
    *call.mutable_messages() = chat.call.messages();
    worker_.Call<v1::TokenizeRequest, v1::TokenizeResponse>(
        kTokenizeMethod, call, kTokenizerTimeout,
        [request](const absl::Status& status, const v1::TokenizeResponse& tokens) {
          if (!status.ok()) return request->Refuse(status, ErrorOrigin::kWorker);
          request->Respond(
              {.headers = {},
               .body = absl::StrCat(R"({"input_tokens":)", tokens.token_ids_size(), "}")});
        });
  });
  return nullptr;
}

std::shared_ptr<Responder> Gateway::Score(const std::shared_ptr<Request>& request) {
  return Compute<Scoring, ScoreCall>(request, ReadScoreRequest);
}

std::shared_ptr<Responder> Gateway::Tokenize(const std::shared_ptr<Request>& request) {
  Parse<TokenizeCall>(request, ReadTokenizeRequest, [this, request](const TokenizeCall& call) {
    worker_.Call<v1::TokenizeRequest, v1::TokenizeResponse>(
        kTokenizeMethod, call.request, kTokenizerTimeout,
        [request, return_tokens = call.return_tokens](const absl::Status& status,
                                                      const v1::TokenizeResponse& tokens) {
          if (!status.ok()) return request->Refuse(status, ErrorOrigin::kWorker);
          request->Respond({.headers = {}, .body = TokenizeJson(tokens, return_tokens)});
        });
  });
  return nullptr;
}

std::shared_ptr<Responder> Gateway::Detokenize(const std::shared_ptr<Request>& request) {
  Parse<v1::DetokenizeRequest>(
      request, ReadDetokenizeRequest, [this, request](const v1::DetokenizeRequest& call) {
        worker_.Call<v1::DetokenizeRequest, v1::DetokenizeResponse>(
            kDetokenizeMethod, call, kTokenizerTimeout,
            [request](const absl::Status& status, const v1::DetokenizeResponse& text) {
              if (!status.ok()) return request->Refuse(status, ErrorOrigin::kWorker);
              request->Respond(
                  {.headers = {},
                   .body = absl::StrCat(R"({"prompt":)", JsonString(text.text()), "}")});
            });
      });
  return nullptr;
}

}  // namespace retroinfer::gateway
