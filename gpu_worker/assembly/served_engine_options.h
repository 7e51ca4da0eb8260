// What a worker is told about its model, its processor and its memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/retrieval/retrieval_file.h"
#include "gpu_worker/kv/attention_settings.h"
#include "gpu_worker/wave_index/retrieval_quality.h"

namespace retroinfer {

struct ServedEngineOptions {
  std::string model_folder;          // or a file in GGUF
  std::string draft_model_folder;    // the same, of a small model that drafts; empty: none
  std::string load_format = "auto";  // "auto": the folder's weights; "dummy": random ones
  std::string
      model_shape;  // with "dummy": a name of model_shapes.h; empty: the folder's config.json
  std::string served_model_name;   // empty: the folder's or the shape's name
  std::string rope_scaling;        // as rope_scaling.h has it; empty: as config.json says
  std::string chat_template_file;  // a Jinja template; empty: the folder's own
  std::string store_socket_dir;    // --socket-dir of the kv_store_service

  std::string device = "auto";  // "auto", "cpu", "cuda", "cuda:N" or "cuda:N,M,..."
  // Processes that share the model, and which of them this one is: rank 0 serves, and starts the
  // others by this, the program and its arguments, and "--rank" and a number behind them.
  int32_t num_ranks = 1;
  int32_t rank = 0;
  std::vector<std::string> rank_program;
  absl::Duration rank_timeout = absl::Minutes(2);  // for all of them to answer a command
  double gpu_memory_utilization = 0.9;             // of the GPU's memory, for this process
  std::string compute_dtype = "auto";              // "auto", "bf16" or "f32"
  std::string kv_dtype = "auto";                   // "auto", "int8", "bf16" or "f32"
  std::string index_dtype = "auto";    // "auto", "coded", "packed", "int8", "bf16", "f32"
  std::string weights_dtype = "auto";  // "auto", "bf16", "fp8" or "int4"
  int64_t max_model_len = 0;           // tokens; 0: what the model and the memory allow
  int64_t max_whole_prompt = 0;        // tokens of a prompt that is read as one; 0: max_model_len
  int32_t max_batch = 8;               // requests that decode together
  int32_t tail_run = 0;                // AttentionSettings::tail_run; 0: chosen
  uint64_t memory_bytes = 0;           // for weights, KV and all else; 0: chosen
  uint64_t dense_kv_bytes = 0;         // of it for steady zones and policy full; 0: chosen
  uint64_t block_cache_bytes = 0;      // of it for the block cache; 0: chosen
  std::string preemption = "on";       // "on" or "off": requests are preempted by a higher priority
  std::string reserve = "soon";        // "soon" or "all": device memory when a request begins
  uint64_t suspended_kv_bytes = 0;     // of the host's memory for them; 0: chosen
  std::string speculation = "auto";    // "off" or "auto": steps try drafts of what comes next
  int32_t num_threads = 0;             // compute threads; 0: one per CPU core
  int64_t dense_below = 8192;          // tokens; shorter contexts are attended exactly
  std::string wave_index = "tuned";    // "tuned" or "paper": how clusters are made and ranked
  absl::Duration inter_token_target = absl::Milliseconds(50);  // beside prompts that are read
  int32_t max_queued_requests = 1024;                          // live requests, queued and running
  int64_t max_waiting_tokens = 0;    // of prompts that wait to be read; 0: no limit
  absl::Duration max_expected_wait;  // of a request for its turn; 0: no limit

  // In the products of prompts: "bf16", or "fp8" beside weights in fp8 on a Hopper GPU.
  std::string activations_dtype = "bf16";

  // With "dummy": tokens of context that every request gets before its prompt, beside
  // max_model_len, and how alike its queries of two steps are (SyntheticShape::overlap).
  int64_t synthetic_context = 0;
  std::optional<double> synthetic_overlap;

  // File that what decode steps retrieve is written to, and its size at most; empty: none.
  std::string record_trace_file;
  uint64_t record_trace_bytes = uint64_t{64} << 20;

  AttentionSettings default_attention;
  RetrievalQuality quality = RetrievalQuality::kStandard;
  std::optional<double> retrieval_ratio;  // of default_attention; none: as `quality` says
  // Ratios by length that were measured with this model, and the path that they were read from.
  std::optional<common::RetrievalFile> retrieval;
  std::string retrieval_path;
  int32_t default_max_tokens = 0;  // 0: what is left of the model's length
};

}  // namespace retroinfer
