// Codes of tokens on the CPU (common/kv/token_code.h says what they are).
//
// Threads: any.
#pragma once

#include <cstdint>
#include <span>

#include "common/kv/token_code.h"

namespace retroinfer::cpu {

inline constexpr uint32_t kMaxCodedDim = 256;

// Turns a vector in place: Hadamard transform of the numbers with their signs, / sqrt(d).
//
// REQUIRES: the size is a power of two.
void TurnVector(std::span<float> vector);

// Codes a residual [d]: writes d / 4 bytes and the factors.
//
// REQUIRES: d is a power of two from 4 to kMaxCodedDim.
void CodeResidual(std::span<const float> residual, uint8_t* code, TokenCodeFactors& factors);

}  // namespace retroinfer::cpu
