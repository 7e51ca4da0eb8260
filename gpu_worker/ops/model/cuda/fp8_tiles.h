// How a matrix of codes is multiplied with many rows: features of a tile are unpacked to bf16, and
// multiplied, one tile after the other; or rows of activations are rounded to 8 bits, in the memory
// that a tile has. Free of CUDA.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace retroinfer::cuda {

// Enough to keep a GPU's multiprocessors busy for the rows of a chunk, and of most matrices little
// enough to stay in its L2 between the two.
inline constexpr int64_t kTileFeaturesMax = 4096;
inline constexpr int64_t kTileFeaturesStep = 256;

constexpr int64_t FeaturesOfTile(int64_t out_features) {
  const int64_t tiles = (out_features + kTileFeaturesMax - 1) / kTileFeaturesMax;
  const int64_t even = (out_features + tiles - 1) / tiles;
  return std::min(out_features,
                  (even + kTileFeaturesStep - 1) / kTileFeaturesStep * kTileFeaturesStep);
}

// Of a matrix's largest tile in bf16.
constexpr size_t UnpackedTileBytes(int64_t in_features, int64_t out_features) {
  return static_cast<size_t>(FeaturesOfTile(out_features) * in_features) * 2;
}

// Bytes of the scales of so many rows of activations; what follows them is aligned as they are.
constexpr int64_t Fp8ScaleBytes(int64_t rows) { return (rows * 4 + 255) / 256 * 256; }

// How many rows of activations, codes of `padded_in` columns and scales, such memory holds.
constexpr int64_t Fp8ProductRows(size_t bytes, int64_t padded_in) {
  return std::max<int64_t>(0, static_cast<int64_t>(bytes) - 256) / (padded_in + 4);
}

}  // namespace retroinfer::cuda
