// Whether a model fits into a machine, for how many users at a time, and up to which context.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "gpu_worker/engine/memory_plan.h"
#include "gpu_worker/kv/attention_settings.h"

namespace retroinfer::client {

struct FitInput {
  // As the worker would plan, but for what follows from the rest of this: max_model_len, backend
  // and owns_memory, arena_pages, available_bytes.
  MemoryPlanInput worker{.max_batch = 8};
  std::string weights_dtype = "bf16";  // as GetModelInfo has them
  std::string weight_scales;
  std::string chat_template = "none";  // where it is from
  std::string chat_template_problem;   // why it cannot be run; empty: nothing known
  std::string rope_scaling;            // as it was given (rope_scaling.h); empty: config.json's
  // The model as the command line to start with names it: its folder, or a shape and no folder.
  std::string model_option = "--model DIR";
  std::string draft_model_folder;  // as it was given; empty: none
  std::string number_types;    // options of `serve` that were given: " --kv-dtype int8", or empty
  std::string retrieval_file;  // as it was given; empty: none
  std::string retrieval_budgets;  // what it says (common::DescribeBudgets)
  bool has_weights = true;        // false: weight_bytes follows from the configuration alone
  PolicyKind policy = PolicyKind::kWave;
  int num_ranks = 1;             // `worker` is the largest part of the model, for one of them
  int64_t users = 1;             // that have a context each at a time
  uint64_t available_bytes = 0;  // what the machine can still give
  bool on_gpu = false;           // where the worker computes
  uint64_t memory_bytes = 0;     // for the worker: of the machine, or of its GPU
  uint64_t arena_bytes = 0;      // for the store
  int64_t wanted_context = 0;    // tokens of each user; 0: as much as the model can
};

struct FitReport {
  absl::Status status;             // OK if the model and wanted_context (if any) fit
  int64_t largest_context = 0;     // tokens of each user, with the policy; 0: none fits
  std::optional<MemoryPlan> plan;  // for the largest context
  // What the wanted context, or else the model's own length, needs for all users.
  int64_t target_context = 0;
  uint64_t target_arena_bytes = 0;
  uint64_t target_memory_bytes = 0;  // of the worker, at least
  uint64_t kv_bytes_per_token = 0;
};

// Pure arithmetic, the same as the worker's at its start.
FitReport ExamineFit(const FitInput& input);

// The command that starts a server with what the input gives it, for contexts of `context` tokens.
std::string StartLine(const FitInput& input, int64_t context);
// Lines for people.
std::string DescribeFit(const FitInput& input, const FitReport& report);
// One JSON object for programs.
std::string FitJson(const FitInput& input, const FitReport& report);

}  // namespace retroinfer::client
