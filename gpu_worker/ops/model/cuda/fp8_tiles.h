// How a matrix in 8 bits is multiplied with many rows: features of a tile are unpacked to bf16, and
// multiplied, one tile after the other. Free of CUDA.
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

}  // namespace retroinfer::cuda
