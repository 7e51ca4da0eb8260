// The order is Hugging Face's: added tokens that want the raw text are cut out first; what remains
// is normalised; added tokens that want normalised text are cut out of that; what remains is cut
// into pieces by the pre-tokenizer; BPE works on each piece alone. So equal pieces have equal ids,
// and an Encoder looks each piece up among those it has seen in this text.
#include "text/tokenizer/tokenizer.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/json/json_reader.h"
#include "common/status/status_macros.h"
#include "text/tokenizer/missing_tokenizer.h"
#include "text/tokenizer/tokenizer_json.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer {
namespace {

constexpr size_t kTextBytesMax = size_t{512} << 20;
constexpr size_t kCachedPieceBytesMax = 64;
constexpr size_t kCachedPiecesMax = size_t{1} << 18;
constexpr size_t kBytesPerTokenGuess = 4;
// NFC shortens a text to 2/7 at most: U+1FBE U+0308 U+0301, 7 bytes, become U+0390, 2 bytes.
constexpr size_t kNfcRatioMax = 4;
// Pieces of a text between runs of U+2581.
constexpr char kBetweenMarks[] = R"(\x{2581}*+[^\x{2581}]++|\x{2581}++)";

// The tokens to search for in the raw or in the normalised text.
absl::StatusOr<AddedTokenMatcher> MakeMatcher(const TokenizerSpec& spec,
                                              const TextNormalizer& normalizer, bool normalized) {
  std::vector<AddedTokenSpec> tokens;
  absl::flat_hash_set<std::string> contents;
  for (AddedTokenSpec token : spec.added_tokens) {
    if (token.normalized != normalized) continue;
    if (normalized) {
      const SpecialRuns runs(token.content.size(), true);
      std::string content;
      RETURN_IF_ERROR(normalizer.Normalize(token.content, runs, content).status());
      token.content = std::move(content);
    }
    if (!contents.insert(token.content).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "added_tokens: the token \"", absl::CHexEscape(token.content), "\" occurs twice"));
    }
    tokens.push_back(std::move(token));
  }
  return AddedTokenMatcher(std::move(tokens));
}

}  // namespace

// One call of Encode().
class Tokenizer::Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, std::vector<int32_t>& out)
      : tokenizer_(tokenizer), pre_tokenizer_(tokenizer.pre_tokenizer_), out_(out) {}

  absl::Status Run(std::string_view text, const SpecialRuns& special) {
    std::vector<TextSegment> segments;
    tokenizer_.raw_matcher_.Split(text, special, segments);
    for (const TextSegment& segment : segments) {
      if (segment.token_id != TextSegment::kText) {
        out_.push_back(segment.token_id);
        continue;
      }
      const auto begin = static_cast<size_t>(segment.text.data() - text.data());
      RETURN_IF_ERROR(
          EncodeRaw(segment.text, special.Part(begin, begin + segment.text.size()), begin == 0));
    }
    return absl::OkStatus();
  }

 private:
  // `is_first`: nothing is before `text`.
  absl::Status EncodeRaw(std::string_view text, SpecialRuns special, bool is_first) {
    if (tokenizer_.normalizer_.normalizes()) {
      made_texts_.emplace_back();
      ASSIGN_OR_RETURN(special,
                       tokenizer_.normalizer_.Normalize(text, special, made_texts_.back()));
      text = made_texts_.back();
    }
    std::vector<TextSegment> segments;
    tokenizer_.normalized_matcher_.Split(text, special, segments);
    for (const TextSegment& segment : segments) {
      if (segment.token_id != TextSegment::kText) {
        out_.push_back(segment.token_id);
        continue;
      }
      const bool begins_text = is_first && segment.text.data() == text.data();
      ASSIGN_OR_RETURN(const std::vector<std::string_view>* const pieces,
                       pre_tokenizer_.Split(Marked(segment.text, begins_text)));
      for (const std::string_view piece : *pieces) EncodePiece(piece);
    }
    return absl::OkStatus();
  }

  std::string_view Marked(std::string_view text, bool is_first) {
    if (!tokenizer_.normalizer_.marks_spaces()) return text;
    made_texts_.emplace_back();
    tokenizer_.normalizer_.MarkSpaces(text, is_first, made_texts_.back());
    return made_texts_.back();
  }

  void EncodePiece(std::string_view piece) {
    const size_t begin = out_.size();
    if (piece.size() > kCachedPieceBytesMax) {
      tokenizer_.model_.Encode(piece, scratch_, out_);
      return;
    }
    if (const auto seen = cache_.find(piece); seen != cache_.end()) {
      for (size_t i = 0; i < seen->second.count; ++i) {
        const int32_t id = out_[seen->second.begin + i];
        out_.push_back(id);
      }
      return;
    }
    tokenizer_.model_.Encode(piece, scratch_, out_);
    if (cache_.size() < kCachedPiecesMax) {
      cache_.emplace(
          piece, Range{static_cast<uint32_t>(begin), static_cast<uint32_t>(out_.size() - begin)});
    }
  }

  // Where a piece's ids already are in `out_`.
  struct Range {
    uint32_t begin;
    uint32_t count;
  };

  const Tokenizer& tokenizer_;
  PreTokenizer::Run pre_tokenizer_;
  BpeModel::Scratch scratch_;
  std::deque<std::string> made_texts_;  // normalised or marked; the keys of cache_ point into them
  absl::flat_hash_map<std::string_view, Range> cache_;
  std::vector<int32_t>& out_;
};

Tokenizer::Tokenizer(BpeModel model, TextNormalizer normalizer, PreTokenizer pre_tokenizer,
                     AddedTokenMatcher raw_matcher, AddedTokenMatcher normalized_matcher)
    : model_(std::move(model)),
      normalizer_(normalizer),
      pre_tokenizer_(std::move(pre_tokenizer)),
      raw_matcher_(std::move(raw_matcher)),
      normalized_matcher_(std::move(normalized_matcher)),
      token_bytes_(model_.token_bytes()) {}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(
    const std::filesystem::path& model_folder) {
  ASSIGN_OR_RETURN(TokenizerConfig config, ReadTokenizerConfig(model_folder));
  const std::filesystem::path path = model_folder / "tokenizer.json";
  const absl::StatusOr<common::JsonReader> root =
      common::JsonReader::LoadObject(path.string(), path.filename().string(), kTokenizerJson);
  if (absl::IsNotFound(root.status())) return MissingTokenizer(model_folder);
  RETURN_IF_ERROR(root.status());
  ASSIGN_OR_RETURN(const TokenizerSpec spec, ReadTokenizerJson(*root));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Create(spec, std::move(config));
  if (!tokenizer.ok()) {
    return absl::Status(tokenizer.status().code(),
                        absl::StrCat(path.string(), ": ", tokenizer.status().message()));
  }
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(const TokenizerSpec& spec,
                                                             TokenizerConfig config) {
  absl::flat_hash_set<int32_t> special_ids;
  for (const AddedTokenSpec& token : spec.added_tokens) {
    if (token.special) special_ids.insert(token.id);
  }
  ASSIGN_OR_RETURN(BpeModel model, BpeModel::Create(spec.model, special_ids));
  std::vector<SplitSpec> splits = spec.splits;
  // Equal pieces are encoded once.
  const SplitSpec between_marks = {.pattern = kBetweenMarks};
  if (model.may_cut_before_marks()) splits.push_back(between_marks);
  ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, PreTokenizer::Create(splits));
  const TextNormalizer normalizer(spec.nfc, spec.marks);
  ASSIGN_OR_RETURN(AddedTokenMatcher raw_matcher, MakeMatcher(spec, normalizer, false));
  ASSIGN_OR_RETURN(AddedTokenMatcher normalized_matcher, MakeMatcher(spec, normalizer, true));
  std::unique_ptr<Tokenizer> tokenizer(
      new Tokenizer(std::move(model), normalizer, std::move(pre_tokenizer), std::move(raw_matcher),
                    std::move(normalized_matcher)));
  // A text may have marks of its own, 3 bytes each, which decode to spaces.
  tokenizer->normalized_ratio_max_ =
      (spec.nfc ? kNfcRatioMax : 1) * (spec.model.byte_fallback ? kSpaceMark.size() : 1);
  tokenizer->drops_front_ = spec.marks.drops_front;
  tokenizer->special_ids_ = std::move(special_ids);
  RETURN_IF_ERROR(tokenizer->AddAddedTokens(spec));
  RETURN_IF_ERROR(tokenizer->CheckTemplate(spec));
  tokenizer->drops_text_ =
      tokenizer->model_.drops_bytes() ||
      std::any_of(spec.added_tokens.begin(), spec.added_tokens.end(),
                  [](const AddedTokenSpec& token) { return token.lstrip || token.rstrip; }) ||
      std::any_of(spec.splits.begin(), spec.splits.end(),
                  [](const SplitSpec& split) { return !split.keep_matches || !split.keep_gaps; });
  for (const std::string& bytes : tokenizer->token_bytes_) {
    tokenizer->token_bytes_max_ = std::max(tokenizer->token_bytes_max_, bytes.size());
  }
  if (config.bos_token.has_value()) tokenizer->bos_id_ = tokenizer->TokenId(*config.bos_token);
  if (config.eos_token.has_value()) tokenizer->eos_id_ = tokenizer->TokenId(*config.eos_token);
  tokenizer->config_ = std::move(config);
  return tokenizer;
}

absl::Status Tokenizer::AddAddedTokens(const TokenizerSpec& spec) {
  constexpr int32_t kIdsMax = 1 << 24;
  absl::flat_hash_set<int32_t> ids;
  for (const AddedTokenSpec& token : spec.added_tokens) {
    const auto error = [&](const std::string& problem) {
      return absl::InvalidArgumentError(absl::StrCat(
          "added_tokens: \"", absl::CHexEscape(token.content), "\", id ", token.id, ": ", problem));
    };
    if (token.id < 0 || token.id >= kIdsMax) {
      return error(absl::StrCat("ids are from 0 to ", kIdsMax - 1));
    }
    const int32_t id_in_model = model_.IdOf(token.content);
    if (id_in_model >= 0 && id_in_model != token.id) {
      return error(absl::StrCat("the vocabulary has it with the id ", id_in_model));
    }
    if (id_in_model < 0 && model_.HasId(token.id)) {
      return error("the vocabulary has another token with this id");
    }
    if (!ids.insert(token.id).second) return error("the id occurs twice");
    if (!added_ids_.try_emplace(token.content, token.id).second) {
      return error("the token occurs twice");
    }
    const auto index = static_cast<size_t>(token.id);
    if (index >= token_bytes_.size()) token_bytes_.resize(index + 1);
    token_bytes_[index] = model_.byte_fallback() ? model_.BytesOf(token.content) : token.content;
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::CheckTemplate(const TokenizerSpec& spec) {
  for (const std::vector<int32_t>* const ids : {&spec.prefix, &spec.suffix}) {
    for (const int32_t id : *ids) {
      if (TokenBytes(id).empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("post_processor: the id ", id, " is no token"));
      }
    }
  }
  prefix_ = spec.prefix;
  suffix_ = spec.suffix;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                                       EncodeOptions options) const {
  std::vector<int32_t> ids;
  ids.reserve(prefix_.size() + text.size() / kBytesPerTokenGuess + suffix_.size());
  if (options.add_special) ids.insert(ids.end(), prefix_.begin(), prefix_.end());
  RETURN_IF_ERROR(AppendIds(text, SpecialRuns(text.size(), options.parse_special), ids));
  if (options.add_special) ids.insert(ids.end(), suffix_.begin(), suffix_.end());
  return ids;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodeRendered(std::string_view text,
                                                               const SpecialRuns& special) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / kBytesPerTokenGuess);
  RETURN_IF_ERROR(AppendIds(text, special, ids));
  return ids;
}

absl::Status Tokenizer::AppendIds(std::string_view text, const SpecialRuns& special,
                                  std::vector<int32_t>& ids) const {
  if (text.size() > kTextBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the text has ", text.size(), " bytes, at most ",
                                                   kTextBytesMax, " can be tokenized at once"));
  }
  RETURN_IF_ERROR(ValidateUtf8(text));
  return Encoder(*this, ids).Run(text, special);
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (skip_special && IsSpecial(id)) continue;
    bytes.append(TokenBytes(id));
  }
  if (drops_front_ && bytes.starts_with(' ')) bytes.erase(0, 1);
  std::string text;
  DrainUtf8(bytes, true, text);
  return text;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= token_bytes_.size()) return {};
  return token_bytes_[static_cast<size_t>(id)];
}

size_t Tokenizer::TextBytesMax(size_t num_tokens) const {
  const size_t bytes_per_token = token_bytes_max_ * normalized_ratio_max_;
  if (drops_text_ || num_tokens > SIZE_MAX / bytes_per_token) return SIZE_MAX;
  return num_tokens * bytes_per_token;
}

std::optional<int32_t> Tokenizer::TokenId(std::string_view token) const {
  const auto added = added_ids_.find(absl::string_view(token.data(), token.size()));
  if (added != added_ids_.end()) return added->second;
  const int32_t id = model_.IdOf(token);
  return id < 0 ? std::nullopt : std::optional<int32_t>(id);
}

std::optional<int32_t> Tokenizer::SpecialId(std::string_view content) const {
  const std::optional<int32_t> id = TokenId(content);
  return id.has_value() && IsSpecial(*id) ? id : std::nullopt;
}

}  // namespace retroinfer
