// Turns text into token ids and back: the BPE tokenizer of a model folder, over bytes or over
// characters (bpe_model.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "text/tokenizer/added_token_matcher.h"
#include "text/tokenizer/bpe_model.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/special_runs.h"
#include "text/tokenizer/text_normalizer.h"
#include "text/tokenizer/tokenizer_config.h"
#include "text/tokenizer/tokenizer_spec.h"

namespace retroinfer {

struct EncodeOptions {
  // Adds what the model wants around a text, by the post-processor of tokenizer.json (BOS).
  bool add_special = true;
  // Lets special tokens that are written out in the text ("<|eot_id|>") become those tokens. For
  // prompts that a template has rendered; never for text of a user.
  bool parse_special = false;
};

// Threads: immutable after construction; every method may be called from any thread.
class Tokenizer {
 public:
  // Reads tokenizer.json and, where they exist, tokenizer_config.json and chat_template.jinja.
  //
  // Returns: NOT_FOUND if there is no tokenizer.json; INVALID_ARGUMENT with the place, if a file is
  //          malformed or asks for something that is not supported.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::filesystem::path& model_folder);

  // Returns: INVALID_ARGUMENT if ids or tokens contradict each other.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(const TokenizerSpec& spec,
                                                           TokenizerConfig config);

  // Returns the ids that Hugging Face tokenizers give `text`. There may be none: a vocabulary that
  // lacks bytes may drop all of a text (bpe_model.h).
  //
  // Returns: INVALID_ARGUMENT with the offset, if `text` is not UTF-8, or if it is over 512 MiB;
  //          RESOURCE_EXHAUSTED if a pattern of the tokenizer needs too many steps for it.
  // Cost:    O(n log n); about 1 s for 5 MB.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              EncodeOptions options = {}) const;

  // The same for what a template has rendered: special tokens are recognised only where `special`
  // allows it, and nothing is added. All else has the ids that it has without the cuts between
  // runs.
  //
  // REQUIRES: special.size() == text.size().
  absl::StatusOr<std::vector<int32_t>> EncodeRendered(std::string_view text,
                                                      const SpecialRuns& special) const;

  // Returns the text of `ids`; bytes that are no UTF-8 become U+FFFD, ids that are no tokens
  // nothing. Where the tokenizer puts a mark before a text, the text loses one space at its
  // beginning.
  std::string Decode(std::span<const int32_t> ids, bool skip_special) const;

  // The bytes of a token: part of a character, often. Empty if `id` is no token.
  std::string_view TokenBytes(int32_t id) const;
  // The id of an added token by its content, or of a vocabulary entry as it is written.
  std::optional<int32_t> TokenId(std::string_view token) const;
  bool IsSpecial(int32_t id) const { return special_ids_.contains(id); }
  // The special token whose content is `content`.
  std::optional<int32_t> SpecialId(std::string_view content) const;

  // The largest id + 1. The model may have more rows in its embedding.
  int32_t vocab_size() const { return static_cast<int32_t>(token_bytes_.size()); }
  // Bytes of the longest token.
  size_t token_bytes_max() const { return token_bytes_max_; }
  // The most bytes that a text of `num_tokens` tokens can have: a longer one need not be tokenized
  // to be refused. SIZE_MAX if this tokenizer drops text of any length.
  size_t TextBytesMax(size_t num_tokens) const;
  const absl::flat_hash_set<int32_t>& special_ids() const { return special_ids_; }
  std::optional<int32_t> bos_id() const { return bos_id_; }
  std::optional<int32_t> eos_id() const { return eos_id_; }
  const TokenizerConfig& config() const { return config_; }

 private:
  class Encoder;

  Tokenizer(BpeModel model, TextNormalizer normalizer, PreTokenizer pre_tokenizer,
            AddedTokenMatcher raw_matcher, AddedTokenMatcher normalized_matcher);
  absl::Status AddAddedTokens(const TokenizerSpec& spec);
  absl::Status CheckTemplate(const TokenizerSpec& spec);
  absl::Status AppendIds(std::string_view text, const SpecialRuns& special,
                         std::vector<int32_t>& ids) const;

  // All constant after construction.
  BpeModel model_;
  TextNormalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  AddedTokenMatcher raw_matcher_;         // searches the text as it came
  AddedTokenMatcher normalized_matcher_;  // searches the normalised text
  size_t normalized_ratio_max_ = 1;       // bytes of a text for each of what its tokens decode to
  bool drops_front_ = false;              // SpaceMarkSpec
  std::vector<int32_t> prefix_;
  std::vector<int32_t> suffix_;
  std::vector<std::string> token_bytes_;  // by id
  absl::flat_hash_map<std::string, int32_t> added_ids_;
  absl::flat_hash_set<int32_t> special_ids_;
  size_t token_bytes_max_ = 0;
  // Bytes are no tokens, added tokens take white space in, or a split removes what it matches.
  bool drops_text_ = false;
  std::optional<int32_t> bos_id_;
  std::optional<int32_t> eos_id_;
  TokenizerConfig config_;
};

}  // namespace retroinfer
