#include <string>

#include "client/command/command_line.h"
#include "client/command/commands.h"
#include "client/inspect/fit_report.h"
#include "client/inspect/model_check.h"
#include "common/build_info/build_info.h"
#include "common/memory/available_memory.h"
#include "common/retrieval/retrieval_file.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/largest_part.h"
#include "gpu_worker/ops/backend/cpu/cpu_needs.h"
#include "gpu_worker/ops/backend/cuda/cuda_needs.h"

namespace retroinfer::client {
namespace {

struct CheckOptions {
  std::string model_folder;
  std::string model_shape;
  std::string draft_model_folder;
  std::string chat_template_file;
  std::string kv_dtype = "bf16";
  std::string index_dtype = "auto";
  std::string weights_dtype = "auto";
  std::string policy = "wave";
  uint64_t gpu_memory_bytes = 0;   // 0: the worker computes on the CPU
  uint64_t host_memory_bytes = 0;  // 0: what this machine has available
  bool json = false;
};

void AddOptions(common::Settings* settings, CheckOptions* options, FitInput* input) {
  CLI::App& app = settings->app();
  app.add_option("model", options->model_folder,
                 "Model folder (Hugging Face layout), its config.json alone, or a GGUF file");
  app.add_option("--model-shape", options->model_shape,
                 "Instead of a model: a shape that 'serve --load-format dummy' knows, as "
                 "llama-3.1-8b");
  settings->AddTokenCount("--context", &input->wanted_context,
                          "Ask for a context of so many tokens, of each user");
  app.add_option("--users", input->users, "Users that have such a context at a time")
      ->check(CLI::Range(1, 1024));
  app.add_option("--policy", options->policy, "Attention policy of the requests")
      ->check(CLI::IsMember({"wave", "full", "streaming"}));
  settings->AddByteSize("--host-memory", &options->host_memory_bytes,
                        "Plan for another machine that has so much memory to give; 0: this one");
  settings->AddByteSize("--memory", &input->memory_bytes,
                        "Memory of the worker; 0: half of what the machine has available");
  settings->AddByteSize("--gpu-memory", &options->gpu_memory_bytes,
                        "The worker computes on a GPU and may take so much of its memory "
                        "(--gpu-memory-utilization times its size)");
  settings->AddByteSize("--arena-bytes", &input->arena_bytes, "Shared memory for the KV");
  settings->AddByteSize("--dense-kv-bytes", &input->worker.dense_kv_bytes,
                        "Part of the worker's memory for steady zones and policy full; 0: chosen");
  settings->AddByteSize("--block-cache-bytes", &input->worker.block_cache_bytes,
                        "Part of the worker's memory for the block cache; 0: chosen");
  app.add_option("--tensor-parallel", input->num_ranks,
                 "Ranks that share the model; memory is that of each, but for the arena")
      ->check(CLI::Range(1, 8));
  app.add_option("--max-batch", input->worker.max_batch, "Requests that decode together")
      ->check(CLI::Range(1, 1024));
  settings->AddTokenCount("--dense-below", &input->worker.index.dense_below,
                          "Contexts of fewer tokens are attended exactly");
  app.add_option("--kv-dtype", options->kv_dtype, "Type of keys and values")
      ->check(CLI::IsMember({"int8", "bf16", "f32"}));
  app.add_option("--index-dtype", options->index_dtype, "Type of the wave index")
      ->check(CLI::IsMember({"auto", "coded", "packed", "int8", "bf16", "f32"}));
  app.add_option("--weights-dtype", options->weights_dtype,
                 "Type of the layers' weights; auto: as the checkpoint has them")
      ->check(CLI::IsMember({"auto", "bf16", "fp8", "int4"}));
  app.add_option("--rope-scaling", input->rope_scaling,
                 "yarn:FACTOR[:ORIGINAL]: YaRN in the place of what config.json says of RoPE");
  app.add_option("--draft-model", options->draft_model_folder,
                 "Small model with the same tokens to serve with: folder or GGUF file");
  app.add_option("--retrieval", input->retrieval_file, "File of 'retroinfer tune' to serve with");
  app.add_option("--chat-template", options->chat_template_file,
                 "File with a Jinja chat template; default: the model folder's own");
  app.add_flag("--json", options->json, "Write one JSON object");
}

// How `serve` is told the model. A folder has its weights by then, if it was a config.json alone.
std::string ModelOption(const CheckOptions& options) {
  if (!options.model_shape.empty()) {
    return absl::StrCat("--load-format dummy --model-shape ", options.model_shape);
  }
  std::string_view folder = options.model_folder;
  if (folder.ends_with("/config.json")) folder = folder.substr(0, folder.rfind('/'));
  return absl::StrCat("--model ", std::string(folder));
}

// What was given of how numbers are kept: a server that is started without it needs other memory.
std::string NumberTypes(const CheckOptions& options) {
  const CheckOptions usual;
  std::string types;
  if (options.kv_dtype != usual.kv_dtype) absl::StrAppend(&types, " --kv-dtype ", options.kv_dtype);
  if (options.index_dtype != usual.index_dtype) {
    absl::StrAppend(&types, " --index-dtype ", options.index_dtype);
  }
  if (options.weights_dtype != usual.weights_dtype) {
    absl::StrAppend(&types, " --weights-dtype ", options.weights_dtype);
  }
  return types;
}

// Reads what a worker would, but for the weights themselves. Where there is a config.json and no
// weights beside it, their size follows from it.
absl::Status ReadModel(const CheckOptions& options, FitInput* input) {
  const ModelFileOptions file_options = {.chat_template_file = options.chat_template_file,
                                         .weights_dtype = options.weights_dtype,
                                         .kv_dtype = options.kv_dtype,
                                         .rope_scaling = input->rope_scaling,
                                         .num_ranks = input->num_ranks,
                                         .needs_weights = false};
  ASSIGN_OR_RETURN(const ModelFiles files, options.model_shape.empty()
                                               ? ReadModelFiles(options.model_folder, file_options)
                                               : ReadModelShape(options.model_shape, file_options));
  ASSIGN_OR_RETURN(input->worker.model, LargestPart(files.config, {.num_ranks = input->num_ranks},
                                                    &input->worker.heads));
  input->worker.prefill_rows = PrefillRows(input->num_ranks);
  const bool on_gpu = options.gpu_memory_bytes != 0;
  if (!options.draft_model_folder.empty()) {
    ASSIGN_OR_RETURN(const ModelFiles draft,
                     ReadDraftModelFiles(options.draft_model_folder, files));
    input->draft_model_folder = options.draft_model_folder;
    input->worker.draft = {
        .model = draft.config,
        .weight_bytes = on_gpu ? draft.weight_bytes_gpu : draft.weight_bytes_cpu};
    // What the plan would refuse is refused for its own reason.
    RETURN_IF_ERROR(DraftModel::SizesFor(draft.config, files.config.vocab_size,
                                         files.config.context_length, input->worker.max_batch)
                        .status());
  }
  input->worker.weight_bytes = on_gpu ? files.weight_bytes_gpu : files.weight_bytes_cpu;
  input->has_weights = files.has_weights;
  input->number_types = NumberTypes(options);
  input->weights_dtype = files.weights_dtype;
  input->weight_scales = files.weight_scales;
  input->chat_template = files.chat_template;
  input->chat_template_problem = files.chat_template_problem;
  ASSIGN_OR_RETURN(
      input->worker.kv_format,
      KvFormatNamed(options.kv_dtype, IndexNameFor(on_gpu ? kCudaNeeds : kCpuNeeds,
                                                   options.kv_dtype, options.index_dtype)));
  return input->worker.model.geometry(input->worker.kv_format).Validate();
}

// Whether the file is of this model is for the worker to say, which reads all weights.
absl::Status ReadBudgets(FitInput* input) {
  if (input->retrieval_file.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const common::RetrievalFile file,
                   common::ReadRetrievalFile(input->retrieval_file));
  common::RetrievalSubject served = file.subject;
  served.kv_dtype = std::string(PagesName(input->worker.kv_format));
  served.index_dtype = std::string(IndexName(input->worker.kv_format));
  if (const absl::Status status = common::CheckSubject(file.subject, served); !status.ok()) {
    return absl::Status(
        status.code(), absl::StrCat("--retrieval ", input->retrieval_file, ": ", status.message()));
  }
  input->retrieval_budgets =
      absl::StrCat(common::DescribeBudgets(file), ", measured with ", file.subject.model_name);
  return absl::OkStatus();
}

absl::Status ReadMachine(const CheckOptions& options, FitInput* input) {
  input->available_bytes = options.host_memory_bytes;
  if (input->available_bytes == 0) {
    ASSIGN_OR_RETURN(input->available_bytes, common::AvailableMemoryBytes());
  }
  if (options.gpu_memory_bytes != 0) {
    input->on_gpu = true;
    input->memory_bytes = options.gpu_memory_bytes;
  }
  // Ranks share the machine; a worker that is told nothing takes as little.
  if (input->memory_bytes == 0) {
    input->memory_bytes = input->available_bytes / 2 / static_cast<uint64_t>(input->num_ranks);
  }
  return absl::OkStatus();
}

}  // namespace

int CheckCommand(int argc, const char* const* argv, const Streams& streams) {
  CheckOptions options;
  FitInput input;
  input.arena_bytes = uint64_t{2} << 30;
  common::Settings settings("Says whether a model fits into this machine, and up to which context.",
                            common::kBuildVersion);
  AddOptions(&settings, &options, &input);
  if (const auto done = ParseArguments(settings, argc, argv, streams)) return *done;
  input.policy = *PolicyOfName(options.policy);
  if (options.model_folder.empty() == options.model_shape.empty()) {
    return Fail(streams, "check",
                "give a model folder, a config.json or a GGUF file, or --model-shape NAME, and not "
                "both",
                kExitUsage);
  }
  input.model_option = ModelOption(options);
  absl::Status status = ReadModel(options, &input);
  if (status.ok()) status = ReadBudgets(&input);
  status.Update(ReadMachine(options, &input));
  if (!status.ok()) {
    return Fail(streams, "check", std::string(status.message()), kExitFailed);
  }
  const FitReport report = ExamineFit(input);
  std::fprintf(streams.out, "%s%s",
               options.json ? FitJson(input, report).c_str() : DescribeFit(input, report).c_str(),
               options.json ? "\n" : "");
  std::fflush(streams.out);
  return report.status.ok() ? kExitOk : kExitFailed;
}

}  // namespace retroinfer::client
