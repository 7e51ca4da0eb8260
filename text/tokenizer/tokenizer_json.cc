#include "text/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "text/tokenizer/regex_syntax.h"
#include "text/tokenizer/space_marks_json.h"
#include "text/tokenizer/tokenizer_part.h"

namespace retroinfer {
namespace {

constexpr size_t kTokenBytesMax = 4096;  // the longest in use have a few hundred
constexpr size_t kAddedTokenBytesMax = 1024;
constexpr size_t kSplitsMax = 16;

// The pattern of ByteLevel with use_regex, of GPT-2.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

absl::StatusOr<int32_t> IdOf(const common::JsonReader& value) {
  ASSIGN_OR_RETURN(const int64_t id, value.AsInt(INT32_MIN, INT32_MAX));
  return static_cast<int32_t>(id);
}

absl::StatusOr<std::string> Token(const common::JsonReader& value, std::string_view token,
                                  size_t bytes_max) {
  if (token.empty()) return value.Error("a token is empty");
  if (token.size() > bytes_max) {
    return value.Error(
        absl::StrCat("a token has ", token.size(), " bytes, at most ", bytes_max, " are possible"));
  }
  return std::string(token);
}

// ---- added_tokens ----

absl::StatusOr<AddedTokenSpec> ReadAddedToken(const common::JsonReader& value) {
  RETURN_IF_ERROR(value.AllowOnly(
      {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
  AddedTokenSpec token;
  ASSIGN_OR_RETURN(const common::JsonReader id, value.Required("id"));
  ASSIGN_OR_RETURN(token.id, IdOf(id));
  ASSIGN_OR_RETURN(const common::JsonReader content, value.Required("content"));
  ASSIGN_OR_RETURN(const std::string_view text, content.AsString());
  ASSIGN_OR_RETURN(token.content, Token(content, text, kAddedTokenBytesMax));
  ASSIGN_OR_RETURN(token.special, value.BoolOr("special", false));
  ASSIGN_OR_RETURN(token.single_word, value.BoolOr("single_word", false));
  ASSIGN_OR_RETURN(token.lstrip, value.BoolOr("lstrip", false));
  ASSIGN_OR_RETURN(token.rstrip, value.BoolOr("rstrip", false));
  ASSIGN_OR_RETURN(token.normalized, value.BoolOr("normalized", !token.special));
  return token;
}

absl::Status ReadAddedTokens(const common::JsonReader& root, TokenizerSpec& spec) {
  ASSIGN_OR_RETURN(const std::optional<common::JsonReader> tokens, root.Optional("added_tokens"));
  if (!tokens.has_value()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const common::JsonElements array, tokens->AsArray());
  for (const common::JsonValue element : array) {
    const common::JsonReader value =
        tokens->Child(element, absl::StrCat("[", spec.added_tokens.size(), "]"));
    ASSIGN_OR_RETURN(AddedTokenSpec token, ReadAddedToken(value));
    spec.added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

// ---- normalizer ----

absl::Status ReadNormalizer(const common::JsonReader& value, TokenizerSpec& spec) {
  ASSIGN_OR_RETURN(const std::string_view type, TypeOfPart(value));
  if (type == "Prepend" || type == "Replace") return ReadSpaceNormalizer(value, spec.marks);
  if (type == "NFC") {
    RETURN_IF_ERROR(value.AllowOnly({"type"}));
    spec.nfc = true;
    return absl::OkStatus();
  }
  if (type != "Sequence") return UnknownType(value, type);
  RETURN_IF_ERROR(value.AllowOnly({"type", "normalizers"}));
  ASSIGN_OR_RETURN(const common::JsonReader children, value.Required("normalizers"));
  ASSIGN_OR_RETURN(const common::JsonElements array, children.AsArray());
  for (const common::JsonValue element : array) {
    RETURN_IF_ERROR(ReadNormalizer(children.Child(element, "[]"), spec));
  }
  return absl::OkStatus();
}

// ---- pre_tokenizer ----

class PreTokenizerReader {
 public:
  explicit PreTokenizerReader(TokenizerSpec& spec) : spec_(spec) {}

  absl::Status Read(const common::JsonReader& value) {
    ASSIGN_OR_RETURN(const std::string_view type, TypeOfPart(value));
    if (has_byte_level_) return value.Error("a pre-tokenizer after ByteLevel is not supported");
    if (has_metaspace_) return value.Error("a pre-tokenizer after Metaspace is not supported");
    if (spec_.splits.size() >= kSplitsMax) return value.Error("too many pre-tokenizers");
    if (type == "Sequence") return ReadSequence(value);
    if (type == "Split") return ReadSplit(value);
    if (type == "Digits") return ReadDigits(value);
    if (type == "ByteLevel") return ReadByteLevel(value);
    if (type == "Metaspace") {
      has_metaspace_ = true;
      return ReadMetaspace(value, spec_);
    }
    return UnknownType(value, type);
  }

  bool has_byte_level() const { return has_byte_level_; }

 private:
  absl::Status ReadSequence(const common::JsonReader& value) {
    RETURN_IF_ERROR(value.AllowOnly({"type", "pretokenizers"}));
    ASSIGN_OR_RETURN(const common::JsonReader children, value.Required("pretokenizers"));
    ASSIGN_OR_RETURN(const common::JsonElements array, children.AsArray());
    for (const common::JsonValue element : array) {
      RETURN_IF_ERROR(Read(children.Child(element, "[]")));
    }
    return absl::OkStatus();
  }

  absl::Status ReadSplit(const common::JsonReader& value) {
    RETURN_IF_ERROR(value.AllowOnly({"type", "pattern", "behavior", "invert"}));
    SplitSpec split;
    literal_.clear();
    ASSIGN_OR_RETURN(const common::JsonReader pattern, value.Required("pattern"));
    ASSIGN_OR_RETURN(split.pattern, ReadPattern(pattern));
    ASSIGN_OR_RETURN(const common::JsonReader behavior, value.Required("behavior"));
    ASSIGN_OR_RETURN(const std::string_view name, behavior.AsString());
    ASSIGN_OR_RETURN(const bool invert, value.BoolOr("invert", false));
    // Gemma cuts normalised text behind spaces, of which there are none.
    if (literal_ == " " && spec_.marks.normalizes_spaces) return absl::OkStatus();
    if (name == "Removed") {
      (invert ? split.keep_gaps : split.keep_matches) = false;
    } else if (name != "Isolated") {
      return behavior.Error("only Isolated and Removed are supported");
    }
    spec_.splits.push_back(std::move(split));
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> ReadPattern(const common::JsonReader& pattern) {
    RETURN_IF_ERROR(pattern.AllowOnly({"Regex", "String"}));
    ASSIGN_OR_RETURN(const std::optional<common::JsonReader> literal, pattern.Optional("String"));
    if (literal.has_value()) {
      ASSIGN_OR_RETURN(const std::string_view text, literal->AsString());
      ASSIGN_OR_RETURN(literal_, Token(*literal, text, kAddedTokenBytesMax));
      return EscapeLiteral(literal_);
    }
    ASSIGN_OR_RETURN(const common::JsonReader regex, pattern.Required("Regex"));
    ASSIGN_OR_RETURN(const std::string_view text, regex.AsString());
    absl::StatusOr<std::string> translated = TranslateRegex(text);
    if (!translated.ok()) return regex.Error(std::string(translated.status().message()));
    return translated;
  }

  absl::Status ReadDigits(const common::JsonReader& value) {
    RETURN_IF_ERROR(value.AllowOnly({"type", "individual_digits"}));
    ASSIGN_OR_RETURN(const bool individual, value.BoolOr("individual_digits", false));
    ASSIGN_OR_RETURN(std::string pattern, TranslateRegex(individual ? R"(\p{N})" : R"(\p{N}+)"));
    spec_.splits.push_back({.pattern = std::move(pattern)});
    return absl::OkStatus();
  }

  absl::Status ReadByteLevel(const common::JsonReader& value) {
    RETURN_IF_ERROR(value.AllowOnly({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    ASSIGN_OR_RETURN(const bool add_prefix_space, value.BoolOr("add_prefix_space", true));
    if (add_prefix_space) return value.Error("add_prefix_space is not supported");
    ASSIGN_OR_RETURN(const bool use_regex, value.BoolOr("use_regex", true));
    if (use_regex) {
      ASSIGN_OR_RETURN(std::string pattern, TranslateRegex(kGpt2Pattern));
      spec_.splits.push_back({.pattern = std::move(pattern)});
    }
    has_byte_level_ = true;
    return absl::OkStatus();
  }

  TokenizerSpec& spec_;
  std::string literal_;  // of the pattern that was read last, if it is no expression
  bool has_byte_level_ = false;
  bool has_metaspace_ = false;
};

// ---- post_processor ----

absl::Status CheckByteLevel(const common::JsonReader& value) {
  return value.AllowOnly({"type", "add_prefix_space", "trim_offsets", "use_regex"});
}

// The ids of one special token of a template.
absl::StatusOr<std::vector<int32_t>> ReadTemplateIds(const common::JsonReader& special_tokens,
                                                     const common::JsonReader& item) {
  ASSIGN_OR_RETURN(const common::JsonReader name, item.Required("id"));
  ASSIGN_OR_RETURN(const std::string_view key, name.AsString());
  ASSIGN_OR_RETURN(const common::JsonReader token, special_tokens.Required(key));
  ASSIGN_OR_RETURN(const common::JsonReader ids, token.Required("ids"));
  ASSIGN_OR_RETURN(const common::JsonElements array, ids.AsArray());
  std::vector<int32_t> result;
  for (const common::JsonValue element : array) {
    ASSIGN_OR_RETURN(const int32_t id, IdOf(ids.Child(element, "[]")));
    result.push_back(id);
  }
  return result;
}

absl::Status ReadTemplate(const common::JsonReader& value, TokenizerSpec& spec) {
  RETURN_IF_ERROR(value.AllowOnly({"type", "single", "pair", "special_tokens"}));
  ASSIGN_OR_RETURN(const common::JsonReader special_tokens, value.Required("special_tokens"));
  ASSIGN_OR_RETURN(const common::JsonReader single, value.Required("single"));
  ASSIGN_OR_RETURN(const common::JsonElements array, single.AsArray());
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
  bool text_seen = false;
  for (const common::JsonValue element : array) {
    const common::JsonReader item = single.Child(element, "[]");
    RETURN_IF_ERROR(item.AllowOnly({"Sequence", "SpecialToken"}));
    ASSIGN_OR_RETURN(const std::optional<common::JsonReader> special,
                     item.Optional("SpecialToken"));
    if (special.has_value()) {
      ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ReadTemplateIds(special_tokens, *special));
      auto& side = text_seen ? suffix : prefix;
      side.insert(side.end(), ids.begin(), ids.end());
      continue;
    }
    ASSIGN_OR_RETURN(const common::JsonReader sequence, item.Required("Sequence"));
    ASSIGN_OR_RETURN(const common::JsonReader name, sequence.Required("id"));
    ASSIGN_OR_RETURN(const std::string_view id, name.AsString());
    if (text_seen || id != "A") return item.Error("needs to be the sequence A, once");
    text_seen = true;
  }
  if (!text_seen) return single.Error("the sequence A is missing");
  // A second template wraps what the first one made.
  spec.prefix.insert(spec.prefix.begin(), prefix.begin(), prefix.end());
  spec.suffix.insert(spec.suffix.end(), suffix.begin(), suffix.end());
  return absl::OkStatus();
}

absl::Status ReadPostProcessor(const common::JsonReader& value, TokenizerSpec& spec) {
  ASSIGN_OR_RETURN(const std::string_view type, TypeOfPart(value));
  if (type == "ByteLevel") return CheckByteLevel(value);  // concerns offsets only
  if (type == "TemplateProcessing") return ReadTemplate(value, spec);
  if (type != "Sequence") return UnknownType(value, type);
  RETURN_IF_ERROR(value.AllowOnly({"type", "processors"}));
  ASSIGN_OR_RETURN(const common::JsonReader children, value.Required("processors"));
  ASSIGN_OR_RETURN(const common::JsonElements array, children.AsArray());
  for (const common::JsonValue element : array) {
    RETURN_IF_ERROR(ReadPostProcessor(children.Child(element, "[]"), spec));
  }
  return absl::OkStatus();
}

// ---- decoder ----

absl::Status CheckByteLevelDecoder(const common::JsonReader& value) {
  ASSIGN_OR_RETURN(const std::string_view type, TypeOfPart(value));
  if (type == "ByteLevel") return CheckByteLevel(value);
  return UnknownType(value, type);
}

// ---- model ----

absl::StatusOr<MergeSpec> ReadMerge(const common::JsonReader& value) {
  if (value.IsString()) {
    ASSIGN_OR_RETURN(const std::string_view text, value.AsString());
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
      return value.Error("needs to be two tokens with a space between them");
    }
    return MergeSpec{std::string(text.substr(0, space)), std::string(text.substr(space + 1))};
  }
  ASSIGN_OR_RETURN(const common::JsonElements pair, value.AsArray());
  if (value.Size() != 2) return value.Error("needs to be two tokens");
  auto item = pair.begin();
  ASSIGN_OR_RETURN(const std::string_view left, value.Child(*item, "0").AsString());
  ASSIGN_OR_RETURN(const std::string_view right, value.Child(*++item, "1").AsString());
  return MergeSpec{std::string(left), std::string(right)};
}

absl::Status ReadVocabulary(const common::JsonReader& vocabulary, BpeSpec& model) {
  ASSIGN_OR_RETURN(const common::JsonMembers members, vocabulary.AsObject());
  for (const common::JsonMember& member : members) {
    ASSIGN_OR_RETURN(std::string token, Token(vocabulary, member.key, kTokenBytesMax));
    const int64_t id = member.value.Int().value_or(-1);
    if (id < 0 || id > INT32_MAX) {
      return vocabulary.Child(member.value, member.key).Error("needs to be an id of a token");
    }
    model.vocabulary.push_back({std::move(token), static_cast<int32_t>(id)});
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const common::JsonReader& merges, BpeSpec& model) {
  ASSIGN_OR_RETURN(const common::JsonElements array, merges.AsArray());
  for (const common::JsonValue element : array) {
    // A place for each of 280,000 merges would cost more than the rest: it is made for errors only.
    absl::StatusOr<MergeSpec> merge = ReadMerge(merges.Bare(element));
    if (!merge.ok()) {
      return merges.Error(absl::StrCat("merge ", model.merges.size(), std::string(": "),
                                       std::string(merge.status().message())));
    }
    model.merges.push_back(*std::move(merge));
  }
  return absl::OkStatus();
}

// A setting that must have no effect: absent, null, "" or false.
absl::Status CheckUnset(const common::JsonReader& model, std::string_view key) {
  ASSIGN_OR_RETURN(const std::optional<common::JsonReader> value, model.Optional(key));
  if (!value.has_value()) return absl::OkStatus();
  if (const auto text = value->AsString(); text.ok() && text->empty()) return absl::OkStatus();
  if (const auto flag = value->AsBool(); flag.ok() && !*flag) return absl::OkStatus();
  return value->Error("is not supported");
}

absl::Status ReadModel(const common::JsonReader& model, BpeSpec& spec) {
  ASSIGN_OR_RETURN(const std::optional<common::JsonReader> type, model.Optional("type"));
  if (type.has_value()) {  // old files leave it out
    ASSIGN_OR_RETURN(const std::string_view name, type->AsString());
    if (name != "BPE") return UnknownType(model, name);
  }
  RETURN_IF_ERROR(model.AllowOnly({"type", "dropout", "unk_token", "continuing_subword_prefix",
                                   "end_of_word_suffix", "fuse_unk", "byte_fallback",
                                   "ignore_merges", "vocab", "merges"}));
  for (const std::string_view key :
       {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    RETURN_IF_ERROR(CheckUnset(model, key));
  }
  ASSIGN_OR_RETURN(spec.byte_fallback, model.BoolOr("byte_fallback", false));
  ASSIGN_OR_RETURN(spec.ignore_merges, model.BoolOr("ignore_merges", false));
  ASSIGN_OR_RETURN(const std::optional<common::JsonReader> unknown, model.Optional("unk_token"));
  if (unknown.has_value()) {
    ASSIGN_OR_RETURN(const std::string_view token, unknown->AsString());
    spec.unknown_token = std::string(token);
  }
  ASSIGN_OR_RETURN(spec.fuse_unknown, model.BoolOr("fuse_unk", false));
  ASSIGN_OR_RETURN(const common::JsonReader vocabulary, model.Required("vocab"));
  RETURN_IF_ERROR(ReadVocabulary(vocabulary, spec));
  ASSIGN_OR_RETURN(const common::JsonReader merges, model.Required("merges"));
  return ReadMerges(merges, spec);
}

// Bytes are written in the byte alphabet by ByteLevel, or characters as they are.
absl::Status ReadPreTokenizer(const common::JsonReader& root, TokenizerSpec& spec) {
  if (spec.model.byte_fallback) {
    ASSIGN_OR_RETURN(const std::optional<common::JsonReader> value, root.Optional("pre_tokenizer"));
    PreTokenizerReader reader(spec);
    if (value.has_value()) RETURN_IF_ERROR(reader.Read(*value));
    if (!reader.has_byte_level()) return absl::OkStatus();
    return value->Error("ByteLevel and byte_fallback together are not supported");
  }
  const SpaceMarkSpec& marks = spec.marks;
  if (marks.normalizes_front || marks.normalizes_spaces) {
    return root.Error("normalizer: U+2581 for spaces is supported with byte_fallback only");
  }
  ASSIGN_OR_RETURN(const common::JsonReader value, root.Required("pre_tokenizer"));
  PreTokenizerReader reader(spec);
  RETURN_IF_ERROR(reader.Read(value));
  if (reader.has_byte_level()) return absl::OkStatus();
  return value.Error("needs ByteLevel: BPE over bytes and BPE with byte_fallback are supported");
}

}  // namespace

absl::StatusOr<TokenizerSpec> ReadTokenizerJson(const common::JsonReader& root) {
  RETURN_IF_ERROR(root.AllowOnly({"version", "truncation", "padding", "added_tokens", "normalizer",
                                  "pre_tokenizer", "post_processor", "decoder", "model"}));
  TokenizerSpec spec;
  ASSIGN_OR_RETURN(const common::JsonReader model, root.Required("model"));
  RETURN_IF_ERROR(ReadModel(model, spec.model));
  RETURN_IF_ERROR(ReadAddedTokens(root, spec));
  ASSIGN_OR_RETURN(const std::optional<common::JsonReader> normalizer, root.Optional("normalizer"));
  if (normalizer.has_value()) RETURN_IF_ERROR(ReadNormalizer(*normalizer, spec));
  RETURN_IF_ERROR(ReadPreTokenizer(root, spec));
  ASSIGN_OR_RETURN(const std::optional<common::JsonReader> post_processor,
                   root.Optional("post_processor"));
  if (post_processor.has_value()) RETURN_IF_ERROR(ReadPostProcessor(*post_processor, spec));
  ASSIGN_OR_RETURN(const common::JsonReader decoder, root.Required("decoder"));
  RETURN_IF_ERROR(spec.model.byte_fallback ? ReadFallbackDecoder(decoder, spec.marks)
                                           : CheckByteLevelDecoder(decoder));
  return spec;
}

}  // namespace retroinfer
