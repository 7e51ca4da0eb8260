// How blocks of kernels meet those of other ranks (peer_exchange.h).
#pragma once

#include <cuda_runtime.h>

#include "gpu_worker/ops/collective/cuda/peer_exchange.h"

namespace retroinfer::cuda {

constexpr int kSpinsPerLook = 4096;  // between two looks at whether ranks have ended

__device__ inline void StoreRelease(uint32_t* word, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
__device__ inline uint32_t LoadAcquire(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

// Numbers of 4 bytes with the turn beside each, which arrive together: 8 bytes are written at once.
// So whoever finds the turn has the number, without a meeting behind it.
__device__ inline void StoreMarked(ulonglong2* to, uint32_t first, uint32_t second, uint32_t turn) {
  const uint64_t mark = uint64_t{turn} << 32;
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(mark | first),
               "l"(mark | second)
               : "memory");
}
// Returns false until both are there.
__device__ inline bool LoadMarked(const ulonglong2* from, uint32_t turn, uint32_t* first,
                                  uint32_t* second) {
  uint64_t low = 0, high = 0;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(low), "=l"(high)
               : "l"(from)
               : "memory");
  *first = static_cast<uint32_t>(low);
  *second = static_cast<uint32_t>(high);
  return low >> 32 == turn && high >> 32 == turn;
}

// Moves `count` chunks, of which the threads of a block take turns, some at once: load(i) is asked
// for before any store(i, chunk).
template <typename Load, typename Store>
__device__ void MoveChunks(int64_t count, const Load& load, const Store& store) {
  constexpr int kAtOnce = 4;
  for (int64_t i = threadIdx.x; i < count; i += kAtOnce * kExchangeThreads) {
    uint4 chunks[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (i + j * kExchangeThreads < count) chunks[j] = load(i + j * kExchangeThreads);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (i + j * kExchangeThreads < count) store(i + j * kExchangeThreads, chunks[j]);
    }
  }
}

// The view of one block. All threads of the block make the same calls.
class PeerBlock {
 public:
  __device__ explicit PeerBlock(const PeerView& view)
      : view_(view), turn_(*Words(view.rank, PieceLayout::kTurns, blockIdx.x)) {}

  // What `rank`'s block shows in the coming turn (until Meet) or has shown in the last one.
  __device__ uint4* First(int rank, uint32_t turn) const {
    return Chunks(rank, PieceLayout::kFirst, int64_t{turn % 2} * kFirstBlocks + blockIdx.x,
                  kFirstBytes);
  }
  // Of two shots: parts that `rank` is to add, and sums that it is given.
  __device__ uint4* Parts(int rank) const {
    return Chunks(rank, PieceLayout::kParts, blockIdx.x, kSecondBytes);
  }
  __device__ uint4* Sums(int rank) const {
    return Chunks(rank, PieceLayout::kSums, blockIdx.x, kSecondBytes);
  }
  __device__ uint32_t coming_turn() const { return turn_ + 1; }

  // Waits until this block of every rank has come here. What blocks have written before is seen
  // behind it. Returns false if a rank has ended: then nothing more is to be done.
  __device__ bool Meet() {
    ++turn_;
    __syncthreads();
    bool ended = false;
    if (threadIdx.x < static_cast<unsigned>(view_.num_ranks)) {
      const int peer = static_cast<int>(threadIdx.x);
      StoreRelease(Words(peer, PieceLayout::kFlags, blockIdx.x * kMostRanks + view_.rank), turn_);
      const uint32_t* const flag =
          Words(view_.rank, PieceLayout::kFlags, blockIdx.x * kMostRanks + peer);
      // The host's memory is far away: it is looked at now and then.
      for (int spins = 1; static_cast<int32_t>(LoadAcquire(flag) - turn_) < 0; ++spins) {
        if (spins % kSpinsPerLook == 0 && LoadAcquire(view_.ended) != 0) {
          ended = true;
          break;
        }
      }
    }
    return __syncthreads_or(ended) == 0;
  }

  // Gives chunk `i` of this block's row to `rank` in the coming turn.
  __device__ void GiveRow(int rank, int64_t i, const uint4& chunk) const {
    ulonglong2* const row = Row(rank, view_.rank);
    StoreMarked(row + i, chunk.x, chunk.y, turn_ + 1);
    StoreMarked(row + kRowChunks + i, chunk.z, chunk.w, turn_ + 1);
  }
  // Waits for chunk `i` of the row that `rank` gives in the coming turn. What it returns means
  // nothing if a rank has ended.
  __device__ uint4 TakeRow(int rank, int64_t i) const {
    const ulonglong2* const row = Row(view_.rank, rank);
    uint4 chunk;
    for (int spins = 1; !LoadMarked(row + i, turn_ + 1, &chunk.x, &chunk.y) ||
                        !LoadMarked(row + kRowChunks + i, turn_ + 1, &chunk.z, &chunk.w);
         ++spins) {
      if (spins % kSpinsPerLook == 0 && LoadAcquire(view_.ended) != 0) break;
    }
    return chunk;
  }
  // Behind the last row of a turn that had no Meet. A row is written again in the turn after the
  // next: this rank has then had rows, or a flag, of the next one from all, who had taken all
  // rows of this turn before.
  __device__ void EndTurn() { ++turn_; }

  // Keeps the count of turns for the next launch.
  //
  // REQUIRES: a barrier since the block began.
  __device__ void Finish() const {
    if (threadIdx.x == 0) *Words(view_.rank, PieceLayout::kTurns, blockIdx.x) = turn_;
  }

 private:
  __device__ uint32_t* Words(int rank, size_t at, int64_t index) const {
    return reinterpret_cast<uint32_t*>(view_.pieces[rank] + at) + index;
  }
  __device__ uint4* Chunks(int rank, size_t at, int64_t block, int64_t block_bytes) const {
    return reinterpret_cast<uint4*>(view_.pieces[rank] + at + block * block_bytes);
  }
  // Of `rank`'s piece: what `from` gives in the coming turn.
  __device__ ulonglong2* Row(int rank, int from) const {
    const int64_t block = int64_t{(turn_ + 1) % 2} * kRowBlocks + blockIdx.x;
    return reinterpret_cast<ulonglong2*>(view_.pieces[rank] + PieceLayout::kRows +
                                         (block * kMostRanks + from) * 2 * kRowBytes);
  }

  const PeerView& view_;
  uint32_t turn_;
};

}  // namespace retroinfer::cuda
