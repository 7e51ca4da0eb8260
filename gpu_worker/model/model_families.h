// The families of models that are served: one entry each, which says by what a config.json names
// the family, how its tensors are called, what transformers takes for keys that are not there, and
// what the documents say of it (`retroinfer models` prints that).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "gpu_worker/model/rope_config.h"
#include "gpu_worker/model/tensor_names.h"

namespace retroinfer {

// The values are part of the fingerprint: never renumber.
enum class ModelFamily : uint32_t {
  kLlama = 1,
  kQwen2 = 2,
  kQwen3 = 3,
  kMistral = 4,
  kSeedOss = 5,
  kSmolLm3 = 6,
  kQwen3Moe = 7,
  kMixtral = 8,
  kGranite = 10,
  kPhi3 = 11,
  kMinistral3 = 12,
  kGemma3 = 16,
  kGptOss = 17,
};

// Sizes of the model that transformers takes where a config.json names none; 0: it must.
struct FamilySizes {
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;
  int64_t query_heads = 0;
  int64_t kv_heads = 0;
  int64_t max_positions = 0;
};

// What transformers takes for keys that are not there.
struct FamilyDefaults {
  int64_t head_dim = 0;   // 0: the hidden size over the query heads
  bool kv_heads = false;  // as many as query heads; else the key must be there
  bool tie_word_embeddings = false;
  double rms_norm_epsilon = 1e-6;
  RopeOfFamily rope;
  FamilySizes sizes;
};

struct Family {
  const char* architecture;  // as in config.json: "LlamaForCausalLM"
  const char* model_type;    // "llama"
  ModelFamily family;
  const TensorNames* names;
  FamilyDefaults defaults;
  // For people.
  const char* title;    // "Llama 3, 3.1, 3.2"
  const char* limits;   // what of them is served
  const char* was_run;  // real weights that were run; empty: none
  // Of the object of config.json that describes the text part of the model; none: all of it does.
  const char* text_key = nullptr;
};

std::span<const Family> ModelFamilies();
// Null if there is none.
const Family* FindFamily(std::string_view architecture);
const Family* FindFamilyOfType(std::string_view model_type);

// As transformers calls the type: "llama".
std::string_view ModelFamilyName(ModelFamily family);
// As in config.json: "LlamaForCausalLM".
std::string_view ModelArchitecture(ModelFamily family);

// All of them, for messages: "LlamaForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM".
std::string SupportedArchitectures();

// The table of families in Markdown, as docs/use/serving.md has it; and a list of them in a few
// words, as README.md has it.
std::string ModelFamiliesMarkdown();
std::string ModelFamiliesInWords();

}  // namespace retroinfer
