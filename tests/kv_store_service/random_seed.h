// The seed of a random test: RETROINFER_TEST_SEED, or a fixed one. Printed, so that a failure can
// be repeated.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>

namespace retroinfer::kvstore {

inline uint64_t TestSeed() {
  const char* text = std::getenv("RETROINFER_TEST_SEED");
  const uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : 20240607;
  std::cout << "RETROINFER_TEST_SEED=" << seed << "\n";
  return seed;
}

}  // namespace retroinfer::kvstore
