#include "gpu_worker/model/model_families.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/log/check.h"

namespace retroinfer {
namespace {

constexpr FamilyDefaults kOfLlama = {.kv_heads = true};
constexpr FamilyDefaults kCommon;
constexpr FamilyDefaults kLargeHeads = {.head_dim = 128};
constexpr FamilyDefaults kOfSmolLm3 = {.tie_word_embeddings = true, .rope = {.theta = 2e6}};
constexpr FamilyDefaults kOfPhi3 = {
    .kv_heads = true, .rms_norm_epsilon = 1e-5, .rope = {.may_be_partial = true, .is_long = true}};
constexpr FamilyDefaults kOfMinistral3 = {
    .head_dim = 128, .rms_norm_epsilon = 1e-5, .rope = {.may_grow = true}};

constexpr FamilyDefaults kOfGptOss = {
    .head_dim = 64, .rms_norm_epsilon = 1e-5, .rope = {.theta = 150'000}};
constexpr FamilyDefaults kOfGemma3 = {.head_dim = 256,
                                      .tie_word_embeddings = true,
                                      .sizes = {.num_layers = 26,
                                                .hidden_size = 2304,
                                                .intermediate_size = 9216,
                                                .vocab_size = 262'208,
                                                .query_heads = 8,
                                                .kv_heads = 4,
                                                .max_positions = 131'072}};

constexpr FamilyDefaults kOfMixtral = {.rope = {.theta = 1e6}};

constexpr Family kFamilies[] = {
    {"LlamaForCausalLM", "llama", ModelFamily::kLlama, &kLlamaNames, kOfLlama, "Llama 3, 3.1, 3.2",
     "with llama3 RoPE scaling", "SmolLM2-135M"},
    {"Qwen2ForCausalLM", "qwen2", ModelFamily::kQwen2, &kLlamaNames, kCommon, "Qwen2.5",
     "with [YaRN to 128K](#longer-contexts-by-yarn)", "Qwen2.5-Coder-0.5B-Instruct"},
    {"Qwen3ForCausalLM", "qwen3", ModelFamily::kQwen3, &kLlamaNames, kLargeHeads, "Qwen3, dense",
     "with YaRN", ""},
    {"MistralForCausalLM", "mistral", ModelFamily::kMistral, &kLlamaNames, kCommon,
     "Mistral 7B v0.3, Nemo, Small, Devstral", "without a sliding window (null)", ""},
    {"Ministral3ForCausalLM", "ministral3", ModelFamily::kMinistral3, &kLlamaNames, kOfMinistral3,
     "Ministral 3, its language model", "as a folder of its own, without pictures", ""},
    {"SeedOssForCausalLM", "seed_oss", ModelFamily::kSeedOss, &kLlamaNames, kLargeHeads, "Seed-OSS",
     "", ""},
    {"SmolLM3ForCausalLM", "smollm3", ModelFamily::kSmolLm3, &kLlamaNames, kOfSmolLm3, "SmolLM3",
     "layers without RoPE included", ""},
    {"GraniteForCausalLM", "granite", ModelFamily::kGranite, &kLlamaNames, kOfLlama,
     "Granite 3.0 to 3.3, dense", "", ""},
    {"Phi3ForCausalLM", "phi3", ModelFamily::kPhi3, &kPhi3Names, kOfPhi3,
     "Phi-3, Phi-3.5, Phi-4, Phi-4-mini",
     "LongRoPE [by the length that is served](#phi-3-and-phi-4); without a sliding "
     "window "
     "that is shorter than the context",
     ""},
    {"Qwen3MoeForCausalLM", "qwen3_moe", ModelFamily::kQwen3Moe, &kLlamaNames, kCommon,
     "Qwen3 of experts: 30B-A3B, Coder", "with experts in each layer", ""},
    {"MixtralForCausalLM", "mixtral", ModelFamily::kMixtral, &kMixtralNames, kOfMixtral, "Mixtral",
     "without a sliding window", ""},
    {"Gemma3ForCausalLM", "gemma3_text", ModelFamily::kGemma3, &kGemma3Names, kOfGemma3,
     "Gemma 3 1B", "with its sliding windows; [not with policy streaming](#gemma-3)", ""},
    {"Gemma3ForConditionalGeneration", "gemma3", ModelFamily::kGemma3, &kGemma3TextNames, kOfGemma3,
     "Gemma 3 4B, 12B, 27B", "text, without pictures; as Gemma 3 1B", "", "text_config"},
    {"GptOssForCausalLM", "gpt_oss", ModelFamily::kGptOss, &kGptOssNames, kOfGptOss,
     "gpt-oss 20B, 120B",
     "experts in MXFP4, which [become bf16](#gpt-oss); not with policy streaming", ""},
};

}  // namespace

std::span<const Family> ModelFamilies() { return kFamilies; }

const Family* FindFamily(std::string_view architecture) {
  const auto* const found =
      std::find_if(std::begin(kFamilies), std::end(kFamilies),
                   [&](const Family& family) { return architecture == family.architecture; });
  return found == std::end(kFamilies) ? nullptr : found;
}

const Family* FindFamilyOfType(std::string_view model_type) {
  const auto* const found =
      std::find_if(std::begin(kFamilies), std::end(kFamilies),
                   [&](const Family& family) { return model_type == family.model_type; });
  return found == std::end(kFamilies) ? nullptr : found;
}

std::string_view ModelFamilyName(ModelFamily family) {
  for (const Family& entry : kFamilies) {
    if (entry.family == family) return entry.model_type;
  }
  return "unknown";
}

std::string_view ModelArchitecture(ModelFamily family) {
  for (const Family& entry : kFamilies) {
    if (entry.family == family) return entry.architecture;
  }
  return "unknown";
}

std::string SupportedArchitectures() {
  std::string text;
  for (size_t i = 0; i < std::size(kFamilies); ++i) {
    const char* const between = i == 0 ? "" : i + 1 == std::size(kFamilies) ? " and " : ", ";
    absl::StrAppend(&text, between, kFamilies[i].architecture);
  }
  return text;
}

std::string ModelFamiliesMarkdown() {
  std::string text =
      "| models | architecture | what is served | real weights that were run |\n"
      "|---|---|---|---|\n";
  const auto or_else = [](std::string_view text_of, std::string_view other) {
    return std::string(text_of.empty() ? other : text_of);
  };
  for (const Family& family : kFamilies) {
    absl::StrAppend(&text, "| ", family.title, " | `", family.architecture, "` | ",
                    or_else(family.limits, "all"), " | ", or_else(family.was_run, "none"), " |\n");
  }
  return text;
}

std::string ModelFamiliesInWords() {
  std::string text;
  for (const Family& family : kFamilies) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", family.title, " (`", family.architecture,
                    "`)");
  }
  return text;
}

}  // namespace retroinfer
