#include "text/tokenizer/byte_alphabet.h"

#include <array>

#include "text/tokenizer/utf8.h"

namespace retroinfer {
namespace {

constexpr char32_t kFirstShifted = 0x100;

constexpr bool StandsForItself(unsigned byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<char32_t, 256> character_of{};
  std::array<int16_t, 0x144> byte_of{};  // by code point; -1: not in the alphabet
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  alphabet.byte_of.fill(-1);
  char32_t next = kFirstShifted;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char32_t character = StandsForItself(byte) ? byte : next++;
    alphabet.character_of[byte] = character;
    alphabet.byte_of[character] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

char32_t ByteAlphabetCharacter(uint8_t byte) { return kAlphabet.character_of[byte]; }

std::optional<std::string> BytesFromAlphabet(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  while (!token.empty()) {
    const Utf8Step step = NextUtf8(token);
    if (step.kind != Utf8Step::Kind::kCharacter || step.code >= kAlphabet.byte_of.size() ||
        kAlphabet.byte_of[step.code] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(kAlphabet.byte_of[step.code]));
    token.remove_prefix(step.length);
  }
  return bytes;
}

}  // namespace retroinfer
