#include "client/serve/serve_options.h"

#include <unistd.h>

#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/inspect/model_check.h"
#include "common/door/listen_socket.h"
#include "common/files/regular_file.h"
#include "common/retrieval/retrieval_file.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/rope_scaling.h"
#include "gpu_worker/model/stored_model.h"

namespace retroinfer::client {
namespace {

enum class Service { kStore, kWorker, kGateway };

// An option of a service that is passed on as it is given; the service checks its value.
struct PassedOption {
  const char* flag;  // of `serve`
  Service service;
  const char* service_flag;
  const char* help;
  const char* default_value = "";  // of the service, for people; empty: none worth a word
};
constexpr char kModelNames[] = "--served-model-name";
constexpr char kRetrieval[] = "--retrieval";
constexpr PassedOption kPassedOptions[] = {
    {"--model", Service::kWorker, "--model",
     "Model: a folder (Hugging Face layout) or a GGUF file"},
    {"--load-format", Service::kWorker, "--load-format",
     "auto, or dummy: random weights, for measuring speed", "auto"},
    {"--model-shape", Service::kWorker, "--model-shape",
     "With --load-format dummy: llama-3-8b, llama-3.1-8b, qwen2.5-7b or tiny"},
    {"--synthetic-context", Service::kWorker, "--synthetic-context",
     "With --load-format dummy: tokens of random context before every prompt", "0"},
    {"--synthetic-overlap", Service::kWorker, "--synthetic-overlap",
     "Cosine between the queries of two steps over it", "as in text"},
    {kModelNames, Service::kWorker, kModelNames,
     "Names of the model, separated by commas, the first one its own; *: clients may use any over "
     "HTTP. Default: the folder's or the file's"},
    {"--chat-template", Service::kWorker, "--chat-template",
     "File with a Jinja chat template; default: the model folder's own"},
    {"--rope-scaling", Service::kWorker, "--rope-scaling",
     "yarn:FACTOR[:ORIGINAL]: YaRN for longer contexts, for example yarn:4", "as config.json says"},
    {"--listen", Service::kWorker, "--listen", "Addresses of the gRPC API, separated by commas",
     "127.0.0.1:50051"},
    {"--arena-bytes", Service::kStore, "--arena-bytes",
     "Shared memory for the KV of long contexts, for example 8GiB", "2.00 GiB"},
    {"--cache-dir", Service::kStore, "--cache-dir",
     "Folder that keeps contexts across restarts; empty: none"},
    {"--cache-bytes", Service::kStore, "--cache-bytes",
     "Most that it may take on disk; 0: no limit", "0 B"},
    {"--cache-tenant-bytes", Service::kStore, "--cache-tenant-bytes",
     "Most that the contexts of one cache salt may take; 0: no limit", "0 B"},
    {"--cache-ttl", Service::kStore, "--cache-ttl",
     "What was not used for longer is removed, for example 72h", "inf"},
    {"--cache-high-watermark", Service::kStore, "--cache-high-watermark",
     "Share of --cache-bytes above which what was used least recently is removed", "0.9"},
    {"--cache-low-watermark", Service::kStore, "--cache-low-watermark",
     "Share of --cache-bytes that is left then", "0.8"},
    {"--persist", Service::kStore, "--persist",
     "What is written there: write-through, on-demand (saved contexts) or off", "write-through"},
    {"--device", Service::kWorker, "--device", "auto, cpu, cuda, cuda:N or cuda:N,M,...", "auto"},
    {"--tensor-parallel", Service::kWorker, "--tensor-parallel",
     "Ranks: processes that share the model, each with a GPU of its own", "1"},
    {"--rank-timeout", Service::kWorker, "--rank-timeout",
     "All ranks are started again when one has not answered for so long", "2m"},
    {"--gpu-memory-utilization", Service::kWorker, "--gpu-memory-utilization",
     "Share of a GPU's memory to take", "0.9"},
    {"--memory", Service::kWorker, "--memory",
     "Memory of the worker besides the arena: weights, steady zones, index, block cache; "
     "0: chosen",
     "0 B"},
    {"--dense-kv-bytes", Service::kWorker, "--dense-kv-bytes",
     "Part of it for steady zones and policy full; 0: chosen", "0 B"},
    {"--block-cache-bytes", Service::kWorker, "--block-cache-bytes",
     "Part of it for the block cache; 0: chosen", "0 B"},
    {"--max-model-len", Service::kWorker, "--max-model-len",
     "Longest context in tokens; 0: what model and memory allow", "0"},
    {"--max-whole-prompt", Service::kWorker, "--max-whole-prompt",
     "Longest prompt that policies wave and full read; 0: --max-model-len", "0"},
    {"--max-batch", Service::kWorker, "--max-batch", "Requests that decode together", "8"},
    {"--inter-token-latency-target", Service::kWorker, "--inter-token-latency-target",
     "Time between two tokens of a request while prompts of others are read", "50ms"},
    {"--preemption", Service::kWorker, "--preemption",
     "on or off: requests are preempted for others of a higher priority", "on"},
    {"--reserve", Service::kWorker, "--reserve",
     "soon or all: device memory for the next tokens, or for all of max_tokens", "soon"},
    {"--speculation", Service::kWorker, "--speculation",
     "off or auto: steps try drafts of what comes next, where that is expected to be faster",
     "auto"},
    {"--draft-model", Service::kWorker, "--draft-model",
     "Small model with the same tokens that drafts, with --speculation auto", "none"},
    {"--suspended-kv-bytes", Service::kWorker, "--suspended-kv-bytes",
     "Memory of the host for the KV of preempted requests; 0: chosen", "0 B"},
    {"--max-queued-requests", Service::kWorker, "--max-queued-requests", "Live requests", "1024"},
    {"--max-waiting-tokens", Service::kWorker, "--max-waiting-tokens",
     "Tokens of prompts that wait to be read; 0: no limit", "0"},
    {"--max-expected-wait", Service::kWorker, "--max-expected-wait",
     "Refuse requests while one would wait longer for its turn; 0: never", "0"},
    {"--threads", Service::kWorker, "--threads", "Compute threads; 0: one per CPU core", "0"},
    {"--compute-dtype", Service::kWorker, "--compute-dtype", "auto, bf16 or f32", "auto"},
    {"--kv-dtype", Service::kWorker, "--kv-dtype",
     "Type of keys and values: auto, int8, bf16 or f32", "auto"},
    {"--index-dtype", Service::kWorker, "--index-dtype",
     "Type of the wave index: auto, coded, int8, bf16 or f32", "auto"},
    {"--weights-dtype", Service::kWorker, "--weights-dtype",
     "auto, bf16, fp8 or int4: layers rounded to 8 or 4 bits while they are loaded", "auto"},
    {"--activations-dtype", Service::kWorker, "--activations-dtype",
     "Of prompts' products: bf16, or fp8 with weights in fp8 on a Hopper GPU", "bf16"},
    {"--wave-index", Service::kWorker, "--wave-index",
     "How clusters are made and ranked: tuned, or paper", "tuned"},
    {"--policy", Service::kWorker, "--policy", "Default attention policy: wave, full or streaming",
     "wave"},
    {"--prefill", Service::kWorker, "--prefill",
     "How prompts are computed: exact, sparse beyond 4096 tokens, or indexed: their ends by decode "
     "steps",
     "exact"},
    {"--tail-run", Service::kWorker, "--tail-run",
     "Tokens of such an end that share what they retrieve; 0: 64, or 8 on a CPU", "0"},
    {"--retrieval-ratio", Service::kWorker, "--retrieval-ratio",
     "Share of the clusters that wave attends exactly", "as --quality says"},
    {kRetrieval, Service::kWorker, kRetrieval,
     "File with the ratios that 'retroinfer tune' has found for this model; none: without",
     "retrieval.toml of --cache-dir, if there is one"},
    {"--quality", Service::kWorker, "--quality",
     "How much wave retrieves: standard, or high, at most twice the bytes a step", "standard"},
    {"--estimation-ratio", Service::kWorker, "--estimation-ratio",
     "Share of the clusters that wave estimates", "0.232"},
    {"--dense-below", Service::kWorker, "--dense-below",
     "Contexts of fewer tokens are attended exactly", "8192"},
    {"--default-max-tokens", Service::kWorker, "--default-max-tokens",
     "Most tokens to generate for a request that does not say; 0: what is left of the "
     "model's length",
     "0"},
    {"--http", Service::kGateway, "--http",
     "Addresses of OpenAI's HTTP API, separated by commas, for example 127.0.0.1:8000; starts "
     "http_gateway",
     "none"},
    {"--cors-origin", Service::kGateway, "--cors-origin",
     "Origins whose pages may use it, separated by commas, or *"},
    {"--page", Service::kGateway, "--page", "on or off: its page for people at /", "on"},
    {"--http-max-connections", Service::kGateway, "--max-connections",
     "Connections of HTTP clients at a time; one more takes the place of one without a request",
     "4096"},
    {"--http-max-generations", Service::kGateway, "--max-generations",
     "Generations over HTTP at a time; more get status 429", "1024"},
    {"--http-max-body-bytes", Service::kGateway, "--max-body-bytes",
     "Largest body of an HTTP request", "64.0 MiB"},
    {"--http-keepalive-interval", Service::kGateway, "--keepalive-interval",
     "An HTTP stream that is silent for so long gets a comment", "5s"},
    {"--billing-header", Service::kGateway, "--billing-header",
     "drop or keep: what Claude Code puts before a system message, another one in each request",
     "drop"},
    {"--tool-call-parser", Service::kGateway, "--tool-call-parser",
     "How the model writes calls of functions: auto (as its chat template shows), hermes, "
     "llama3_json, qwen3_coder, mistral, json, or none: calls stay text",
     "auto"},
    {"--http-metrics-address", Service::kGateway, "--http-metrics-address",
     "Prometheus endpoint of the gateway that needs no key"},
    {"--api-key-file", Service::kWorker, "--api-key-file",
     "File with the key that calls must carry"},
    {"--tenants-file", Service::kWorker, "--tenants-file",
     "File of tenants: their keys, shares and limits (docs/operate/tenants.md)"},
    {"--tls-certificate", Service::kWorker, "--tls-certificate", "PEM file; turns TLS on"},
    {"--tls-key", Service::kWorker, "--tls-key", "PEM file"},
    {"--tls-client-ca", Service::kWorker, "--tls-client-ca", "PEM file; turns mutual TLS on"},
    {"--max-concurrent-streams", Service::kWorker, "--max-concurrent-streams",
     "Calls at a time on one connection", "1024"},
    {"--metrics-address", Service::kWorker, "--metrics-address",
     "Prometheus endpoint of the worker, or none", "127.0.0.1:9401"},
    {"--store-metrics-address", Service::kStore, "--metrics-address",
     "Prometheus endpoint of the store, or none", "127.0.0.1:9402"},
    {"--adopt-wait", Service::kStore, "--adopt-wait",
     "How long a restarted store waits for the worker that holds its memory", "10s"},
};

std::string OwnFolder() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "." : path.parent_path().string();
}

// The worker's name of the model: the first one that is a name. Empty: the folder's.
std::string OwnModelName(const ServeOptions& options) {
  for (const absl::string_view name : absl::StrSplit(options.Passed(kModelNames), ',')) {
    if (!name.empty() && name != "*") return std::string(name);
  }
  return "";
}

std::vector<std::string> Arguments(const ServeOptions& options, Service service,
                                   const char* program) {
  std::vector<std::string> arguments = {absl::StrCat(options.bin_dir, "/", program),
                                        absl::StrCat("--socket-dir=", options.socket_dir)};
  if (service == Service::kGateway) arguments.pop_back();  // it has no folder
  for (const PassedOption& option : kPassedOptions) {
    const std::string_view flag = option.flag;
    if (option.service != service || flag == "--listen" || flag == "--http") continue;
    const std::string value =
        flag == kModelNames ? OwnModelName(options) : options.Passed(option.flag);
    if (!value.empty()) {
      arguments.push_back(absl::StrCat(option.service_flag, "=", value));
    } else if (options.is_private && std::string_view(option.service_flag) == "--metrics-address") {
      arguments.push_back("--metrics-address=none");
    }
  }
  const common::LogOptions unset;
  const auto pass_log = [&](const char* flag, std::string common::LogOptions::*value) {
    if (options.log.*value != unset.*value) {
      arguments.push_back(absl::StrCat(flag, "=", options.log.*value));
    }
  };
  pass_log("--log-level", &common::LogOptions::level);
  pass_log("--log-format", &common::LogOptions::format);
  pass_log("--log-file", &common::LogOptions::file);
  return arguments;
}

ServiceSpec StoreSpec(const ServeOptions& options) {
  std::vector<std::string> arguments = Arguments(options, Service::kStore, "kv_store_service");
  if (options.cache_optional) arguments.push_back("--cache-optional");
  return {.name = "kv_store_service",
          .arguments = std::move(arguments),
          .health_address = absl::StrCat("unix:", options.socket_dir, "/kv_store.sock"),
          .stop_grace = absl::Seconds(10),
          .counts_restarts = true};
}

ServiceSpec WorkerSpec(const ServeOptions& options) {
  ServiceSpec spec = {.name = "gpu_worker",
                      .arguments = Arguments(options, Service::kWorker, "gpu_worker"),
                      .health_address = WorkerAddress(options),
                      .stop_grace = absl::Seconds(15),
                      .drain_timeout = options.drain_timeout,
                      .stops_first = true,
                      .checks_settings = true,
                      .counts_restarts = true};
  spec.arguments.push_back(absl::StrCat(
      "--listen=", options.is_private ? "" : absl::StrCat(ListenAddresses(options), ","),
      WorkerAddress(options)));
  spec.arguments.push_back(
      absl::StrCat("--drain-timeout=", absl::FormatDuration(options.drain_timeout)));
  return spec;
}

// What the worker's door asks for, this one asks for, too, and it has the worker's key. It is
// stopped behind the worker, which refuses new work for both APIs while it drains.
ServiceSpec GatewaySpec(const ServeOptions& options) {
  const std::string socket = absl::StrCat("unix:", options.socket_dir, "/http.sock");
  ServiceSpec spec = {.name = "http_gateway",
                      .arguments = Arguments(options, Service::kGateway, "http_gateway"),
                      .health_address = socket,
                      .stop_grace = absl::Seconds(5),
                      .drain_timeout = options.drain_timeout,
                      .health_is_http = true,
                      .checks_settings = true,
                      .counts_restarts = true};
  spec.arguments.push_back(absl::StrCat("--http=", options.Passed("--http"), ",", socket));
  spec.arguments.push_back(absl::StrCat("--worker=", WorkerAddress(options)));
  spec.arguments.push_back(
      absl::StrCat("--drain-timeout=", absl::FormatDuration(options.drain_timeout)));
  if (options.strict_parameters) spec.arguments.push_back("--strict-parameters");
  for (const char* const flag : {kModelNames, "--api-key-file", "--tenants-file",
                                 "--tls-certificate", "--tls-key", "--tls-client-ca"}) {
    const std::string& value = options.Passed(flag);
    if (!value.empty()) spec.arguments.push_back(absl::StrCat(flag, "=", value));
  }
  const std::string& key = options.Passed("--api-key-file");
  if (!key.empty()) spec.arguments.push_back(absl::StrCat("--worker-api-key-file=", key));
  return spec;
}

// The file that was measured for what --cache-dir keeps is used unless another budget is named. The
// worker checks that it is of the model; that its text is right is found before the arena is there.
absl::Status FindRetrieval(ServeOptions* options) {
  std::string& file = options->passed[kRetrieval];
  const std::string& cache = options->Passed("--cache-dir");
  if (file.empty() && !cache.empty() && options->Passed("--retrieval-ratio").empty()) {
    const std::string beside = absl::StrCat(cache, "/retrieval.toml");
    if (common::SomethingIsAt(beside)) file = beside;
  }
  if (file.empty() || file == "none") return absl::OkStatus();
  const absl::Status status = common::ReadRetrievalFile(file).status();
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      absl::StrCat("--retrieval: ", status.message(), "; --retrieval none serves without"));
}

// The worker would find these mistakes too, but after the store has allocated the arena.
absl::Status CheckModel(const ServeOptions& options) {
  const std::string& folder = options.Passed("--model");
  if (options.Passed("--load-format") != "dummy") {
    const bool in_eight_bits = options.Passed("--kv-dtype") == "int8";
    return ReadModelFiles(folder, {.kv_dtype = in_eight_bits ? "int8" : "auto",
                                   .rope_scaling = options.Passed("--rope-scaling")})
        .status();
  }
  const std::string& scaling = options.Passed("--rope-scaling");
  if (!scaling.empty()) RETURN_IF_ERROR(CheckRopeScaling(scaling));
  if (folder.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::unique_ptr<StoredModel> model, StoredModel::Open(folder));
  return options.Passed("--model-shape").empty() ? model->ReadConfig().status() : absl::OkStatus();
}

}  // namespace

void AddServeOptions(common::Settings* settings, ServeOptions* options) {
  CLI::App& app = settings->app();
  for (const PassedOption& option : kPassedOptions) {
    app.add_option(option.flag, options->passed[option.flag], option.help)
        ->group(option.service == Service::kStore    ? "Store"
                : option.service == Service::kWorker ? "Worker"
                                                     : "HTTP gateway");
    settings->DescribeDefault(option.flag, option.default_value);
  }
  app.get_option(kModelNames)->join(',');
  app.add_flag("--cache-optional", options->cache_optional,
               "Start without durable contexts if --cache-dir cannot be used")
      ->group("Store");
  app.add_flag("--strict-parameters", options->strict_parameters,
               "Refuse HTTP requests with parameters that are not known or change no answer")
      ->group("HTTP gateway");
  app.add_option("--socket-dir", options->socket_dir,
                 "Folder of the sockets between the services, made with mode 0700 if it does not "
                 "exist; in one that others may enter, a folder of mode 0700 in it");
  app.add_option("--bin-dir", options->bin_dir, "Folder of the services' programs");
  settings->DescribeDefault("--bin-dir", "the folder of this program");
  common::AddLogOptions(settings, &options->log);
  settings->AddDuration("--drain-timeout", &options->drain_timeout,
                        "On Ctrl-C or SIGTERM: how long live requests may go on");
}

absl::Status CheckServeOptions(ServeOptions* options) {
  options->socket_dir = common::SocketDirOf(options->socket_dir);
  if (options->bin_dir.empty()) options->bin_dir = OwnFolder();
  if (options->Passed("--model").empty() && options->Passed("--load-format") != "dummy") {
    return absl::InvalidArgumentError(
        "--model is missing: name a model folder or a GGUF file (see --help)");
  }
  RETURN_IF_ERROR(CheckModel(*options));
  RETURN_IF_ERROR(FindRetrieval(options));
  for (const char* program : {"kv_store_service", "gpu_worker", "http_gateway"}) {
    if (std::string_view(program) == "http_gateway" && !HasGateway(*options)) continue;
    const std::string path = absl::StrCat(options->bin_dir, "/", program);
    if (::access(path.c_str(), X_OK) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, " is not there or cannot be executed; name its folder with --bin-dir"));
    }
  }
  return absl::OkStatus();
}

std::string ListenAddresses(const ServeOptions& options) {
  const std::string& listen = options.Passed("--listen");
  return listen.empty() ? "127.0.0.1:50051" : listen;
}

absl::Status ChooseFreePorts(ServeOptions* options) {
  for (const char* const flag : {"--listen", "--http"}) {
    std::vector<std::string> addresses = absl::StrSplit(options->Passed(flag), ',');
    for (std::string& address : addresses) {
      if (!absl::EndsWith(address, ":0") || absl::StartsWith(address, common::kUnixScheme))
        continue;
      ASSIGN_OR_RETURN(const common::ListenSockets chosen, common::Listen(address));
      address = chosen.address;
    }
    if (!options->Passed(flag).empty()) options->passed[flag] = absl::StrJoin(addresses, ",");
  }
  return absl::OkStatus();
}

namespace {

std::string DefaultOf(std::string_view flag) {
  for (const PassedOption& option : kPassedOptions) {
    if (option.flag == flag) return option.default_value;
  }
  return "none";
}

}  // namespace

absl::Status CheckPorts(const ServeOptions& options) {
  std::vector<std::pair<const char*, std::string>> wanted;
  if (HasGateway(options)) wanted.emplace_back("--http", options.Passed("--http"));
  // Private services have no API of their own, and metrics only where they are asked for.
  for (const char* const flag : {"--listen", "--metrics-address", "--store-metrics-address"}) {
    const std::string& passed = options.Passed(flag);
    if (passed.empty() && options.is_private) continue;
    wanted.emplace_back(flag, passed.empty() ? DefaultOf(flag) : passed);
  }
  for (const auto& [flag, addresses] : wanted) {
    for (const absl::string_view address : absl::StrSplit(addresses, ',')) {
      // A dead unix socket is replaced.
      if (address == "none" || absl::StartsWith(address, common::kUnixScheme)) continue;
      const absl::StatusOr<common::ListenSockets> sockets = common::Listen(std::string(address));
      if (sockets.ok()) continue;
      return absl::Status(sockets.status().code(),
                          absl::StrCat(flag, ": ", sockets.status().message()));
    }
  }
  return absl::OkStatus();
}

bool HasGateway(const ServeOptions& options) {
  const std::string& http = options.Passed("--http");
  return !http.empty() && http != "none" && !options.is_private;
}

std::string WorkerAddress(const ServeOptions& options) {
  return absl::StrCat("unix:", options.socket_dir, "/generation.sock");
}

std::vector<ServiceSpec> ServiceSpecs(const ServeOptions& options) {
  std::vector<ServiceSpec> specs = {StoreSpec(options)};
  if (HasGateway(options)) specs.push_back(GatewaySpec(options));
  specs.push_back(WorkerSpec(options));
  for (ServiceSpec& spec : specs) spec.log_path = options.log.file;
  return specs;
}

}  // namespace retroinfer::client
