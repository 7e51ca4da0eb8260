#include "gpu_worker/server/worker_options.h"

#include <unistd.h>

#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/build_info/build_info.h"
#include "common/config/settings.h"
#include "common/config/socket_dir.h"
#include "common/files/regular_file.h"
#include "common/rpc/loopback.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/rope_scaling.h"

namespace retroinfer {
namespace {

constexpr size_t kKeyBytesMax = 1 << 16;
constexpr char kModelGroup[] = "Model";
constexpr char kServerGroup[] = "Server";
constexpr char kMemoryGroup[] = "Memory and speed";
constexpr char kDefaultsGroup[] = "Defaults of requests";
constexpr int64_t kMaxSyntheticContext = int64_t{1} << 24;
constexpr char kMeasuringGroup[] = "Measuring speed without a model";
constexpr char kRecordingGroup[] = "Recording";
constexpr uint64_t kMinTraceBytes = 4096;

void AddModelOptions(common::Settings* settings, WorkerOptions* options) {
  CLI::App& app = settings->app();
  app.add_option(
         "--model", options->model_folder,
         "Model folder (Hugging Face layout: config.json, safetensors, tokenizer.json), or a GGUF "
         "file (of a split one, any part)")
      ->group(kModelGroup);
  app.add_option("--draft-model", options->draft_model_folder,
                 "Folder or file of a small model with the same tokens, which guesses what comes "
                 "next where prompt and answer do not say: with --speculation auto; default: none")
      ->group(kModelGroup);
  app.add_option("--served-model-name", options->served_model_name,
                 "Name that GetModelInfo gives; default: the folder's or the file's")
      ->group(kModelGroup);
  app.add_option("--chat-template", options->chat_template_file,
                 "File with a Jinja chat template; default: the model folder's own")
      ->group(kModelGroup);
  app.add_option("--rope-scaling", options->rope_scaling,
                 "yarn:FACTOR[:ORIGINAL]: YaRN in the place of what config.json says of RoPE, for "
                 "longer contexts: Qwen2.5 reaches 128K with yarn:4")
      ->group(kModelGroup);
  app.add_option("--compute-dtype", options->compute_dtype,
                 "Type that matrix products compute in; auto: bf16 where the device has it")
      ->check(CLI::IsMember({"auto", "bf16", "f32"}))
      ->group(kModelGroup);
  app.add_option("--kv-dtype", options->kv_dtype,
                 "Type of keys and values; int8: half the bytes of bf16; auto: as what is "
                 "computed in")
      ->check(CLI::IsMember({"auto", "int8", "bf16", "f32"}))
      ->group(kModelGroup);
  app.add_option("--index-dtype", options->index_dtype,
                 "Type of the wave index; auto: as keys and values. With "
                 "int8 more clusters are retrieved, which reads as many bytes; coded: int8 and a "
                 "code of each token, by which pages are chosen; packed: int8, and clusters "
                 "without gaps, which take less of the arena")
      ->check(CLI::IsMember({"auto", "coded", "packed", "int8", "bf16", "f32"}))
      ->group(kModelGroup);
  app.add_option("--weights-dtype", options->weights_dtype,
                 "Type of the layers' weights; fp8, int4: rounded to 8 or 4 bits while they are "
                 "loaded; bf16: quantized checkpoints, too; auto: as the checkpoint has them")
      ->check(CLI::IsMember({"auto", "bf16", "fp8", "int4"}))
      ->group(kModelGroup);
  app.add_option("--activations-dtype", options->activations_dtype,
                 "Type of activations in the products of prompts; fp8: with weights in fp8 and on "
                 "GPUs of compute capability 9.0, faster and less exact")
      ->check(CLI::IsMember({"bf16", "fp8"}))
      ->group(kModelGroup);
}

struct KeyFiles {
  std::string api_key;
  std::string tenants;
};

void AddServerOptions(common::Settings* settings, WorkerOptions* options, KeyFiles* key_files) {
  CLI::App& app = settings->app();
  ServerOptions& server = options->server;
  app.add_option("--listen", server.addresses,
                 "Addresses of the gRPC API: host:port, or unix: and a path")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(kServerGroup);
  app.add_option("--socket-dir", options->store_socket_dir,
                 "Socket folder of the kv_store_service, as that got it")
      ->group(kServerGroup);
  app.add_option("--metrics-address", options->metrics_address,
                 "host:port of the Prometheus endpoint, or none")
      ->group(kServerGroup);
  app.add_option("--restarts", options->restarts,
                 "How often a supervisor has restarted this service; shown as a metric")
      ->check(CLI::Range(0, 1'000'000))
      ->group(kServerGroup);
  app.add_option("--api-key-file", key_files->api_key,
                 "File with the key that every call must carry (all RPCs but health)")
      ->group(kServerGroup);
  app.add_option("--tenants-file", key_files->tenants,
                 "TOML file of tenants: their keys, shares and limits; instead of --api-key-file. "
                 "SIGHUP reads it again")
      ->group(kServerGroup);
  app.add_option("--tls-certificate", server.tls_certificate_file, "PEM file; turns TLS on")
      ->group(kServerGroup);
  app.add_option("--tls-key", server.tls_key_file, "PEM file")->group(kServerGroup);
  app.add_option("--tls-client-ca", server.tls_client_ca_file,
                 "PEM file; clients need a certificate that it signed")
      ->group(kServerGroup);
  app.add_option("--max-concurrent-streams", server.max_concurrent_streams,
                 "Calls at a time on one connection")
      ->check(CLI::Range(1, 1'000'000))
      ->group(kServerGroup);
  app.add_option("--max-connections", server.max_connections,
                 "Connections at a time; one more takes the place of one without calls")
      ->check(CLI::Range(1, 1'000'000))
      ->group(kServerGroup);
  app.add_option("--max-open-calls", server.max_open_calls,
                 "Calls at a time on all connections; more get RESOURCE_EXHAUSTED")
      ->check(CLI::Range(1, 1'000'000))
      ->group(kServerGroup);
  settings
      ->AddDuration("--drain-timeout", &options->drain_timeout,
                    "On SIGTERM: how long live requests may go on")
      ->group(kServerGroup);
}

// How requests share the device's memory.
void AddSharingOptions(common::Settings* settings, WorkerOptions* options) {
  CLI::App& app = settings->app();
  app.add_option("--preemption", options->preemption,
                 "on or off: requests that generate are preempted while others of a higher "
                 "priority wait for a row of the batch or for memory, and go on later")
      ->check(CLI::IsMember({"on", "off"}))
      ->group(kMemoryGroup);
  app.add_option("--reserve", options->reserve,
                 "soon or all: device memory that a request takes when it begins, for its prompt "
                 "and the tokens that come next, or for all of max_tokens")
      ->check(CLI::IsMember({"soon", "all"}))
      ->group(kMemoryGroup);
  app.add_option("--speculation", options->speculation,
                 "off or auto: steps try drafts of what a request generates next, from its prompt "
                 "and answer, where that is expected to be faster; tokens are the same")
      ->check(CLI::IsMember({"off", "auto"}))
      ->group(kMemoryGroup);
  settings
      ->AddByteSize("--suspended-kv-bytes", &options->suspended_kv_bytes,
                    "Memory of the host for the KV of preempted requests; 0: for "
                    "the newest tokens of as many as --max-batch (--device cpu: as far as "
                    "--memory is not used)")
      ->group(kMemoryGroup);
}

void AddMemoryOptions(common::Settings* settings, WorkerOptions* options) {
  CLI::App& app = settings->app();
  settings
      ->AddTokenCount("--max-model-len", &options->max_model_len,
                      "Longest context (prompt and output) in tokens; 0: what model and memory "
                      "allow")
      ->group(kMemoryGroup);
  settings
      ->AddTokenCount("--max-whole-prompt", &options->max_whole_prompt,
                      "Longest prompt in tokens that is read as one (policies wave and full), "
                      "which takes memory; 0: --max-model-len")
      ->group(kMemoryGroup);
  app.add_option("--max-batch", options->max_batch, "Requests that decode together")
      ->check(CLI::Range(1, 1024))
      ->group(kMemoryGroup);
  settings
      ->AddDuration("--inter-token-latency-target", &options->inter_token_target,
                    "Time between two tokens of a request while prompts of others are read")
      ->group(kMemoryGroup);
  app.add_option("--max-queued-requests", options->max_queued_requests,
                 "Live requests, queued and running; more get RESOURCE_EXHAUSTED")
      ->check(CLI::Range(1, 1'000'000))
      ->group(kMemoryGroup);
  settings
      ->AddTokenCount("--max-waiting-tokens", &options->max_waiting_tokens,
                      "Tokens of prompts that wait to be read; more get RESOURCE_EXHAUSTED; 0: no "
                      "limit")
      ->group(kMemoryGroup);
  settings
      ->AddDuration("--max-expected-wait", &options->max_expected_wait,
                    "Refuse requests while one would wait longer than this for its turn; 0: never")
      ->group(kMemoryGroup);
  app.add_option("--device", options->device,
                 "What computes: auto (a GPU if there is one), cpu, cuda, cuda:N, or a list of "
                 "GPUs, one a rank: cuda:N,M,...")
      ->group(kMemoryGroup);
  app.add_option("--tensor-parallel", options->num_ranks,
                 "Ranks: processes that share the model, each with a GPU of its own (--device cpu: "
                 "with a share of the cores)")
      ->check(CLI::Range(1, 8))
      ->group(kMemoryGroup);
  settings
      ->AddDuration("--rank-timeout", &options->rank_timeout,
                    "With several ranks: all of them end, to be started again, when one has not "
                    "answered for so long")
      ->group(kMemoryGroup);
  app.add_option("--gpu-memory-utilization", options->gpu_memory_utilization,
                 "Share of a GPU's memory that this worker may take")
      ->check(CLI::Range(0.01, 1.0))
      ->group(kMemoryGroup);
  settings
      ->AddByteSize("--memory", &options->memory_bytes,
                    "Memory for weights, KV and all else, besides the store's arena, of each "
                    "rank; 0: chosen")
      ->group(kMemoryGroup);
  settings
      ->AddByteSize("--dense-kv-bytes", &options->dense_kv_bytes,
                    "Part of it for steady zones and policy full; 0: for one context of "
                    "--max-model-len, and what the block cache leaves of a GPU's memory")
      ->group(kMemoryGroup);
  settings
      ->AddByteSize("--block-cache-bytes", &options->block_cache_bytes,
                    "Part of it for the block cache; 0: what is left, up to the size of the "
                    "arena (--device cpu: a sixteenth of it)")
      ->group(kMemoryGroup);
  AddSharingOptions(settings, options);
  app.add_option("--threads", options->num_threads, "Compute threads; 0: one per CPU core")
      ->check(CLI::Range(0, 4096))
      ->group(kMemoryGroup);
}

// What requests that do not say get.
struct DefaultNames {
  std::string policy;
  std::string quality = "standard";
  std::string prefill = "exact";
};

void AddRequestOptions(common::Settings* settings, WorkerOptions* options, DefaultNames* names) {
  CLI::App& app = settings->app();
  AttentionSettings& attention = options->default_attention;
  app.add_option("--policy", names->policy, "Attention policy")
      ->check(
          CLI::IsMember(std::vector<std::string>(std::begin(kPolicyNames), std::end(kPolicyNames))))
      ->group(kDefaultsGroup);
  app.add_option(
         "--retrieval-ratio", options->retrieval_ratio,
         "Share of the clusters that wave attends exactly, of the tokens with a coded index; "
         "default: as --quality says, 0.035 with an index in int8, 0.024 with a coded one, "
         "else 0.018")
      ->check(CLI::Range(0.0, 1.0))
      ->group(kDefaultsGroup);
  app.add_option("--retrieval", options->retrieval_path,
                 "File with the ratios that 'retroinfer tune' has found for this model, by length "
                 "of context; none: without")
      ->group(kDefaultsGroup);
  app.add_option("--quality", names->quality,
                 "How much wave retrieves: standard, or high: at most twice the bytes a step, and "
                 "answers nearer to those of policy full")
      ->check(CLI::IsMember({"standard", "high"}))
      ->group(kDefaultsGroup);
  app.add_option("--prefill", names->prefill,
                 "How prompts are computed: exact; sparse: from token 4096 on they attend to the "
                 "blocks that matter; or indexed: their ends are fed to decode steps")
      ->check(CLI::IsMember(
          std::vector<std::string>(std::begin(kPrefillNames), std::end(kPrefillNames))))
      ->group(kDefaultsGroup);
  app.add_option("--tail-run", options->tail_run,
                 "Tokens of a prompt's end, where --prefill is indexed, that share what they "
                 "retrieve: a power of two, at most 64; 1: each for itself; 0: 64, 8 on a CPU, or "
                 "fewer where --max-model-len is more than 131072")
      ->check(CLI::IsMember({0, 1, 2, 4, 8, 16, 32, 64}))
      ->group(kDefaultsGroup);
  app.add_option("--estimation-ratio", attention.estimation_ratio,
                 "Share of the clusters that wave estimates")
      ->check(CLI::Range(0.0, 1.0))
      ->group(kDefaultsGroup);
  app.add_option("--wave-index", options->wave_index,
                 "How clusters are made and ranked: tuned, or as the RetroInfer paper has it")
      ->check(CLI::IsMember({"tuned", "paper"}))
      ->group(kDefaultsGroup);
  settings
      ->AddTokenCount("--dense-below", &options->dense_below,
                      "Contexts of fewer tokens are attended exactly by wave, too")
      ->group(kDefaultsGroup);
  app.add_option("--default-max-tokens", options->default_max_tokens,
                 "Most tokens to generate for a request that does not say; 0: what is left of the "
                 "model's length")
      ->check(CLI::Range(0, 1 << 24))
      ->group(kDefaultsGroup);
}

void AddMeasuringOptions(common::Settings* settings, WorkerOptions* options) {
  CLI::App& app = settings->app();
  app.add_option("--load-format", options->load_format,
                 "auto: the weights of --model; dummy: random weights, whose answers mean nothing")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->group(kMeasuringGroup);
  app.add_option("--model-shape", options->model_shape,
                 "With --load-format dummy: llama-3-8b, llama-3.1-8b, llama-3.1-70b, qwen2.5-7b, "
                 "qwen3-30b-a3b, tiny or tiny-experts; default: "
                 "what --model's config.json says")
      ->group(kMeasuringGroup);
  app.add_option("--synthetic-context", options->synthetic_context,
                 "With --load-format dummy: tokens of random context before every prompt, as if "
                 "they had been prefilled")
      ->check(CLI::Range(int64_t{0}, kMaxSyntheticContext))
      ->group(kMeasuringGroup);
  app.add_option(
         "--synthetic-overlap", options->synthetic_overlap,
         "Cosine between the queries of two steps over a synthetic context; without it they "
         "ask for what they ask for in text, as often")
      ->check(CLI::Range(0.0, 1.0))
      ->group(kMeasuringGroup);
}

void AddRecordingOptions(common::Settings* settings, WorkerOptions* options) {
  settings->app()
      .add_option(
          "--record-trace", options->record_trace_file,
          "File for what each decode step of policy wave retrieves: clusters, their pages, "
          "and which of these missed the block cache (tools/lab reads it). An earlier "
          "trace there is overwritten, anything else is not. With several ranks each records "
          "its KV heads: rank 1 in FILE.rank1")
      ->group(kRecordingGroup);
  settings
      ->AddByteSize("--record-trace-bytes", &options->record_trace_bytes,
                    "Size of that file at which recording ends")
      ->group(kRecordingGroup);
}

// Checks what options say of ranks.
absl::Status CheckRankOptions(const WorkerOptions& options) {
  if (options.rank_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("--rank-timeout is 0: an answer takes some time");
  }
  return absl::OkStatus();
}

// Checks what options say of each other about the model.
absl::Status CheckModelOptions(const WorkerOptions& options) {
  if (!options.draft_model_folder.empty() && options.speculation != "auto") {
    return absl::InvalidArgumentError(
        "--draft-model makes drafts for steps that try some: add --speculation auto");
  }
  if (!options.rope_scaling.empty()) RETURN_IF_ERROR(CheckRopeScaling(options.rope_scaling));
  if (options.load_format == "dummy") {
    if (!options.model_folder.empty() || !options.model_shape.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "--load-format dummy needs a shape: --model-shape, or --model with a config.json");
  }
  if (!options.model_shape.empty()) {
    return absl::InvalidArgumentError(
        "--model-shape is for random weights: add --load-format dummy, or leave it out");
  }
  if (options.synthetic_context != 0) {
    return absl::InvalidArgumentError(
        "--synthetic-context puts random keys before every prompt, so that answers mean nothing: "
        "it needs --load-format dummy");
  }
  if (options.model_folder.empty()) {
    return absl::InvalidArgumentError(
        "--model is missing: name a model folder or a GGUF file (see --help)");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadApiKey(const std::string& path) {
  const absl::StatusOr<std::string> text = common::ReadNamedFile(path, kKeyBytesMax);
  if (!text.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--api-key-file: ", std::string(text.status().message())));
  }
  const std::string key(absl::StripAsciiWhitespace(*text));
  if (key.empty()) return absl::InvalidArgumentError(absl::StrCat(path, " holds no API key"));
  return key;
}

absl::StatusOr<std::shared_ptr<common::KeyHolder>> OpenKeys(const KeyFiles& files) {
  std::string key;
  if (!files.api_key.empty()) {
    ASSIGN_OR_RETURN(key, ReadApiKey(files.api_key));
  }
  absl::StatusOr<std::unique_ptr<common::KeyHolder>> keys =
      common::KeyHolder::Open(key, files.tenants);
  if (keys.ok()) return *std::move(keys);
  return absl::InvalidArgumentError(absl::StrCat("--tenants-file: ", keys.status().message()));
}

// Says what strangers can do at addresses that other machines reach.
void AddExposureWarnings(const ServerOptions& server, std::vector<std::string>* warnings) {
  for (const std::string& address : server.addresses) {
    if (common::IsLoopback(address)) continue;
    if (server.tls_certificate_file.empty()) {
      warnings->push_back(absl::StrCat(
          address,
          " is reached by other machines without TLS: who is on the way reads prompts, "
          "answers and API keys; add --tls-certificate and --tls-key"));
    }
    if (!server.keys->ring()->required() && server.tls_client_ca_file.empty()) {
      warnings->push_back(
          absl::StrCat(address,
                       " is reached by other machines, and everybody there may use the model; add "
                       "--api-key-file or --tls-client-ca"));
    }
  }
}

absl::Status ReadBudgets(WorkerOptions* options) {
  if (options->retrieval_path == "none") options->retrieval_path.clear();
  if (options->retrieval_path.empty()) return absl::OkStatus();
  if (options->retrieval_ratio.has_value()) {
    return absl::InvalidArgumentError(
        "--retrieval-ratio and --retrieval say the same thing: leave one of the two out");
  }
  absl::StatusOr<common::RetrievalFile> file = common::ReadRetrievalFile(options->retrieval_path);
  if (!file.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--retrieval: ", file.status().message()));
  }
  options->retrieval = *std::move(file);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> ParseWorkerOptions(int argc, const char* const* argv, WorkerOptions* options) {
  options->store_socket_dir = common::DefaultSocketDir();
  options->metrics_address = "127.0.0.1:9401";
  options->server.version = common::kBuildVersion;
  options->server.revision = common::kBuildRevision;
  KeyFiles key_files;
  DefaultNames names{.policy = std::string(PolicyName(options->default_attention.policy))};
  common::Settings settings("Generates text: owns the model and serves the gRPC API.",
                            common::kBuildVersion);
  AddModelOptions(&settings, options);
  AddServerOptions(&settings, options, &key_files);
  AddMemoryOptions(&settings, options);
  AddRequestOptions(&settings, options, &names);
  AddMeasuringOptions(&settings, options);
  AddRecordingOptions(&settings, options);
  common::AddLogOptions(&settings, &options->log);
  settings.AddCheckFlag();
  ASSIGN_OR_RETURN(const common::Settings::Outcome outcome, settings.Parse(argc, argv));
  if (outcome == common::Settings::Outcome::kExit) return false;
  if (options->metrics_address == "none") options->metrics_address.clear();
  RETURN_IF_ERROR(CheckModelOptions(*options));
  RETURN_IF_ERROR(CheckRankOptions(*options));
  if (options->record_trace_bytes < kMinTraceBytes) {
    return absl::InvalidArgumentError(absl::StrCat("--record-trace-bytes is ",
                                                   options->record_trace_bytes, "; it needs ",
                                                   kMinTraceBytes, " or more"));
  }
  options->default_attention.policy = *PolicyOfName(names.policy);
  options->quality = *RetrievalQualityNamed(names.quality);
  options->default_attention.prefill = *PrefillOfName(names.prefill);
  if (names.prefill == "sparse" && options->default_attention.policy == PolicyKind::kStreaming) {
    return absl::InvalidArgumentError(
        "--policy streaming reads prompts by its window: leave --prefill sparse out, or use "
        "--policy wave or full");
  }
  RETURN_IF_ERROR(ReadBudgets(options));
  ASSIGN_OR_RETURN(options->server.keys, OpenKeys(key_files));
  options->checks_only = settings.checks_only();
  options->warnings = settings.warnings();
  AddExposureWarnings(options->server, &options->warnings);
  if (names.prefill == "indexed" && options->default_attention.policy != PolicyKind::kWave) {
    options->warnings.push_back(
        absl::StrCat("--prefill indexed is for policy wave: prompts of requests with --policy ",
                     names.policy, ", which is the default here, are read exactly"));
  }
  return true;
}

}  // namespace retroinfer
