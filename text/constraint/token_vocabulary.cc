#include "text/constraint/token_vocabulary.h"

#include <algorithm>
#include <utility>

#include "common/log/check.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer::constraint {
namespace {

constexpr size_t kTokenBytesMax = 4096;  // longer ones are no words, and are never allowed

// The sets of which `bytes` is a member; none if it has a part of a character.
TextSetBits TextSetsOf(std::string_view bytes, const std::array<CodePointSet, kNumTextSets>& sets,
                       size_t& num_characters) {
  num_characters = 0;
  TextSetBits members = (1U << kNumTextSets) - 1;
  while (!bytes.empty()) {
    const Utf8Step step = NextUtf8(bytes);
    if (step.kind != Utf8Step::Kind::kCharacter) return 0;
    for (size_t i = 0; i < kNumTextSets; ++i) {
      if (!sets[i].Contains(step.code)) members &= static_cast<TextSetBits>(~(1U << i));
    }
    bytes.remove_prefix(step.length);
    ++num_characters;
  }
  return members;
}

}  // namespace

std::shared_ptr<const TokenVocabulary> TokenVocabulary::Create(const Tokenizer& tokenizer,
                                                               std::vector<int32_t> end_token_ids,
                                                               int32_t num_logits) {
  return std::shared_ptr<const TokenVocabulary>(
      new TokenVocabulary(tokenizer, std::move(end_token_ids), num_logits));
}

TokenVocabulary::TokenVocabulary(const Tokenizer& tokenizer, std::vector<int32_t> end_token_ids,
                                 int32_t num_logits)
    : num_logits_(num_logits),
      mask_words_((static_cast<size_t>(num_logits) + 31) / 32),
      end_token_ids_(std::move(end_token_ids)) {
  RI_CHECK(num_logits >= tokenizer.vocab_size());
  std::erase_if(end_token_ids_, [&](int32_t id) { return id < 0 || id >= num_logits; });
  std::sort(end_token_ids_.begin(), end_token_ids_.end());
  end_token_ids_.erase(std::unique(end_token_ids_.begin(), end_token_ids_.end()),
                       end_token_ids_.end());
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
    const std::string_view token = tokenizer.TokenBytes(id);
    if (IsEnd(id) || token.empty() || token.size() > kTokenBytesMax) continue;
    // The byte itself may be a token, which must not begin the spelling of a special one.
    if (!tokenizer.IsSpecial(id) && token.find(kSpecialByte) != std::string_view::npos) continue;
    if (tokenizer.IsSpecial(id)) bytes_.push_back(kSpecialByte);
    bytes_.append(token);
  }
  offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
  std::vector<TokenTrie::Entry> tokens;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view token = BytesOf(id);
    if (!token.empty()) tokens.emplace_back(token, id);
  }
  BuildTextSets(tokens);
  trie_ = TokenTrie(std::move(tokens));
}

void TokenVocabulary::BuildTextSets(const std::vector<TokenTrie::Entry>& tokens) {
  std::array<CodePointSet, kNumTextSets> sets;
  std::array<std::vector<TokenTrie::Entry>, kNumTextSets> rest;
  for (size_t i = 0; i < kNumTextSets; ++i) {
    sets[i] = CharactersOf(static_cast<TextSet>(i));
    text_sets_[i].mask.assign(mask_words_, 0);
  }
  for (const TokenTrie::Entry& token : tokens) {
    size_t num_characters = 0;
    const TextSetBits members = TextSetsOf(token.first, sets, num_characters);
    if ((members & BitOf(TextSet::kJsonText)) != 0) {
      text_characters_max_ = std::max(text_characters_max_, num_characters);
    }
    for (size_t i = 0; i < kNumTextSets; ++i) {
      if ((members >> i & 1) != 0) {
        const auto id = static_cast<uint32_t>(token.second);
        text_sets_[i].mask[id / 32] |= 1U << (id % 32);
      } else {
        rest[i].push_back(token);
      }
    }
  }
  for (size_t i = 0; i < kNumTextSets; ++i) text_sets_[i].rest = TokenTrie(std::move(rest[i]));
}

std::string_view TokenVocabulary::BytesOf(int32_t token) const {
  if (token < 0 || static_cast<size_t>(token) + 1 >= offsets_.size()) return {};
  const uint32_t begin = offsets_[static_cast<size_t>(token)];
  const uint32_t end = offsets_[static_cast<size_t>(token) + 1];
  return std::string_view(bytes_).substr(begin, end - begin);
}

bool TokenVocabulary::IsEnd(int32_t token) const {
  return std::binary_search(end_token_ids_.begin(), end_token_ids_.end(), token);
}

std::optional<std::string> TokenVocabulary::SpecialBytes(std::string_view content) const {
  std::string bytes(1, kSpecialByte);
  bytes.append(content);
  // Special tokens are few and lie together in the trie, behind the first node with their byte.
  for (size_t i = 0; i < trie_.num_nodes();) {
    const TokenTrie::Node& node = trie_.node(i);
    const bool on_path =
        node.depth <= bytes.size() && node.byte == static_cast<uint8_t>(bytes[node.depth - 1U]);
    if (on_path && node.depth == bytes.size()) {
      if (trie_.TokensOf(i).empty()) return std::nullopt;
      return bytes;
    }
    i = on_path ? i + 1 : node.behind;
  }
  return std::nullopt;
}

}  // namespace retroinfer::constraint
