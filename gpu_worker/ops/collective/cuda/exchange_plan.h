// How collectives of the CUDA backend divide their work among blocks, and where in a piece of
// memory (peer_exchange.h) a block has its places. Free of CUDA.
//
// All ranks make the same plans of the same shapes, so a block and its part mean the same on each.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace retroinfer::cuda {

inline constexpr int kMostRanks = 8;  // GPUs of one machine
inline constexpr int kExchangeThreads = 512;
inline constexpr int kExchangeBlocks = 256;
inline constexpr int kFirstBlocks = 64;
inline constexpr int64_t kFirstBytes = 16 << 10;
inline constexpr int64_t kSecondBytes = 32 << 10;
inline constexpr int kRowBlocks = 32;
inline constexpr int64_t kRowBytes = kFirstBytes;
inline constexpr int64_t kExchangeChunkBytes = 16;  // what a thread moves at a time
// Chunks that a block shows in a turn of one shot, and of two, and those of a row.
inline constexpr int64_t kFirstChunks = kFirstBytes / kExchangeChunkBytes;
inline constexpr int64_t kSecondChunks = kSecondBytes / kExchangeChunkBytes;
inline constexpr int64_t kRowChunks = kRowBytes / kExchangeChunkBytes;

// Offsets within a piece, bytes.
struct PieceLayout {
  static constexpr size_t kFlags = 0;
  static constexpr size_t kTurns = kFlags + size_t{kExchangeBlocks} * kMostRanks * sizeof(uint32_t);
  static constexpr size_t kFirst = kTurns + size_t{4096};
  static constexpr size_t kParts = kFirst + size_t{2} * kFirstBlocks * kFirstBytes;
  static constexpr size_t kSums = kParts + size_t{kExchangeBlocks} * kSecondBytes;
  static constexpr size_t kHostBytes = kSums + size_t{kExchangeBlocks} * kSecondBytes;
  static constexpr size_t kRows = kHostBytes;
  static constexpr size_t kBytes = kRows + size_t{4} * kRowBlocks * kMostRanks * kRowBytes;
};
static_assert(kExchangeBlocks * sizeof(uint32_t) <= 4096);

// Block i has the i-th `size` of what is counted; the last one may have fewer. A block comes to its
// next share, if the plan says that blocks take turns, `blocks` shares on.
struct SharePlan {
  int64_t size;
  int blocks;  // each has a first share
};

// A sum in one shot: chunks that a block shows and adds, at once.
//
// REQUIRES: 0 < num_chunks <= kFirstBlocks * kFirstChunks.
constexpr SharePlan PlanOneShot(int64_t num_chunks) {
  constexpr int64_t kLeast = 64;
  const int64_t size = std::max((num_chunks + kFirstBlocks - 1) / kFirstBlocks, kLeast);
  return {size, static_cast<int>((num_chunks + size - 1) / size)};
}

// Whether one shot is faster, which reads more and meets once.
constexpr bool TakesOneShot(int64_t num_chunks, int num_ranks) {
  constexpr int64_t kBytesOfTwo = 1 << 20, kBytes = 512 << 10;
  static_assert(kBytesOfTwo <= kFirstBlocks * kFirstBytes);
  return num_chunks * kExchangeChunkBytes <= (num_ranks == 2 ? kBytesOfTwo : kBytes);
}

// A sum in two shots: blocks take slices in turns, of a part for each rank.
struct TwoShotPlan {
  int part_shift;  // log2 of the chunks of a part
  int blocks;      // each has a first slice
};

// Parts so large that all blocks have one slice, if those are neither too small nor too large.
//
// REQUIRES: num_chunks > 0; 2 <= num_ranks <= kMostRanks.
constexpr TwoShotPlan PlanTwoShot(int64_t num_chunks, int num_ranks) {
  constexpr int64_t kLeastPartsChunks = 256;  // of all others' parts of a slice
  const int64_t ranks = num_ranks, others = num_ranks - 1, of_all_blocks = kExchangeBlocks * ranks;
  const int64_t least = std::max((kLeastPartsChunks + others - 1) / others,
                                 (num_chunks + of_all_blocks - 1) / of_all_blocks);
  int shift = 0;
  while ((int64_t{1} << shift) < least && (int64_t{2} << shift) * ranks <= kSecondChunks) ++shift;
  const int64_t slice = ranks << shift;
  const int64_t slices = (num_chunks + slice - 1) / slice;
  return {shift, static_cast<int>(std::min<int64_t>(kExchangeBlocks, slices))};
}

// A gathering of shares of up to `most` elements of f32: elements that a block shows in a turn.
//
// REQUIRES: most > 0.
constexpr SharePlan PlanGather(int64_t most) {
  constexpr auto kMostFloats = static_cast<int64_t>(kFirstBytes / sizeof(float));
  const int64_t size = std::min(
      kMostFloats, std::max((most + kFirstBlocks - 1) / kFirstBlocks, int64_t{kExchangeThreads}));
  return {size, static_cast<int>(std::min<int64_t>(kFirstBlocks, (most + size - 1) / size))};
}

}  // namespace retroinfer::cuda
