// Codes of tokens: a few bits for each key that tell the tokens of one cluster apart (RaBitQ, Gao
// and Long 2024, arXiv 2405.12497, with two bits a channel; decision 0085).
//
// What is coded is the residual r = k - C of a key to its cluster's centroid, both as they are
// stored. It is turned: t = H S r / sqrt(d), with S the signs of TurnsSign and H the Hadamard
// matrix (Sylvester's order), so that its d numbers spread like those of a normal distribution.
// Channel c of the code has two bits, in byte c / 4, from bit 2 (c % 4) on: a number of CodeLevel,
// by the levels of Lloyd's quantiser for four steps. Two factors make an estimate of that:
//   scale  |r|^2 / <t, levels>, so that an estimated inner product is right on average:
//          q . k ~ q . C + scale * <H S q / sqrt(d), levels>
//   error  |t - scale * levels|: that estimate is off by |q| * error / sqrt(d), as a standard
//          deviation
// Both are 0 where |r|^2 is 0, infinite or NaN, in f32; f16 is capped at its largest number.
//
//   OFFSET    SIZE      DESCRIPTION
//   0         256 * d   codes [1024][d / 4], of the tokens of a block of 1024
//   256 * d   4096      TokenCodeFactors [1024]
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/kv/kv_geometry.h"

namespace retroinfer {

// f16 as bits; finite, 0 or more.
struct TokenCodeFactors {
  uint16_t scale;
  uint16_t error;
};
static_assert(sizeof(TokenCodeFactors) == 4 && std::is_trivially_copyable_v<TokenCodeFactors>);

// Sizes and places in the codes of kDecodeSegmentTokens tokens of one (layer, head). All 0 where
// tokens have no codes.
struct TokenCodeLayout {
  constexpr TokenCodeLayout(const KvFormat& format, uint32_t head_dim)
      : code_bytes(size_t{head_dim} * format.token_code_bits / 8),
        factors_offset(kDecodeSegmentTokens * code_bytes),
        bytes(code_bytes == 0 ? 0
                              : factors_offset + kDecodeSegmentTokens * sizeof(TokenCodeFactors)) {}

  size_t code_bytes;  // of one token, its factors apart
  size_t factors_offset;
  size_t bytes;
};

// What is read to estimate the logit of one token.
constexpr size_t TokenCodeBytes(const KvFormat& format, uint32_t head_dim) {
  const size_t code = TokenCodeLayout(format, head_dim).code_bytes;
  return code == 0 ? 0 : code + sizeof(TokenCodeFactors);
}

// Levels in whole numbers that f16 has; only their ratio counts, Lloyd's 1.5104 / 0.4528 to 0.1 %.
inline constexpr int kSmallLevel = 3;
inline constexpr int kLargeLevel = 10;
// Between the two, as Lloyd's quantiser has it: in units of |r| / sqrt(d).
inline constexpr float kLevelEdge = 0.9816f;

constexpr uint32_t CodeOfLevel(bool is_large, bool is_negative) {
  const uint32_t above = is_large ? 1 : 0;
  return is_negative ? 1 - above : 2 + above;
}
constexpr int CodeLevel(uint32_t code) {
  const int size = code == 0 || code == 3 ? kLargeLevel : kSmallLevel;
  return code < 2 ? -size : size;
}

// Bit i: whether channel 64 * word + i of a vector changes its sign before the Hadamard transform.
// SplitMix64 (Steele, Lea and Flood 2014), fixed for ever.
constexpr uint64_t TurnedSigns(uint32_t word) {
  uint64_t bits = (uint64_t{word} + 1) * 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}
constexpr bool TurnsSign(uint32_t channel) {
  return (TurnedSigns(channel / 64) >> (channel % 64) & 1) != 0;
}

}  // namespace retroinfer
