#include "gpu_worker/ops/cpu/token_codes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "gpu_worker/ops/cpu/convert.h"

namespace retroinfer::cpu {
namespace {

constexpr float kLargestF16 = 65504.0f;

// `value` rounded to f16, which `bits` gets; the largest one for what is beyond.
float RoundToF16(float value, uint16_t& bits) {
  const float capped = std::min(value, kLargestF16);
  ConvertFromF32(&capped, DType::kF16, reinterpret_cast<std::byte*>(&bits), 1);
  float rounded = 0;
  ConvertToF32(DType::kF16, reinterpret_cast<const std::byte*>(&bits), &rounded, 1);
  return rounded;
}

}  // namespace

void TurnVector(std::span<float> vector) {
  const size_t size = vector.size();
  for (size_t i = 0; i < size; ++i) {
    if (TurnsSign(static_cast<uint32_t>(i))) vector[i] = -vector[i];
  }
  for (size_t step = 1; step < size; step *= 2) {
    for (size_t first = 0; first < size; first += 2 * step) {
      for (size_t i = first; i < first + step; ++i) {
        const float low = vector[i], high = vector[i + step];
        vector[i] = low + high;
        vector[i + step] = low - high;
      }
    }
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(size));
  for (float& number : vector) number *= scale;
}

void CodeResidual(std::span<const float> residual, uint8_t* code, TokenCodeFactors& factors) {
  const size_t dim = residual.size();
  float turned[kMaxCodedDim];
  std::copy(residual.begin(), residual.end(), turned);
  TurnVector({turned, dim});
  float squares = 0;
  for (size_t i = 0; i < dim; ++i) squares += turned[i] * turned[i];
  std::fill_n(code, dim / 4, uint8_t{0});
  factors = {0, 0};
  if (!(squares > 0) || !std::isfinite(squares)) return;
  const float edge = kLevelEdge * std::sqrt(squares / static_cast<float>(dim));
  float levels[kMaxCodedDim];
  float inner = 0;
  for (size_t i = 0; i < dim; ++i) {
    const uint32_t bits = CodeOfLevel(std::fabs(turned[i]) > edge, turned[i] < 0);
    code[i / 4] |= static_cast<uint8_t>(bits << (2 * (i % 4)));
    levels[i] = static_cast<float>(CodeLevel(bits));
    inner += levels[i] * turned[i];
  }
  const float scale = RoundToF16(squares / inner, factors.scale);
  float error = 0;
  for (size_t i = 0; i < dim; ++i) {
    const float difference = turned[i] - scale * levels[i];
    error += difference * difference;
  }
  RoundToF16(std::sqrt(error), factors.error);
}

}  // namespace retroinfer::cpu
