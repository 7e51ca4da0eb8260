#include "gpu_worker/model/model_shapes.h"

#include "absl/strings/str_cat.h"

namespace retroinfer {
namespace {

void SetLength(int64_t max_positions, ModelConfig& config) {
  config.max_positions = max_positions;
  config.context_length = ContextLengthOf(config);
}

ModelConfig Llama3() {
  ModelConfig config;
  config.family = ModelFamily::kLlama;
  config.hidden_size = 4096;
  config.intermediate_size = 14336;
  config.num_layers = 32;
  config.num_query_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.vocab_size = 128'256;
  config.rms_norm_epsilon = 1e-5f;
  config.rope.theta = 500'000;
  SetLength(8192, config);
  config.dtype = DType::kBf16;
  return config;
}

ModelConfig Llama31() {
  ModelConfig config = Llama3();
  config.rope.type = RopeConfig::Type::kLlama3;
  config.rope.factor = 8;
  config.rope.low_freq_factor = 1;
  config.rope.high_freq_factor = 4;
  config.rope.original_positions = 8192;
  SetLength(131'072, config);
  return config;
}

ModelConfig Llama31Of70B() {
  ModelConfig config = Llama31();
  config.hidden_size = 8192;
  config.intermediate_size = 28'672;
  config.num_layers = 80;
  config.num_query_heads = 64;
  return config;
}

ModelConfig Qwen25() {
  ModelConfig config = Llama3();
  config.family = ModelFamily::kQwen2;
  config.hidden_size = 3584;
  config.intermediate_size = 18'944;
  config.num_layers = 28;
  config.num_query_heads = 28;
  config.num_kv_heads = 4;
  config.vocab_size = 152'064;
  config.rms_norm_epsilon = 1e-6f;
  config.rope.theta = 1'000'000;
  SetLength(32'768, config);
  config.qkv_bias = true;
  return config;
}

ModelConfig Qwen3OfExperts() {
  ModelConfig config = Llama3();
  config.family = ModelFamily::kQwen3Moe;
  config.hidden_size = 2048;
  config.intermediate_size = 768;
  config.experts = {.count = 128, .per_token = 8, .weights_sum_to_one = true};
  config.num_layers = 48;
  config.num_query_heads = 32;
  config.num_kv_heads = 4;
  config.vocab_size = 151'936;
  config.rms_norm_epsilon = 1e-6f;
  config.rope.theta = 10'000'000;
  SetLength(262'144, config);
  config.qk_norm = true;
  return config;
}

ModelConfig TinyOfExperts() {
  ModelConfig config = Qwen3OfExperts();
  config.hidden_size = 128;
  config.intermediate_size = 64;
  config.experts = {.count = 8, .per_token = 2, .weights_sum_to_one = true};
  config.num_layers = 2;
  config.num_query_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 64;
  config.vocab_size = 512;
  return config;
}

ModelConfig Tiny() {
  ModelConfig config = Llama3();
  config.hidden_size = 128;
  config.intermediate_size = 256;
  config.num_layers = 2;
  config.num_query_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 64;
  config.vocab_size = 512;
  return config;
}

}  // namespace

absl::StatusOr<ModelConfig> NamedModelShape(std::string_view name) {
  if (name == "llama-3-8b") return Llama3();
  if (name == "llama-3.1-8b") return Llama31();
  if (name == "llama-3.1-70b") return Llama31Of70B();
  if (name == "qwen2.5-7b") return Qwen25();
  if (name == "qwen3-30b-a3b") return Qwen3OfExperts();
  if (name == "tiny") return Tiny();
  if (name == "tiny-experts") return TinyOfExperts();
  return absl::NotFoundError(absl::StrCat(
      "no model shape \"", std::string(name),
      "\"; there are llama-3-8b, llama-3.1-8b, llama-3.1-70b, qwen2.5-7b, qwen3-30b-a3b, "
      "tiny and tiny-experts"));
}

}  // namespace retroinfer
