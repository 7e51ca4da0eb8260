#include "gpu_worker/ops/collective/cuda/peer_exchange.h"

#include <unistd.h>

#include <cstring>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"

namespace retroinfer::cuda {

// What a rank tells the others of its piece.
struct PieceCard {
  int64_t process = 0;
  int32_t device = 0;
  cudaUUID_t gpu = {};
  uint32_t is_there = 0;    // 0: the rank has none, and all fail
  void* address = nullptr;  // in that process
  cudaIpcMemHandle_t handle = {};
};

namespace {

absl::Status NoPeerAccess(int rank, int peer, cudaError_t code) {
  return absl::FailedPreconditionError(absl::StrCat(
      "the GPU of rank ", rank, " cannot read memory of rank ", peer, "'s (",
      cudaGetErrorString(code),
      "): ranks need GPUs with peer access to each other, over NVLink or "
      "PCIe ('nvidia-smi topo -p2p r' shows which have it), and processes that may share memory"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerExchange>> PeerExchange::Create(Device& device,
                                                                   RankMemory& ranks) {
  if (ranks.parallel().num_ranks > kMostRanks) {
    return absl::InvalidArgumentError(absl::StrCat(
        ranks.parallel().num_ranks, " ranks; GPUs of one machine are joined, up to ", kMostRanks));
  }
  std::unique_ptr<PeerExchange> exchange(new PeerExchange(device, ranks));
  const absl::Status status = exchange->Open();
  // The others wait for this rank or have its word; either way they need not go on without it.
  if (!status.ok()) {
    ranks.End();
    return status;
  }
  return exchange;
}

absl::Status PeerExchange::Open() {
  const TensorParallel& parallel = ranks_.parallel();
  view_.rank = parallel.rank;
  view_.num_ranks = parallel.num_ranks;
  flag_page_ = ranks_.header_page();
  ASSIGN_OR_RETURN(const DeviceSpan<std::byte> page, device_.MapHost(flag_page_));
  view_.ended =
      reinterpret_cast<const uint32_t*>(page.device_data() + offsetof(RankMemoryHeader, ended));
  // A piece of its own: a handle is for a whole allocation, which a pool's memory is not.
  RETURN_IF_CUDA_ERROR(cudaMalloc(&piece_, PieceLayout::kBytes));
  RETURN_IF_CUDA_ERROR(cudaMemset(piece_, 0, PieceLayout::kBytes));
  RETURN_IF_CUDA_ERROR(cudaDeviceSynchronize());
  view_.pieces[static_cast<size_t>(parallel.rank)] = static_cast<std::byte*>(piece_);
  PieceCard mine;
  mine.process = ::getpid();
  mine.address = piece_;
  mine.is_there = 1;
  RETURN_IF_CUDA_ERROR(cudaGetDevice(&mine.device));
  cudaDeviceProp properties;
  RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties, mine.device));
  mine.gpu = gpu_ = properties.uuid;
  RETURN_IF_CUDA_ERROR(cudaIpcGetMemHandle(&mine.handle, piece_));
  static_assert(sizeof(PieceCard) <= RankMemory::kAlignment);
  std::memcpy(ranks_.Mine().data(), &mine, sizeof(mine));
  RETURN_IF_ERROR(ranks_.Meet());
  for (int rank = 0; rank < parallel.num_ranks; ++rank) {
    if (rank == parallel.rank) continue;
    PieceCard card;
    std::memcpy(&card, ranks_.Of(rank).data(), sizeof(card));
    RETURN_IF_ERROR(MapPeer(rank, card));
  }
  return ranks_.Meet();  // all have all pieces
}

absl::Status PeerExchange::MapPeer(int rank, const PieceCard& card) {
  const int mine = ranks_.parallel().rank;
  if (card.is_there != 1) {
    return absl::InternalError(absl::StrCat("rank ", rank, " has told nothing of its memory"));
  }
  if (std::memcmp(&card.gpu, &gpu_, sizeof(gpu_)) == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("ranks ", mine, " and ", rank,
                     " are on the same GPU, where their kernels would wait for each other's turn; "
                     "each rank needs one of its own"));
  }
  void* address = card.address;
  if (card.process == ::getpid()) {
    const cudaError_t code = cudaDeviceEnablePeerAccess(card.device, 0);
    if (code == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();  // it is kept otherwise
    } else if (code != cudaSuccess) {
      cudaGetLastError();
      return NoPeerAccess(mine, rank, code);
    }
  } else {
    const cudaError_t code =
        cudaIpcOpenMemHandle(&address, card.handle, cudaIpcMemLazyEnablePeerAccess);
    if (code != cudaSuccess) {
      cudaGetLastError();
      return NoPeerAccess(mine, rank, code);
    }
    mapped_.push_back(address);
  }
  view_.pieces[static_cast<size_t>(rank)] = static_cast<std::byte*>(address);
  return absl::OkStatus();
}

PeerExchange::~PeerExchange() {
  for (void* const mapped : mapped_) cudaIpcCloseMemHandle(mapped);
  if (piece_ != nullptr) cudaFree(piece_);
  if (view_.ended != nullptr) device_.UnmapHost(flag_page_);
}

}  // namespace retroinfer::cuda
