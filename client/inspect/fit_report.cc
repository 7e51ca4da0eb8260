#include "client/inspect/fit_report.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/command/number_format.h"
#include "common/config/byte_size.h"
#include "common/kv/segment_layout.h"
#include "gpu_worker/attention/policy_table.h"
#include "gpu_worker/model/rope_scaling.h"
#include "gpu_worker/ops/backend/cpu/cpu_needs.h"
#include "gpu_worker/ops/backend/cuda/cuda_needs.h"

namespace retroinfer::client {
namespace {

using common::FormatByteSize;

constexpr int64_t kContextMin = 1024;  // what a worker must hold at least

// Of the arena, which has the KV of all ranks.
KvGeometry Geometry(const FitInput& input) {
  return input.worker.heads.ArenaOf(input.worker.geometry());
}

MemoryPlanInput PlanInput(const FitInput& input, int64_t context) {
  MemoryPlanInput worker = input.worker;
  worker.max_model_len = context;
  worker.backend = input.on_gpu ? kCudaNeeds : kCpuNeeds;
  worker.owns_memory = input.on_gpu;
  worker.arena_pages = static_cast<uint32_t>(input.arena_bytes / Geometry(input).page_bytes());
  worker.available_bytes =
      input.on_gpu ? PlannableGpuBytes(input.memory_bytes) : size_t{input.memory_bytes};
  worker.preemption = true;
  // All users decode together.
  worker.max_batch = std::max(worker.max_batch, static_cast<int32_t>(input.users));
  return worker;
}

// Tokens of the largest context that each of the users can have at a time: what a worker with a
// share of the blocks and of the arena could hold.
int64_t CapacityOfEach(const FitInput& input, const MemoryPlan& plan) {
  const auto users = static_cast<int32_t>(input.users);
  return EntryOf(input.policy)
      .capacity(
          {.max_model_len = plan.max_model_len,
           .max_single_pass_tokens = plan.long_lane_tokens,
           .dense_blocks = plan.dense_blocks / users,
           .arena_tokens = ArenaCapacityTokens(plan.heads.ArenaOf(plan.geometry),
                                               plan.arena_pages / static_cast<uint32_t>(users)),
           .dense_below = input.worker.index.dense_below});
}

// A plan under which every user has a context of `context` tokens.
std::optional<MemoryPlan> PlanFor(const FitInput& input, int64_t context) {
  auto plan = PlanMemory(PlanInput(input, context));
  if (!plan.ok() || CapacityOfEach(input, *plan) < context) return std::nullopt;
  return *plan;
}

// Whether a context of `context` tokens has segments: policy full keeps everything in dense blocks,
// and wave keeps short contexts there.
bool NeedsArena(const FitInput& input, int64_t context) {
  const ContextMemory dense_alone = {.max_model_len = context,
                                     .max_single_pass_tokens = context,
                                     .dense_blocks = std::numeric_limits<int32_t>::max(),
                                     .arena_tokens = 0,
                                     .dense_below = input.worker.index.dense_below};
  return EntryOf(input.policy).capacity(dense_alone) < context;
}

// Arena for the segments of a context of `context` tokens of each user; what there is where the
// policy puts none into the arena.
uint64_t ArenaBytesFor(const FitInput& input, int64_t context) {
  if (!NeedsArena(input, context)) return input.arena_bytes;
  const KvGeometry geometry = Geometry(input);
  const int64_t large = context / kPrefillSegmentTokens;
  const int64_t rest = context % kPrefillSegmentTokens;
  const int64_t small = (rest + kDecodeSegmentTokens - 1) / kDecodeSegmentTokens;
  const uint64_t pages =
      static_cast<uint64_t>(large) * SegmentLayout(geometry, kPrefillSegmentTokens).max_pages +
      static_cast<uint64_t>(small) * SegmentLayout(geometry, kDecodeSegmentTokens).max_pages;
  return static_cast<uint64_t>(input.users) * pages * geometry.page_bytes();
}

// The least worker memory under which `context` tokens run, given the arena that they need.
uint64_t MemoryBytesFor(FitInput input, int64_t context, uint64_t arena_bytes) {
  input.arena_bytes = arena_bytes;
  constexpr uint64_t kStep = 1 << 20;
  uint64_t low = 0;
  uint64_t high = kStep;
  const auto fits = [&](uint64_t bytes) {
    input.memory_bytes = bytes;
    return PlanFor(input, context).has_value();
  };
  while (!fits(high) && high < (uint64_t{1} << 50)) high *= 2;
  while (high - low > kStep) {
    const uint64_t middle = low + (high - low) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return high;
}

// "for each of 2 users with policy wave"
std::string WhoNeeds(const FitInput& input) {
  return absl::StrCat(input.users == 1 ? "" : absl::StrCat("for each of ", input.users, " users "),
                      "with policy ", std::string(PolicyName(input.policy)));
}

// In whole MiB, which is exact, and rounded up.
std::string MebiBytes(uint64_t bytes) {
  return absl::StrCat((bytes + (uint64_t{1} << 20) - 1) >> 20, "MiB");
}

const char* MemoryFlag(const FitInput& input) { return input.on_gpu ? "--gpu-memory" : "--memory"; }

// The settings that give a context of the length that is aimed at.
std::string TargetSettings(const FitInput& input, const FitReport& report, const char* between) {
  const std::string memory =
      absl::StrCat(MemoryFlag(input), " ", MebiBytes(report.target_memory_bytes));
  if (!NeedsArena(input, report.target_context)) return memory;
  return absl::StrCat("--arena-bytes ", MebiBytes(report.target_arena_bytes), between, memory);
}

// Why the context that is wanted is not had, and what gives it.
std::string WhatLimits(const FitInput& input, const FitReport& report) {
  const ModelConfig& model = input.worker.model;
  if (input.wanted_context <= model.context_length) {
    return absl::StrCat("it needs ", TargetSettings(input, report, " and "));
  }
  const std::optional<std::string> scaling = DocumentedRopeScaling(model);
  return absl::StrCat(
      "the model was made for no more than ", WithThousands(model.context_length),
      scaling.has_value() ? absl::StrCat(", or for more with --rope-scaling ", *scaling) : "");
}

absl::Status Verdict(const FitInput& input, const FitReport& report) {
  if (report.largest_context == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the model does not fit: a worker needs at least ",
                     FormatByteSize(MemoryBytesFor(input, kContextMin, input.arena_bytes)),
                     " (weights ", FormatByteSize(input.worker.weight_bytes), "), it has ",
                     FormatByteSize(input.memory_bytes), ": raise ", MemoryFlag(input)));
  }
  if (input.on_gpu && input.arena_bytes > input.available_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the arena takes ", FormatByteSize(input.arena_bytes), ", the machine has ",
                     FormatByteSize(input.available_bytes), " to give: lower --arena-bytes"));
  }
  const uint64_t together =
      input.arena_bytes + static_cast<uint64_t>(input.num_ranks) * report.plan->total_bytes();
  if (!input.on_gpu && together > input.available_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "worker and arena take ", FormatByteSize(together), " together, the machine has ",
        FormatByteSize(input.available_bytes), " to give: lower --memory or --arena-bytes"));
  }
  if (input.wanted_context > report.largest_context) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a context of ", WithThousands(input.wanted_context), " tokens does not fit ",
                     WhoNeeds(input), ", the largest is ", WithThousands(report.largest_context),
                     " (", WhatLimits(input, report), ")"));
  }
  return absl::OkStatus();
}

std::string DescribeWeights(const FitInput& input) {
  const std::string bytes = FormatByteSize(input.worker.weight_bytes);
  if (!input.has_weights)
    return absl::StrCat(bytes, " (as the configuration says: no weights are there)");
  if (input.weight_scales.empty()) return absl::StrCat(bytes, " (", input.weights_dtype, ")");
  if (input.worker.model.float4.has_value() && input.weights_dtype == "bf16") {
    return absl::StrCat(bytes, " (", input.weight_scales, ": ", std::string(kFloat4Note), ")");
  }
  return absl::StrCat(bytes, " (", input.weight_scales,
                      input.on_gpu ? ")" : "; on the CPU they become bf16)");
}

std::string DescribeChatTemplate(const FitInput& input) {
  if (input.chat_template == "none") return "no template: text alone is taken, no messages";
  if (input.chat_template_problem.empty()) return "template of " + input.chat_template;
  return absl::StrCat("template of ", input.chat_template, ": ", input.chat_template_problem);
}

// How the model would serve longer contexts, if its makers say so.
std::string DescribeLonger(const FitInput& input) {
  const std::optional<std::string> scaling = DocumentedRopeScaling(input.worker.model);
  if (!scaling.has_value()) return "";
  ModelConfig longer = input.worker.model;
  if (!ApplyRopeScaling(*scaling, longer).ok()) return "";
  return absl::StrCat("Longer   --rope-scaling ", *scaling, ": ",
                      WithThousands(longer.context_length),
                      " tokens (YaRN, as the makers' READMEs have it)\n");
}

}  // namespace

std::string StartLine(const FitInput& input, int64_t context) {
  return absl::StrCat("retroinfer serve ", input.model_option,
                      input.rope_scaling.empty() ? "" : " --rope-scaling ", input.rope_scaling,
                      input.draft_model_folder.empty() ? "" : " --speculation auto --draft-model ",
                      input.draft_model_folder, input.number_types,
                      input.retrieval_file.empty() ? "" : " --retrieval ", input.retrieval_file,
                      " --arena-bytes ", MebiBytes(input.arena_bytes),
                      input.num_ranks == 1 ? "" : " --tensor-parallel ",
                      input.num_ranks == 1 ? "" : absl::StrCat(input.num_ranks),
                      input.on_gpu ? " --device cuda" : " --memory ",
                      input.on_gpu ? "" : MebiBytes(input.memory_bytes), " --max-model-len ",
                      context, " --max-batch ", PlanInput(input, context).max_batch,
                      input.policy == PolicyKind::kWave
                          ? ""
                          : absl::StrCat(" --policy ", std::string(PolicyName(input.policy))));
}

FitReport ExamineFit(const FitInput& input) {
  FitReport report;
  report.kv_bytes_per_token = Geometry(input).token_bytes();
  const int64_t model_context = std::max(input.worker.model.context_length, kContextMin);
  if (PlanFor(input, kContextMin).has_value()) {
    int64_t low = kContextMin;  // fits
    int64_t high = model_context + 1;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (PlanFor(input, middle).has_value() ? low : high) = middle;
    }
    report.largest_context = low;
    report.plan = PlanFor(input, low);
  }
  report.target_context = input.wanted_context != 0 ? input.wanted_context : model_context;
  report.target_arena_bytes = ArenaBytesFor(input, report.target_context);
  report.target_memory_bytes =
      MemoryBytesFor(input, report.target_context, report.target_arena_bytes);
  report.status = Verdict(input, report);
  return report;
}

std::string DescribeFit(const FitInput& input, const FitReport& report) {
  const ModelConfig& model = input.worker.model;
  std::string text = absl::StrCat(
      "Model    ", std::string(ModelFamilyName(model.family)), ", ", model.num_layers, " layers, ",
      model.num_query_heads, " query and ", model.num_kv_heads, " KV heads of ",
      model.own_head_dim(),
      model.stored_head_dim == 0 ? "" : absl::StrCat(" (kept as ", model.head_dim, ")"),
      ", made for ", WithThousands(model.context_length), " tokens",
      input.rope_scaling.empty() ? "" : absl::StrCat(" with --rope-scaling ", input.rope_scaling),
      "\n", DescribeLonger(input));
  absl::StrAppend(&text, "Weights  ", DescribeWeights(input), "\n");
  if (input.worker.draft.has_value()) {
    absl::StrAppend(&text, "Drafts   ",
                    std::string(ModelFamilyName(input.worker.draft->model.family)), ", ",
                    FormatByteSize(input.worker.draft->weight_bytes), " of weights\n");
  }
  absl::StrAppend(&text, "Chat     ", DescribeChatTemplate(input), "\n");
  absl::StrAppend(&text, "KV       ", FormatByteSize(report.kv_bytes_per_token), " a token (",
                  std::string(input.worker.kv_format.name), ")\n");
  if (!input.retrieval_file.empty()) {
    absl::StrAppend(&text, "Budgets  ", input.retrieval_file, ": ", input.retrieval_budgets, "\n");
  }
  absl::StrAppend(&text, "Machine  ", FormatByteSize(input.available_bytes), " available: worker ",
                  FormatByteSize(input.memory_bytes), " (", MemoryFlag(input), "), arena ",
                  FormatByteSize(input.arena_bytes), " (--arena-bytes)\n");
  if (input.num_ranks > 1) {
    absl::StrAppend(&text, "Ranks    ", input.num_ranks, ", the worker's memory is that of each; ",
                    "heads and weights are those of one\n");
  }
  if (report.plan.has_value()) {
    absl::StrAppend(&text, "Split    ", report.plan->ToString(), "\n");
    absl::StrAppend(&text, "Largest context: ", WithThousands(report.largest_context), " tokens ",
                    WhoNeeds(input), "\n");
  }
  if (report.target_context > report.largest_context) {
    absl::StrAppend(&text, "For ", WithThousands(report.target_context),
                    " tokens: ", TargetSettings(input, report, ", "), "\n");
  }
  if (!report.status.ok()) {
    return absl::StrCat(text, "It does not fit: ", std::string(report.status.message()), "\n");
  }
  const int64_t context = input.wanted_context == 0 ? report.largest_context : input.wanted_context;
  return absl::StrCat(text, "It fits: ", WithThousands(context), " tokens ", WhoNeeds(input),
                      ".\nStart with: ", StartLine(input, context), "\n");
}

std::string FitJson(const FitInput& input, const FitReport& report) {
  nlohmann::json json = {
      {"fits", report.status.ok()},
      {"policy", std::string(PolicyName(input.policy))},
      {"users", input.users},
      {"largest_context_tokens", report.largest_context},
      {"model_context_tokens", input.worker.model.context_length},
      {"weight_bytes", input.worker.weight_bytes},
      {"weights_dtype", input.weights_dtype},
      {"weight_scales", input.weight_scales},
      {"chat_template", input.chat_template},
      {"kv_bytes_per_token", report.kv_bytes_per_token},
      {"available_bytes", input.available_bytes},
      {"memory_bytes", input.memory_bytes},
      {"arena_bytes", input.arena_bytes},
      {"target_context_tokens", report.target_context},
      {"target_arena_bytes", report.target_arena_bytes},
      {"target_memory_bytes", report.target_memory_bytes},
  };
  if (!input.rope_scaling.empty()) json["rope_scaling"] = input.rope_scaling;
  if (!input.retrieval_file.empty()) json["retrieval_budgets"] = input.retrieval_budgets;
  if (const auto scaling = DocumentedRopeScaling(input.worker.model)) {
    json["documented_rope_scaling"] = *scaling;
  }
  if (!input.chat_template_problem.empty()) {
    json["chat_template_problem"] = input.chat_template_problem;
  }
  if (!report.status.ok()) json["problem"] = std::string(report.status.message());
  if (report.plan.has_value()) {
    for (size_t i = 0; i < kNumPolicies; ++i) {
      const auto kind = static_cast<PolicyKind>(i);
      json["kv_capacity_tokens_" + std::string(PolicyName(kind))] =
          report.plan->capacity_tokens[kind];
    }
  }
  return json.dump(2);
}

}  // namespace retroinfer::client
