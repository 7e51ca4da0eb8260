#include "gpu_worker/model/gguf/gguf_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/gguf/gguf_pre_tokenizers.h"
#include "text/tokenizer/regex_syntax.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer {
namespace {

constexpr char kModel[] = "tokenizer.ggml.model";
constexpr char kPre[] = "tokenizer.ggml.pre";
constexpr char kTokens[] = "tokenizer.ggml.tokens";
constexpr char kTypes[] = "tokenizer.ggml.token_type";
constexpr char kMerges[] = "tokenizer.ggml.merges";
constexpr char kTemplate[] = "tokenizer.chat_template";
constexpr size_t kMaxNameBytes = 256;
constexpr size_t kMaxTokens = size_t{1} << 22;
constexpr size_t kMaxTokenBytes = 4096;
constexpr size_t kMaxMergeBytes = 2 * kMaxTokenBytes + 1;
constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
constexpr size_t kMaxTemplates = 64;

enum TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
};

// Tokens of Qwen that converters take for control tokens because of how they look, and that its
// tokenizer.json calls not special.
constexpr std::string_view kNotSpecial[] = {
    "<tool_call>",    "</tool_call>", "<tool_response>", "</tool_response>",
    "<think>",        "</think>",     "<|fim_prefix|>",  "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>",  "<|repo_name|>",   "<|file_sep|>",
};

bool IsSpecial(int64_t type, std::string_view text) {
  return type != kUserDefined &&
         std::find(std::begin(kNotSpecial), std::end(kNotSpecial), text) == std::end(kNotSpecial);
}

// Reads the keys of one file into a spec.
class SpecReader {
 public:
  explicit SpecReader(const GgufMetadata& metadata) : metadata_(metadata) {}

  absl::StatusOr<TokenizerSpec> Read();

 private:
  absl::Status CheckModel() const;
  absl::Status ReadTokens();
  absl::Status ReadMerges();
  // Patterns, normalisation, and what comes before and after a text.
  absl::Status ReadSettings();
  absl::Status ReadEnd(const char* flag, const char* id_key, bool absent,
                       std::vector<int32_t>& ids) const;

  const GgufMetadata& metadata_;
  TokenizerSpec spec_;
  int64_t num_tokens_ = 0;
};

absl::Status SpecReader::CheckModel() const {
  ASSIGN_OR_RETURN(const std::string_view model, metadata_.String(kModel, kMaxNameBytes));
  if (model == "gpt2") return absl::OkStatus();
  const char* const what = model == "llama"  ? "SentencePiece, "
                           : model == "bert" ? "WordPiece, "
                           : model == "t5"   ? "SentencePiece (Unigram), "
                                             : "";
  return metadata_.Unsupported(
      kModel, absl::StrCat("\"", std::string(model), "\" (", what,
                           "as older Llamas and Mistrals have it) is not supported; gpt2 "
                           "(byte-level BPE, as Llama 3 and Qwen have it) is"));
}

absl::Status SpecReader::ReadTokens() {
  ASSIGN_OR_RETURN(const auto tokens, metadata_.Strings(kTokens, kMaxTokens));
  num_tokens_ = static_cast<int64_t>(tokens.size());
  ASSIGN_OR_RETURN(const auto types, metadata_.Ints(kTypes, kMaxTokens));
  if (types.size() != tokens.size()) {
    return metadata_.Error(
        kTypes, absl::StrCat("has ", types.size(), " entries for ", tokens.size(), " tokens"));
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if (types[i] == kUnused) continue;
    if (types[i] < kNormal || types[i] > kUnused) {
      return metadata_.Error(kTypes, absl::StrCat("token ", id, " has type ", types[i],
                                                  ", which byte-level BPE does not have"));
    }
    if (tokens[i].empty() || tokens[i].size() > kMaxTokenBytes || !ValidateUtf8(tokens[i]).ok()) {
      return metadata_.Error(
          kTokens, absl::StrCat("token ", id, " has ", tokens[i].size(), " bytes; needs 1 to ",
                                kMaxTokenBytes, " of UTF-8"));
    }
    spec_.model.vocabulary.push_back({std::string(tokens[i]), id});
    if (types[i] == kNormal) continue;
    spec_.added_tokens.push_back(
        {.id = id, .content = std::string(tokens[i]), .special = IsSpecial(types[i], tokens[i])});
  }
  return absl::OkStatus();
}

absl::Status SpecReader::ReadMerges() {
  ASSIGN_OR_RETURN(const auto merges, metadata_.Strings(kMerges, kMaxTokens));
  spec_.model.merges.reserve(merges.size());
  for (const std::string_view merge : merges) {
    const size_t space = merge.find(' ');
    if (merge.size() > kMaxMergeBytes || space == std::string_view::npos || space == 0 ||
        space + 1 == merge.size() || merge.find(' ', space + 1) != std::string_view::npos ||
        !ValidateUtf8(merge).ok()) {
      return metadata_.Error(kMerges, absl::StrCat("merge ", spec_.model.merges.size(),
                                                   " needs to be two tokens with a space between"));
    }
    spec_.model.merges.push_back(
        {std::string(merge.substr(0, space)), std::string(merge.substr(space + 1))});
  }
  return absl::OkStatus();
}

absl::Status SpecReader::ReadEnd(const char* flag, const char* id_key, bool absent,
                                 std::vector<int32_t>& ids) const {
  ASSIGN_OR_RETURN(const bool is_added, metadata_.BoolOr(flag, absent));
  if (!is_added) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int64_t id, metadata_.Int(id_key, 0, num_tokens_ - 1));
  ids.push_back(static_cast<int32_t>(id));
  return absl::OkStatus();
}

absl::Status SpecReader::ReadSettings() {
  if (!metadata_.Has(kPre)) {
    return metadata_.Error(kPre,
                           "is missing, as in files from before May 2024: how texts are cut is not "
                           "known; get the file again, or the Hugging Face folder of the model");
  }
  ASSIGN_OR_RETURN(const std::string_view name, metadata_.String(kPre, kMaxNameBytes));
  const absl::StatusOr<GgufPreTokenizer> pre = GgufPreTokenizerNamed(name);
  if (!pre.ok()) return metadata_.Unsupported(kPre, std::string(pre.status().message()));
  for (const std::string_view pattern : pre->patterns) {
    ASSIGN_OR_RETURN(std::string translated, TranslateRegex(pattern));
    spec_.splits.push_back({.pattern = std::move(translated)});
  }
  spec_.nfc = pre->nfc;
  spec_.model.ignore_merges = pre->ignore_merges;
  constexpr char kSpace[] = "tokenizer.ggml.add_space_prefix";
  ASSIGN_OR_RETURN(const bool adds_space, metadata_.BoolOr(kSpace, false));
  if (adds_space) return metadata_.Unsupported(kSpace, "is not supported");
  RETURN_IF_ERROR(ReadEnd("tokenizer.ggml.add_bos_token", "tokenizer.ggml.bos_token_id",
                          pre->add_bos, spec_.prefix));
  return ReadEnd("tokenizer.ggml.add_eos_token", "tokenizer.ggml.eos_token_id", false,
                 spec_.suffix);
}

absl::StatusOr<TokenizerSpec> SpecReader::Read() {
  RETURN_IF_ERROR(CheckModel());
  RETURN_IF_ERROR(ReadTokens());
  RETURN_IF_ERROR(ReadMerges());
  RETURN_IF_ERROR(ReadSettings());
  return std::move(spec_);
}

// The key of a special token's id, and the name that templates know the token by.
struct SpecialName {
  const char* key;
  const char* name;
};
constexpr SpecialName kSpecialNames[] = {
    {"bos", "bos_token"},       {"eos", "eos_token"}, {"unknown", "unk_token"},
    {"seperator", "sep_token"},  // so the format spells it
    {"padding", "pad_token"},   {"cls", "cls_token"}, {"mask", "mask_token"},
};

// Others than the default, by name: the one for requests with tools is taken.
absl::Status ReadToolTemplate(const GgufMetadata& metadata, TokenizerConfig& config) {
  constexpr char kNames[] = "tokenizer.chat_templates";
  if (!metadata.Has(kNames)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto names, metadata.Strings(kNames, kMaxTemplates));
  if (std::find(names.begin(), names.end(), "tool_use") == names.end()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string_view text,
                   metadata.String(absl::StrCat(kTemplate, ".", "tool_use"), kMaxTemplateBytes));
  config.tool_template = std::string(text);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSpec> ReadGgufTokenizerSpec(const GgufFiles& files) {
  return SpecReader(files.metadata()).Read();
}

absl::StatusOr<TokenizerConfig> ReadGgufTokenizerConfig(const GgufFiles& files) {
  const GgufMetadata& metadata = files.metadata();
  TokenizerConfig config;
  ASSIGN_OR_RETURN(const auto tokens, metadata.Strings(kTokens, kMaxTokens));
  for (const SpecialName& special : kSpecialNames) {
    const std::string key = absl::StrCat("tokenizer.ggml.", special.key, "_token_id");
    if (!metadata.Has(key)) continue;
    ASSIGN_OR_RETURN(const int64_t id,
                     metadata.Int(key, 0, static_cast<int64_t>(tokens.size()) - 1));
    const std::string text(tokens[static_cast<size_t>(id)]);
    RETURN_IF_ERROR(ValidateUtf8(text));
    config.special_tokens.emplace_back(special.name, text);
    if (special.key == std::string_view("bos")) config.bos_token = text;
    if (special.key == std::string_view("eos")) config.eos_token = text;
  }
  if (metadata.Has(kTemplate)) {
    ASSIGN_OR_RETURN(const std::string_view text, metadata.String(kTemplate, kMaxTemplateBytes));
    config.chat_template = std::string(text);
    config.template_source = std::filesystem::path(files.path()).filename().string();
  }
  RETURN_IF_ERROR(ReadToolTemplate(metadata, config));
  return config;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> ReadGgufTokenizer(const GgufFiles& files) {
  ASSIGN_OR_RETURN(const TokenizerSpec spec, ReadGgufTokenizerSpec(files));
  ASSIGN_OR_RETURN(TokenizerConfig config, ReadGgufTokenizerConfig(files));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(spec, std::move(config));
  if (!tokenizer.ok()) {
    return absl::Status(
        tokenizer.status().code(),
        absl::StrCat(files.path(), ": ", std::string(tokenizer.status().message())));
  }
  return tokenizer;
}

}  // namespace retroinfer
