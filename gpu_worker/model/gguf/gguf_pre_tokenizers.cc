// The patterns are those of the models' own tokenizer.json, not the nearly equal ones that
// llama.cpp runs in their place: a text gets the ids that the model was trained with.
#include "gpu_worker/model/gguf/gguf_pre_tokenizers.h"

#include <algorithm>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace retroinfer {
namespace {

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDigit = R"(\p{N})";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// What llama.cpp does where a file says "default".
constexpr std::string_view kDefaultPunctuation = R"([\p{P}\$\+<=>\^~\|]+)";
constexpr std::string_view kDefaultNumbers = R"(\p{N}+)";
constexpr std::string_view kDefaultDigits = "[0-9][0-9][0-9]";

struct Entry {
  std::string_view name;
  GgufPreTokenizer (*make)();
};

GgufPreTokenizer Gpt2() { return {.patterns = {kGpt2}}; }
GgufPreTokenizer DigitsThenGpt2() { return {.patterns = {kDigit, kGpt2}}; }
GgufPreTokenizer Qwen2() { return {.patterns = {kQwen2}, .nfc = true}; }
GgufPreTokenizer Llama3() {
  return {.patterns = {kLlama3}, .ignore_merges = true, .add_bos = true};
}
GgufPreTokenizer Llama3Merged() { return {.patterns = {kLlama3}}; }
GgufPreTokenizer Tekken() {
  return {.patterns = {kTekken}, .ignore_merges = true, .add_bos = true};
}
GgufPreTokenizer Default() {
  return {.patterns = {kDefaultPunctuation, kGpt2, kDefaultNumbers, kDefaultDigits}};
}

constexpr Entry kEntries[] = {
    {"default", Default},        {"gpt-2", Gpt2},
    {"smollm", DigitsThenGpt2},  {"starcoder", DigitsThenGpt2},
    {"refact", DigitsThenGpt2},  {"qwen2", Qwen2},
    {"deepseek-r1-qwen", Qwen2}, {"llama-bpe", Llama3},
    {"llama3", Llama3},          {"llama-v3", Llama3},
    {"smaug-bpe", Llama3Merged}, {"dbrx", Llama3Merged},
    {"tekken", Tekken},
};

}  // namespace

absl::StatusOr<GgufPreTokenizer> GgufPreTokenizerNamed(std::string_view name) {
  std::string known;
  for (const Entry& entry : kEntries) {
    if (entry.name == name) return entry.make();
    absl::StrAppend(&known, known.empty() ? "" : ", ", std::string(entry.name));
  }
  return absl::UnimplementedError(absl::StrCat(
      "\"", absl::CHexEscape(std::string(name.substr(0, 80))), "\" is not supported; known are ",
      known, ": take the Hugging Face folder of the model"));
}

}  // namespace retroinfer
