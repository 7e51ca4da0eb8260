// What the server knows about the model that its engine runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/retrieval/retrieval_file.h"
#include "gpu_worker/engine/generation.h"
#include "gpu_worker/kv/attention_settings.h"
#include "text/constraint/constraint_compiler.h"
#include "text/tokenizer/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace retroinfer {

// Owned by others, which outlive the server: the tokenizer and the template.
struct ServedModel {
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat_template = nullptr;
  // For the model's vocabulary and end tokens. Null: constraints are refused.
  std::shared_ptr<constraint::ConstraintCompiler> constraints;

  std::string name;
  std::string architecture;
  int32_t vocab_size = 0;  // of the model: at least the tokenizer's
  int32_t num_layers = 0;
  int32_t num_query_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  std::string compute_dtype;  // "bf16" or "f32"
  std::string kv_dtype;       // type of keys and values: "int8", "bf16" or "f32"
  std::string index_dtype;    // the wave index: "coded", "packed", "int8", "bf16" or "f32"
  std::string weights_dtype;  // as WeightsDtype: "fp8", "int4", or the type of the numbers
  std::string weight_scales;  // as WeightScalesFrom; empty: stored as numbers
  std::string backend;        // "cpu" or "cuda"
  std::string device_name;    // as the hardware says it
  std::string load_format;    // "auto" or "dummy": random weights
  // Of "dummy": tokens that come before every prompt, or 0, and the overlap of their queries.
  int64_t synthetic_context = 0;
  std::optional<double> synthetic_overlap;
  std::vector<int32_t> eos_token_ids;

  // Of contexts: what names the segments of a prompt, and where they are kept.
  std::string segment_fingerprint;  // as LocalEngineOptions
  int64_t dense_below = 0;          // shorter prompts have no segments
  std::string store_target;         // gRPC target of the kv_store_service

  // What a request gets that does not say; max_tokens is an upper limit of the default, 0: what is
  // left of the model's length.
  SamplingParams default_sampling;
  AttentionSettings default_attention;

  // What the budgets of policy wave depend on, and those that were measured.
  common::RetrievalSubject subject;
  int32_t min_retrieved = 0;  // clusters
  std::optional<common::RetrievalFile> retrieval;
  // default_attention, with the ratio that was measured for such a context.
  AttentionSettings AttentionFor(int64_t prompt_tokens) const {
    AttentionSettings attention = default_attention;
    if (retrieval.has_value()) attention.retrieval_ratio = retrieval->RatioFor(prompt_tokens);
    return attention;
  }
};

}  // namespace retroinfer
