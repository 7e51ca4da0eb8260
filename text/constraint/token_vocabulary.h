// The tokens of a model as a constraint sees them: byte strings in a trie.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/constraint/text_set.h"
#include "text/constraint/token_trie.h"
#include "text/tokenizer/tokenizer.h"

namespace retroinfer::constraint {

// Built once for a model and shared by all its constraints. A special token's bytes are
// kSpecialByte and its content, so that no text of characters is a special token. End tokens have
// no bytes: they end a text. Other tokens with that byte are never allowed: no text has them.
//
// Threads: immutable after construction.
class TokenVocabulary {
 public:
  // Occurs nowhere in UTF-8.
  static constexpr char kSpecialByte = '\xFF';

  // `end_token_ids`: tokens that end a text; ids of no token are left out. `num_logits`: rows of
  // the model's output, which a mask has bits for.
  //
  // REQUIRES: num_logits >= tokenizer.vocab_size().
  // Cost:     about 100 ms for 150,000 tokens.
  static std::shared_ptr<const TokenVocabulary> Create(const Tokenizer& tokenizer,
                                                       std::vector<int32_t> end_token_ids,
                                                       int32_t num_logits);

  TokenVocabulary(const TokenVocabulary&) = delete;
  TokenVocabulary& operator=(const TokenVocabulary&) = delete;

  // Words of 32 bits in a mask.
  size_t mask_words() const { return mask_words_; }
  int32_t num_logits() const { return num_logits_; }

  // Empty for an end token, for a token without text, and for what is no token.
  std::string_view BytesOf(int32_t token) const;
  bool IsEnd(int32_t token) const;
  const std::vector<int32_t>& end_token_ids() const { return end_token_ids_; }
  // The bytes that stand for the special token `content`; nothing if there is none, or if it is an
  // end token.
  std::optional<std::string> SpecialBytes(std::string_view content) const;

  const TokenTrie& trie() const { return trie_; }
  // A set as a mask, and the tokens that are not in it.
  const std::vector<uint32_t>& MaskOf(TextSet set) const { return Of(set).mask; }
  const TokenTrie& TrieWithout(TextSet set) const { return Of(set).rest; }
  // Characters of the longest token in TextSet::kJsonText.
  size_t text_characters_max() const { return text_characters_max_; }

 private:
  struct Members {
    std::vector<uint32_t> mask;
    TokenTrie rest;
  };

  TokenVocabulary(const Tokenizer& tokenizer, std::vector<int32_t> end_token_ids,
                  int32_t num_logits);
  void BuildTextSets(const std::vector<TokenTrie::Entry>& tokens);
  const Members& Of(TextSet set) const { return text_sets_[static_cast<size_t>(set)]; }

  int32_t num_logits_;
  size_t mask_words_;
  std::vector<int32_t> end_token_ids_;  // ascending
  std::string bytes_;                   // of all tokens
  std::vector<uint32_t> offsets_;       // by id, into bytes_; one more than there are ids
  TokenTrie trie_;
  std::array<Members, kNumTextSets> text_sets_;
  size_t text_characters_max_ = 1;
};

}  // namespace retroinfer::constraint
