// A tokenizer without merges, for tests: token id = byte value, and a few special tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/log/check.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer {

inline constexpr int32_t kByteTokenizerEndOfText = 256;  // <|endoftext|>
inline constexpr int32_t kByteTokenizerImStart = 257;    // <|im_start|>
inline constexpr int32_t kByteTokenizerImEnd = 258;      // <|im_end|>
inline constexpr int32_t kByteTokenizerVocabSize = 259;

// `config` may carry a chat template.
inline std::unique_ptr<Tokenizer> MakeByteTokenizer(TokenizerConfig config = {}) {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    AppendUtf8(ByteAlphabetCharacter(static_cast<uint8_t>(byte)), token);
    spec.model.vocabulary.push_back({token, byte});
  }
  const auto add_special = [&spec](int32_t id, const char* content) {
    AddedTokenSpec token;
    token.id = id;
    token.content = content;
    token.special = true;
    spec.added_tokens.push_back(token);
  };
  add_special(kByteTokenizerEndOfText, "<|endoftext|>");
  add_special(kByteTokenizerImStart, "<|im_start|>");
  add_special(kByteTokenizerImEnd, "<|im_end|>");
  auto tokenizer = Tokenizer::Create(spec, std::move(config));
  RI_CHECK(tokenizer.ok());
  return *std::move(tokenizer);
}

}  // namespace retroinfer
