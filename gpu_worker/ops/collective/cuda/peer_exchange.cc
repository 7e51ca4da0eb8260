#include "gpu_worker/ops/collective/cuda/peer_exchange.h"

#include <unistd.h>

#include <cstring>
#include <string>

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
                                                                   RankMemory& ranks,
                                                                   PeerMemory memory) {
  if (ranks.parallel().num_ranks > kMostRanks) {
    return absl::InvalidArgumentError(absl::StrCat(
        ranks.parallel().num_ranks, " ranks; GPUs of one machine are joined, up to ", kMostRanks));
  }
  std::unique_ptr<PeerExchange> exchange(new PeerExchange(device, ranks));
  const absl::Status status = exchange->Open(memory);
  // The others wait for this rank or have its word; either way they need not go on without it.
  if (!status.ok()) {
    ranks.End();
    return status;
  }
  return exchange;
}

absl::Status PeerExchange::Open(PeerMemory memory) {
  view_.rank = ranks_.parallel().rank;
  view_.num_ranks = ranks_.parallel().num_ranks;
  flag_page_ = ranks_.header_page();
  ASSIGN_OR_RETURN(const DeviceSpan<std::byte> page, device_.MapHost(flag_page_));
  view_.ended =
      reinterpret_cast<const uint32_t*>(page.device_data() + offsetof(RankMemoryHeader, ended));
  PieceCard mine;
  RETURN_IF_ERROR(MakePiece(&mine));
  static_assert(sizeof(PieceCard) <= RankMemory::kAlignment);
  std::memcpy(ranks_.Mine().data(), &mine, sizeof(mine));
  RETURN_IF_ERROR(ranks_.Meet());
  RETURN_IF_ERROR(CheckUnlikeGpus());
  const absl::Status access = memory == PeerMemory::kHost
                                  ? absl::FailedPreconditionError("the host's memory was asked for")
                                  : MapPeers();
  RETURN_IF_ERROR(AgreeOnAccess(access));
  view_.has_rows = peer_access_.ok();
  if (peer_access_.ok()) return absl::OkStatus();
  // None is freed that another rank has mapped.
  UnmapPeers();
  RETURN_IF_ERROR(ranks_.Meet());
  FreePiece();
  if (ranks_.pieces().empty()) return peer_access_;
  return UseHost();
}

absl::Status PeerExchange::MakePiece(PieceCard* card) {
  // A piece of its own: a handle is for a whole allocation, which a pool's memory is not.
  RETURN_IF_CUDA_ERROR(cudaMalloc(&piece_, PieceLayout::kBytes));
  RETURN_IF_CUDA_ERROR(cudaMemset(piece_, 0, PieceLayout::kBytes));
  RETURN_IF_CUDA_ERROR(cudaDeviceSynchronize());
  view_.pieces[static_cast<size_t>(view_.rank)] = static_cast<std::byte*>(piece_);
  card->process = ::getpid();
  card->address = piece_;
  card->is_there = 1;
  RETURN_IF_CUDA_ERROR(cudaGetDevice(&card->device));
  cudaDeviceProp properties;
  RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties, card->device));
  card->gpu = gpu_ = properties.uuid;
  RETURN_IF_CUDA_ERROR(cudaIpcGetMemHandle(&card->handle, piece_));
  return absl::OkStatus();
}

PieceCard PeerExchange::CardOf(int rank) const {
  PieceCard card;
  std::memcpy(&card, ranks_.Of(rank).data(), sizeof(card));
  return card;
}

absl::Status PeerExchange::CheckUnlikeGpus() const {
  for (int rank = 0; rank < view_.num_ranks; ++rank) {
    if (rank == view_.rank) continue;
    const PieceCard card = CardOf(rank);
    if (card.is_there != 1) {
      return absl::InternalError(absl::StrCat("rank ", rank, " has told nothing of its memory"));
    }
    if (std::memcmp(&card.gpu, &gpu_, sizeof(gpu_)) == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("ranks ", view_.rank, " and ", rank,
                       " are on the same GPU, where their kernels would wait for each other's "
                       "turn; each rank needs one of its own"));
    }
  }
  return absl::OkStatus();
}

absl::Status PeerExchange::MapPeers() {
  for (int rank = 0; rank < view_.num_ranks; ++rank) {
    if (rank != view_.rank) RETURN_IF_ERROR(MapPeer(rank, CardOf(rank)));
  }
  return absl::OkStatus();
}

absl::Status PeerExchange::AgreeOnAccess(const absl::Status& mine) {
  const std::span<std::byte> said = ranks_.Mine();
  const std::string why(mine.message().substr(0, RankMemory::kAlignment - 1));
  std::memcpy(said.data(), why.c_str(), why.size() + 1);
  RETURN_IF_ERROR(ranks_.Meet());  // behind it all have all pieces
  for (int rank = 0; rank < view_.num_ranks && peer_access_.ok(); ++rank) {
    const auto* const text = reinterpret_cast<const char*>(ranks_.Of(rank).data());
    const std::string of_rank(text, ::strnlen(text, RankMemory::kAlignment));
    if (!of_rank.empty()) peer_access_ = absl::FailedPreconditionError(of_rank);
  }
  return absl::OkStatus();
}

absl::Status PeerExchange::UseHost() {
  static_assert(PieceLayout::kHostBytes <= RankMemory::kPieceBytes);
  if (ranks_.piece_bytes() < PieceLayout::kHostBytes) {
    return absl::InvalidArgumentError(absl::StrCat("memory of ranks: pieces of ",
                                                   ranks_.piece_bytes(), " bytes; GPUs need ",
                                                   PieceLayout::kHostBytes));
  }
  ASSIGN_OR_RETURN(const DeviceSpan<std::byte> all, device_.MapHost(ranks_.pieces()));
  host_pieces_ = ranks_.pieces();
  for (size_t rank = 0; rank < static_cast<size_t>(view_.num_ranks); ++rank) {
    view_.pieces[rank] = all.device_data() + rank * ranks_.piece_bytes();
  }
  return absl::OkStatus();
}

absl::Status PeerExchange::MapPeer(int rank, const PieceCard& card) {
  const int mine = view_.rank;
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

void PeerExchange::UnmapPeers() {
  for (void* const mapped : mapped_) cudaIpcCloseMemHandle(mapped);
  mapped_.clear();
}

void PeerExchange::FreePiece() {
  if (piece_ != nullptr) cudaFree(piece_);
  piece_ = nullptr;
}

PeerExchange::~PeerExchange() {
  UnmapPeers();
  FreePiece();
  if (!host_pieces_.empty()) device_.UnmapHost(host_pieces_);
  if (view_.ended != nullptr) device_.UnmapHost(flag_page_);
}

}  // namespace retroinfer::cuda
