#include "http_gateway/server/gateway_settings.h"

#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/build_info/build_info.h"
#include "common/config/settings.h"
#include "common/files/regular_file.h"
#include "common/rpc/loopback.h"
#include "common/status/status_macros.h"

namespace retroinfer::gateway {
namespace {

constexpr size_t kKeyBytesMax = 1 << 16;
constexpr char kServerGroup[] = "Server";
constexpr char kWorkerGroup[] = "Worker";

absl::StatusOr<std::string> ReadApiKey(const std::string& flag, const std::string& path) {
  if (path.empty()) return "";
  const absl::StatusOr<std::string> text = common::ReadNamedFile(path, kKeyBytesMax);
  if (!text.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": ", std::string(text.status().message())));
  }
  const std::string key(absl::StripAsciiWhitespace(*text));
  if (key.empty()) return absl::InvalidArgumentError(absl::StrCat(path, " holds no API key"));
  return key;
}

struct KeyFiles {
  std::string api_key;
  std::string tenants;
};

// Of options that are one of several words.
struct Choices {
  std::string page = "on";
  std::string billing_header = "drop";
  std::string tool_call_parser = "auto";
};

// Nothing: as the chat template shows.
std::optional<ToolForm> ToolFormNamed(std::string_view name) {
  static constexpr std::pair<std::string_view, ToolForm> kForms[] = {
      {"none", ToolForm::kText},         {"hermes", ToolForm::kHermes},
      {"llama3_json", ToolForm::kLlama}, {"qwen3_coder", ToolForm::kQwenCoder},
      {"mistral", ToolForm::kMistral},   {"json", ToolForm::kJson}};
  for (const auto& [known, form] : kForms) {
    if (name == known) return form;
  }
  return std::nullopt;
}

void AddServerOptions(common::Settings* settings, GatewaySettings* options, KeyFiles* key_files,
                      Choices* choices) {
  CLI::App& app = settings->app();
  HttpServerOptions& server = options->server;
  app.add_option("--http", server.addresses,
                 "Addresses of the HTTP API: host:port, or unix: and a path")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(kServerGroup);
  app.add_option("--api-key-file", key_files->api_key,
                 "File with the key that requests must carry (all but /health)")
      ->group(kServerGroup);
  app.add_option("--tenants-file", key_files->tenants,
                 "The worker's file of tenants, instead of --api-key-file: their keys are passed "
                 "on. SIGHUP reads it again")
      ->group(kServerGroup);
  app.add_option("--tls-certificate", server.tls.certificate, "PEM file; turns TLS on")
      ->group(kServerGroup);
  app.add_option("--tls-key", server.tls.key, "PEM file")->group(kServerGroup);
  app.add_option("--tls-client-ca", server.tls.client_ca,
                 "PEM file; clients need a certificate that it signed")
      ->group(kServerGroup);
  app.add_option("--cors-origin", options->gateway.cors_origins,
                 "Origins whose pages may use the API, separated by commas, or *")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(kServerGroup);
  app.add_option("--page", choices->page, "on or off: the page for people at /")
      ->check(CLI::IsMember({"on", "off"}))
      ->group(kServerGroup);
  app.add_option("--billing-header", choices->billing_header,
                 "drop or keep: the line x-anthropic-billing-header that Claude Code puts before a "
                 "system message, another one in each request")
      ->check(CLI::IsMember({"drop", "keep"}))
      ->group(kServerGroup);
  app.add_option(
         "--tool-call-parser", choices->tool_call_parser,
         "How the model writes calls of functions: auto (as its chat template shows), hermes, "
         "llama3_json, qwen3_coder, mistral, json, or none: calls stay text")
      ->check(CLI::IsMember(
          {"auto", "none", "hermes", "llama3_json", "qwen3_coder", "mistral", "json"}))
      ->group(kServerGroup);
  app.add_flag("--strict-parameters", options->gateway.strict_parameters,
               "Refuse requests with parameters that are not known or change no answer, instead of "
               "ignoring those")
      ->group(kServerGroup);
  app.add_option("--served-model-name", options->gateway.model_names,
                 "Names of the model beside the worker's own, separated by commas; *: any name")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(kServerGroup);
  app.add_option("--max-connections", server.connections_max,
                 "Connections at a time; one more takes the place of one without a request")
      ->check(CLI::Range(1, 1'000'000))
      ->group(kServerGroup);
  app.add_option("--max-generations", options->gateway.generations_max,
                 "Generations at a time; more get status 429")
      ->check(CLI::Range(1, 1'000'000))
      ->group(kServerGroup);
  app.add_option("--http-metrics-address", options->metrics_address,
                 "host:port of a Prometheus endpoint that needs no key; /metrics of the API is "
                 "always there")
      ->group(kServerGroup);
  app.add_option("--restarts", options->restarts,
                 "How often a supervisor has restarted this service; shown as a metric")
      ->check(CLI::Range(0, 1'000'000))
      ->group(kServerGroup);
  settings
      ->AddDuration("--keepalive-interval", &options->gateway.keepalive,
                    "A stream that is silent for so long gets a comment")
      ->group(kServerGroup);
  settings
      ->AddDuration("--drain-timeout", &options->drain_timeout,
                    "On SIGTERM: how long live requests may go on")
      ->group(kServerGroup);
}

void AddWorkerOptions(common::Settings* settings, GatewaySettings* options,
                      std::string* api_key_file) {
  CLI::App& app = settings->app();
  WorkerClientOptions& worker = options->worker;
  app.add_option("--worker", worker.address, "The gpu_worker: host:port, or unix: and a path")
      ->group(kWorkerGroup);
  app.add_option("--worker-api-key-file", *api_key_file, "File with the worker's API key")
      ->group(kWorkerGroup);
  app.add_option("--worker-tls-ca", worker.tls_ca_file,
                 "PEM file with the CA of the worker's certificate; turns TLS on")
      ->group(kWorkerGroup);
  app.add_option("--worker-tls-certificate", worker.tls_certificate_file,
                 "PEM file with a client certificate, for mutual TLS")
      ->group(kWorkerGroup);
  app.add_option("--worker-tls-key", worker.tls_key_file, "PEM file with its key")
      ->group(kWorkerGroup);
  app.add_option("--worker-tls-server-name", worker.tls_server_name,
                 "Name that the worker's certificate must have, where that is not the host of "
                 "--worker")
      ->group(kWorkerGroup);
}

void AddExposureWarnings(GatewaySettings* settings) {
  for (const std::string& address : settings->server.addresses) {
    if (common::IsLoopback(address)) continue;
    if (settings->server.tls.certificate.empty()) {
      settings->warnings.push_back(absl::StrCat(
          address,
          " is reached by other machines without TLS: who is on the way reads prompts, answers and "
          "API keys; add --tls-certificate and --tls-key"));
    }
    if (!settings->gateway.keys->ring()->required() && settings->server.tls.client_ca.empty()) {
      settings->warnings.push_back(
          absl::StrCat(address,
                       " is reached by other machines, and everybody there may use the model; add "
                       "--api-key-file or --tls-client-ca"));
    }
  }
}

absl::Status CheckOrigins(const std::vector<std::string>& origins) {
  for (const std::string& origin : origins) {
    for (const char c : origin) {
      if (absl::ascii_isgraph(c)) continue;
      return absl::InvalidArgumentError("--cors-origin: an origin is https://host, or *");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> ParseGatewaySettings(int argc, const char* const* argv,
                                          GatewaySettings* settings) {
  settings->server.addresses = {"127.0.0.1:8000"};
  settings->worker.address = "127.0.0.1:50051";
  KeyFiles key_files;
  Choices choices;
  std::string worker_api_key_file;
  uint64_t body_bytes = settings->server.limits.request.body_bytes_max;
  common::Settings parser("Serves OpenAI's HTTP API for a gpu_worker.", common::kBuildVersion);
  AddServerOptions(&parser, settings, &key_files, &choices);
  parser.AddByteSize("--max-body-bytes", &body_bytes, "Largest request body")->group(kServerGroup);
  AddWorkerOptions(&parser, settings, &worker_api_key_file);
  common::AddLogOptions(&parser, &settings->log);
  parser.AddCheckFlag();
  ASSIGN_OR_RETURN(const common::Settings::Outcome outcome, parser.Parse(argc, argv));
  if (outcome == common::Settings::Outcome::kExit) return false;
  settings->checks_only = parser.checks_only();
  settings->server.limits.request.body_bytes_max = body_bytes;
  settings->gateway.page = choices.page == "on";
  settings->gateway.tool_form = ToolFormNamed(choices.tool_call_parser);
  settings->gateway.keep_billing_header = choices.billing_header == "keep";
  if (settings->metrics_address == "none") settings->metrics_address.clear();
  if (settings->gateway.keepalive <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("--keepalive-interval must be more than 0");
  }
  RETURN_IF_ERROR(CheckOrigins(settings->gateway.cors_origins));
  ASSIGN_OR_RETURN(const std::string key, ReadApiKey("--api-key-file", key_files.api_key));
  ASSIGN_OR_RETURN(settings->gateway.keys, common::KeyHolder::Open(key, key_files.tenants));
  ASSIGN_OR_RETURN(settings->worker.api_key,
                   ReadApiKey("--worker-api-key-file", worker_api_key_file));
  AddExposureWarnings(settings);
  const std::vector<std::string>& strange = parser.warnings();
  settings->warnings.insert(settings->warnings.end(), strange.begin(), strange.end());
  return true;
}

}  // namespace retroinfer::gateway
