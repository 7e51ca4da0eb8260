// Random numbers that are a function of a seed and a position, for sampling: the same on every
// backend, in any batch and in any order.
#pragma once

#include <cstdint>

namespace retroinfer {

// The output function of SplitMix64 (Steele, Lea and Flood 2014): a bijection whose every output
// bit depends on every input bit.
constexpr uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Returns a number in [0, 1), a multiple of 2^-53, for the token at `position` of a request.
constexpr double UniformAt(uint64_t seed, int64_t position) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  const uint64_t stream = MixBits(seed + kGolden);
  const uint64_t bits = MixBits(stream + (static_cast<uint64_t>(position) + 1) * kGolden);
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

}  // namespace retroinfer
