// Memory of several GPUs that the kernels of all ranks write and read: what collectives of the CUDA
// backend are made of. Each rank has a piece of it on its own GPU, which the others have mapped
// (peer access over NVLink or PCIe).
//
//   flags   [kExchangeBlocks][kMostRanks] u32   the turn that a rank's block has come to
//   turns   [kExchangeBlocks] u32               of this rank's blocks; theirs alone
//   first   [2][kFirstBlocks][kFirstBytes]      what blocks show the others, in turns
//   parts   [kExchangeBlocks][kSecondBytes]     two shots: what this rank is to add
//   sums    [kExchangeBlocks][kSecondBytes]     two shots: sums of all parts
//   rows    [2][kRowBlocks][kMostRanks]         rows that ranks give, in turns, with the
//           [2 * kRowBytes]                     number of the turn beside each 4 bytes
//
// `flags`, `parts`, `sums` and `rows` are written by the others.
//
// A block meets the blocks of the same number on all ranks, and no others. So each has room of its
// own: where it lies hangs on nothing but the block. Turns are counted on the device, so that a
// recorded step may be run again.
//
// GPUs without peer access have their pieces in the host's memory (RankMemory::pieces), which all
// of them can reach: the same kernels, each byte over PCIe. There are no `rows` there: who waits
// for them looks at all of them all the time.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/ops/collective/cuda/exchange_plan.h"
#include "gpu_worker/ops/collective/rank_memory.h"

namespace retroinfer::cuda {

// What kernels are given.
struct PeerView {
  int rank = 0;
  int num_ranks = 1;
  std::array<std::byte*, kMostRanks> pieces = {};  // of each rank, at this rank's addresses
  const uint32_t* ended = nullptr;                 // RankMemoryHeader::ended
  bool has_rows = false;                           // pieces are on the GPUs
};

struct PieceCard;  // what a rank tells the others of its piece

enum class PeerMemory {
  kAuto,  // on the GPUs; where one cannot reach another's, and ranks have pieces, the host's
  kHost,  // the host's, for measuring and for tests
};

// Threads: immutable.
// Owns:    this rank's piece, and the mappings of the others'.
class PeerExchange {
 public:
  // Allocates this rank's piece and maps the others', which they give through `ranks`: so all ranks
  // call it together, before any other use of `ranks`. The calling thread's current device is the
  // rank's. `device` and `ranks` must outlive the result.
  //
  // Returns: FAILED_PRECONDITION if two ranks have the same GPU, or one's cannot read another's
  //          and `ranks` has no pieces; INVALID_ARGUMENT for more than kMostRanks; ABORTED if a
  //          rank ends meanwhile; all ranks fail where one does.
  static absl::StatusOr<std::unique_ptr<PeerExchange>> Create(Device& device, RankMemory& ranks,
                                                              PeerMemory memory);
  PeerExchange(const PeerExchange&) = delete;
  PeerExchange& operator=(const PeerExchange&) = delete;
  // REQUIRES: no rank's kernels use this rank's piece any more.
  ~PeerExchange();

  const PeerView& view() const { return view_; }
  RankMemory& ranks() const { return ranks_; }
  // OK if pieces are on the GPUs; else why they are in the host's memory.
  const absl::Status& peer_access() const { return peer_access_; }

 private:
  PeerExchange(Device& device, RankMemory& ranks) : device_(device), ranks_(ranks) {}
  absl::Status Open(PeerMemory memory);
  absl::Status MakePiece(PieceCard* card);
  // Of another rank, in the turn in which all have told theirs.
  PieceCard CardOf(int rank) const;
  absl::Status CheckUnlikeGpus() const;
  absl::Status MapPeers();
  absl::Status MapPeer(int rank, const PieceCard& card);
  // Sets peer_access_, the same on all ranks: the reason of the first that has one.
  absl::Status AgreeOnAccess(const absl::Status& mine);
  absl::Status UseHost();
  void UnmapPeers();
  void FreePiece();

  Device& device_;
  RankMemory& ranks_;
  PeerView view_;
  absl::Status peer_access_;
  cudaUUID_t gpu_ = {};
  void* piece_ = nullptr;
  std::vector<void*> mapped_;  // pieces of other processes
  std::span<std::byte> flag_page_;
  std::span<std::byte> host_pieces_;  // mapped
};

}  // namespace retroinfer::cuda
