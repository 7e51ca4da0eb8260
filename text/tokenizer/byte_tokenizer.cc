#include "text/tokenizer/byte_tokenizer.h"

#include <string>
#include <utility>

#include "common/log/check.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer {

std::unique_ptr<Tokenizer> CreateByteTokenizer() {
  TokenizerSpec spec;
  for (int32_t byte = 0; byte < kByteTokenizerTokens; ++byte) {
    VocabularyEntry& entry = spec.model.vocabulary.emplace_back();
    AppendUtf8(ByteAlphabetCharacter(static_cast<uint8_t>(byte)), entry.token);
    entry.id = byte;
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(spec, {});
  RI_CHECK(tokenizer.ok());
  return *std::move(tokenizer);
}

}  // namespace retroinfer
