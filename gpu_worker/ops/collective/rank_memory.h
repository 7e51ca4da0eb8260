// Memory that the ranks of a model share, and how they wait for each other there: threads of one
// process or processes that have mapped the same memory.
//
// Time goes in turns. In a turn each rank writes its own buffer and meets the others; then it reads
// all buffers. There are two sets of buffers, used in turns: who has met the others in turn t + 1
// knows that all have read what they wanted of turn t, so one meeting a turn is enough.
//
//   OFFSET              SIZE               DESCRIPTION
//   0                   64                 RankMemoryHeader
//   64                  64 * num_ranks     RankLine, one of each rank
//   aligned to 4096     2 * num_ranks *    buffers: [set][rank][turn_bytes]
//                       turn_bytes
//   behind them         num_ranks *        pieces, one of each rank, zero at first, for devices
//                       piece_bytes        that cannot reach each other's memory
//
// A rank that ends, or is ended by whoever watches over it, ends all (End): nobody waits for ever.
//
// How a process becomes a rank:
//   1. The first rank makes a memfd of Bytes(num_ranks), maps it, calls Format, and hands it to the
//      others, which map it; each calls Attach({rank, num_ranks}).
//   2. The operations are made with it: CpuOps(device, precision, &ranks), or, all ranks at the
//      same time, CudaOps::Create(device, &ranks), each on a GPU of its own.
//   3. Each loads its part: ModelSource::Load(..., {rank, num_ranks}), then Transformer::Create
//      with the whole model's configuration and TransformerOptions::parallel;
//      Transformer::config() is the rank's. ShardConfig tells the same before anything is loaded,
//      WeightBytesOf the bytes.
//   4. All make the same calls of the Transformer in the same order. Whoever sees a rank die or
//      hang calls End on its own view (any thread may); the others' calls then give ABORTED.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/ops/collective/tensor_parallel.h"

namespace retroinfer {

struct RankMemoryHeader {
  static constexpr uint64_t kMagic = 0x314b4e4152495249;  // "IRIRANK1", little-endian
  static constexpr uint32_t kVersion = 2;

  std::atomic<uint64_t> magic;
  uint32_t version;
  uint32_t num_ranks;
  uint64_t turn_bytes;
  std::atomic<uint32_t> ended;  // 1: nobody waits any more
  uint32_t piece_pages;         // of kAlignment bytes each
  uint32_t reserved[8];
};
static_assert(sizeof(RankMemoryHeader) == 64 && std::atomic<uint64_t>::is_always_lock_free);

struct RankLine {
  std::atomic<uint32_t> taken;    // 1: a rank is attached
  std::atomic<uint32_t> posted;   // turns that the rank has come to, modulo 2^32
  std::atomic<uint32_t> waiters;  // that sleep until `posted` changes
  uint32_t reserved[13];
};
static_assert(sizeof(RankLine) == 64 && std::atomic<uint32_t>::is_always_lock_free);

// The view of one rank.
//
// Threads: one, but for End and ended, which any thread may call.
// Owns:    nothing; the memory must outlive it.
class RankMemory {
 public:
  static constexpr int kMaxRanks = 64;
  static constexpr size_t kTurnBytes = size_t{1} << 20;
  static constexpr size_t kMaxTurnBytes = size_t{1} << 30;
  static constexpr size_t kAlignment = 4096;
  // What a GPU needs of pieces (PieceLayout::kHostBytes).
  static constexpr size_t kPieceBytes = size_t{19} << 20;

  // REQUIRES: 1 <= num_ranks <= kMaxRanks; turn_bytes and piece_bytes are multiples of kAlignment,
  //           up to kMaxTurnBytes, and turn_bytes is above 0.
  static size_t Bytes(int num_ranks, size_t turn_bytes = kTurnBytes, size_t piece_bytes = 0);

  // Makes `memory` ready for ranks; once, by whoever made it, before any attaches.
  //
  // Returns: INVALID_ARGUMENT for other numbers than Bytes takes, and for memory that is not
  //          aligned to kAlignment or shorter than these bytes.
  static absl::Status Format(std::span<std::byte> memory, int num_ranks,
                             size_t turn_bytes = kTurnBytes, size_t piece_bytes = 0);

  // Takes the place of `parallel.rank`.
  //
  // Returns: INVALID_ARGUMENT for memory that is not as Format leaves it, is of another version or
  //          for other ranks; ALREADY_EXISTS if the rank was taken before: after one has ended
  //          there is new memory for all.
  static absl::StatusOr<RankMemory> Attach(std::span<std::byte> memory,
                                           const TensorParallel& parallel);

  const TensorParallel& parallel() const { return parallel_; }
  size_t turn_bytes() const { return turn_bytes_; }

  // This rank's buffer of the coming turn, to be written before Meet.
  std::span<std::byte> Mine() const { return Buffer(parallel_.rank, turn_ + 1); }
  // The buffer of `rank` in the turn of the last Meet; stays as it is until the next Meet.
  std::span<const std::byte> Of(int rank) const { return Buffer(rank, turn_); }

  // Ends the turn: waits until all ranks have called it as often as this one.
  //
  // Returns: ABORTED if a rank has ended before all had come, with `Of` of no use.
  absl::Status Meet();

  // Makes all waits of all ranks return, now and later.
  void End();
  bool ended() const { return header_->ended.load(std::memory_order_acquire) != 0; }
  absl::Status EndedStatus() const;
  // The pieces of all ranks, [rank][piece_bytes]; empty where the memory was made without.
  std::span<std::byte> pieces() const {
    return {pieces_, static_cast<size_t>(parallel_.num_ranks) * piece_bytes_};
  }
  size_t piece_bytes() const { return piece_bytes_; }
  // The page that begins with the header, for kernels that look at `ended` while they wait.
  std::span<std::byte> header_page() const {
    return {reinterpret_cast<std::byte*>(header_), kAlignment};
  }

 private:
  RankMemory() = default;
  RankLine& Line(int rank) const { return lines_[rank]; }
  std::span<std::byte> Buffer(int rank, uint32_t turn) const;
  bool AwaitRank(int rank);

  TensorParallel parallel_;
  size_t turn_bytes_ = 0;
  size_t piece_bytes_ = 0;
  RankMemoryHeader* header_ = nullptr;
  RankLine* lines_ = nullptr;
  std::byte* buffers_ = nullptr;
  std::byte* pieces_ = nullptr;
  uint32_t turn_ = 0;  // meetings so far
};

}  // namespace retroinfer
