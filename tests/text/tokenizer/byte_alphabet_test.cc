#include "text/tokenizer/byte_alphabet.h"

#include <gtest/gtest.h>

#include <set>

#include "text/tokenizer/utf8.h"

namespace retroinfer {
namespace {

TEST(ByteAlphabetTest, EveryByteHasACharacterOfItsOwn) {
  std::set<char32_t> characters;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t character = ByteAlphabetCharacter(static_cast<uint8_t>(byte));
    characters.insert(character);
    std::string token;
    AppendUtf8(character, token);
    EXPECT_EQ(BytesFromAlphabet(token), std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(characters.size(), 256u);
}

TEST(ByteAlphabetTest, KnownCharacters) {
  EXPECT_EQ(ByteAlphabetCharacter('A'), U'A');
  EXPECT_EQ(ByteAlphabetCharacter(' '), U'\u0120');
  EXPECT_EQ(ByteAlphabetCharacter('\n'), U'\u010A');
  EXPECT_EQ(ByteAlphabetCharacter(0x00), U'\u0100');
  EXPECT_EQ(ByteAlphabetCharacter(0xAD), U'\u0143');
  EXPECT_EQ(ByteAlphabetCharacter(0xFF), U'\u00FF');
  EXPECT_EQ(BytesFromAlphabet("\u0120caf\u00C3\u00A9"), " caf\xC3\xA9");
}

TEST(ByteAlphabetTest, OtherCharactersHaveNoBytes) {
  EXPECT_EQ(BytesFromAlphabet(" "), std::nullopt);
  EXPECT_EQ(BytesFromAlphabet("a\u0144"), std::nullopt);
  EXPECT_EQ(BytesFromAlphabet("\u2581"), std::nullopt);
}

}  // namespace
}  // namespace retroinfer
