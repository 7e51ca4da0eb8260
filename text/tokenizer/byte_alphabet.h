// The alphabet of byte-level BPE (GPT-2, `bytes_to_unicode`): one printable character for each of
// the 256 bytes, in which vocabularies and merges are written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace retroinfer {

// The character that stands for `byte`: the byte's own code point for printable Latin-1, else
// U+0100 onwards.
char32_t ByteAlphabetCharacter(uint8_t byte);

// The bytes that `token` stands for; nothing if it has a character outside the alphabet.
//
// REQUIRES: `token` is valid UTF-8.
std::optional<std::string> BytesFromAlphabet(std::string_view token);

}  // namespace retroinfer
