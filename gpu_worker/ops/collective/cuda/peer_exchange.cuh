// How blocks of kernels meet those of other ranks (peer_exchange.h).
#pragma once

#include <cuda_runtime.h>

#include "gpu_worker/ops/collective/cuda/peer_exchange.h"

namespace retroinfer::cuda {

constexpr int kExchangeThreads = 512;
constexpr int64_t kChunkBytes = 16;  // what a thread moves at a time
// Elements of 16 bytes that a block shows in a turn of one shot, and of two.
constexpr int64_t kFirstChunks = kFirstBytes / kChunkBytes;
constexpr int64_t kSecondChunks = kSecondBytes / kChunkBytes;

__device__ inline void StoreRelease(uint32_t* word, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
__device__ inline uint32_t LoadAcquire(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

// The view of one block. All threads of the block make the same calls.
class PeerBlock {
 public:
  __device__ explicit PeerBlock(const PeerView& view)
      : view_(view), turn_(*Words(view.rank, PieceLayout::kTurns, blockIdx.x)) {}

  // What `rank`'s block shows in the coming turn (until Meet) or has shown in the last one; `set`
  // of second is the caller's to choose.
  __device__ uint4* First(int rank, uint32_t turn) const {
    return Chunks(rank, PieceLayout::kFirst, turn % 2, kFirstBytes);
  }
  __device__ uint4* Second(int rank, uint32_t set) const {
    return Chunks(rank, PieceLayout::kSecond, set, kSecondBytes);
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
        if (spins % 4096 == 0 && LoadAcquire(view_.ended) != 0) {
          ended = true;
          break;
        }
      }
    }
    return __syncthreads_or(ended) == 0;
  }

  // Keeps the count of turns for the next launch.
  __device__ void Finish() const {
    if (threadIdx.x == 0) *Words(view_.rank, PieceLayout::kTurns, blockIdx.x) = turn_;
  }

 private:
  __device__ uint32_t* Words(int rank, size_t at, int64_t index) const {
    return reinterpret_cast<uint32_t*>(view_.pieces[rank] + at) + index;
  }
  __device__ uint4* Chunks(int rank, size_t at, uint32_t set, int64_t block_bytes) const {
    const size_t block = size_t{set} * kExchangeBlocks + blockIdx.x;
    return reinterpret_cast<uint4*>(view_.pieces[rank] + at +
                                    block * static_cast<size_t>(block_bytes));
  }

  const PeerView& view_;
  uint32_t turn_;
};

}  // namespace retroinfer::cuda
