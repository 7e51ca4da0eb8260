// Invariants:
// * `posted` of a rank is written by that rank alone, and only grows.
// * Who sleeps has counted itself among `waiters` before it looked at `posted` for the last time,
//   and who posts looks at `waiters` behind that, both in one order for all: so a sleeper is woken.
//   It looks again after kLongestSleep all the same, for End comes between.
#include "gpu_worker/ops/collective/rank_memory.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#include <new>

#include "absl/strings/str_cat.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

// A rank is rarely late by more than this: a few dozen microseconds.
constexpr int kSpins = 2000;
constexpr timespec kLongestSleep = {.tv_sec = 0, .tv_nsec = 100'000'000};

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Sleeps while `word` is `value`. Other processes may wake it, so it is no private futex; early
// returns of all kinds are the caller's to notice.
void SleepOn(std::atomic<uint32_t>& word, uint32_t value) {
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &kLongestSleep, nullptr, 0);
}

void WakeAll(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Whether `posted` has come to `turn`; both go round.
bool HasCome(uint32_t posted, uint32_t turn) { return static_cast<int32_t>(posted - turn) >= 0; }

size_t BuffersAt(int num_ranks) {
  const size_t used = sizeof(RankMemoryHeader) + static_cast<size_t>(num_ranks) * sizeof(RankLine);
  return (used + RankMemory::kAlignment - 1) / RankMemory::kAlignment * RankMemory::kAlignment;
}

absl::Status CheckNumbers(int64_t num_ranks, uint64_t turn_bytes, uint64_t piece_bytes) {
  if (num_ranks < 1 || num_ranks > RankMemory::kMaxRanks) {
    return absl::InvalidArgumentError(absl::StrCat("memory of ranks: ", num_ranks, " ranks; 1 to ",
                                                   RankMemory::kMaxRanks, " are supported"));
  }
  if (turn_bytes == 0 || turn_bytes > RankMemory::kMaxTurnBytes ||
      turn_bytes % RankMemory::kAlignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory of ranks: ", turn_bytes, " bytes a turn; needs a multiple of ",
                     RankMemory::kAlignment, " up to ", RankMemory::kMaxTurnBytes));
  }
  if (piece_bytes > RankMemory::kMaxTurnBytes || piece_bytes % RankMemory::kAlignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory of ranks: pieces of ", piece_bytes, " bytes; needs a multiple of ",
                     RankMemory::kAlignment, " up to ", RankMemory::kMaxTurnBytes));
  }
  return absl::OkStatus();
}

absl::Status CheckMemory(std::span<std::byte> memory, size_t needed) {
  if (memory.size() >= needed &&
      reinterpret_cast<uintptr_t>(memory.data()) % RankMemory::kAlignment == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("memory of ranks: has ", memory.size(),
                                                 " bytes; needs ", needed, ", aligned to ",
                                                 RankMemory::kAlignment));
}

}  // namespace

size_t RankMemory::Bytes(int num_ranks, size_t turn_bytes, size_t piece_bytes) {
  RI_CHECK(CheckNumbers(num_ranks, turn_bytes, piece_bytes).ok());
  return BuffersAt(num_ranks) + static_cast<size_t>(num_ranks) * (2 * turn_bytes + piece_bytes);
}

absl::Status RankMemory::Format(std::span<std::byte> memory, int num_ranks, size_t turn_bytes,
                                size_t piece_bytes) {
  RETURN_IF_ERROR(CheckNumbers(num_ranks, turn_bytes, piece_bytes));
  RETURN_IF_ERROR(CheckMemory(memory, Bytes(num_ranks, turn_bytes, piece_bytes)));
  auto* const header = new (memory.data()) RankMemoryHeader{};
  header->version = RankMemoryHeader::kVersion;
  header->num_ranks = static_cast<uint32_t>(num_ranks);
  header->turn_bytes = turn_bytes;
  header->piece_pages = static_cast<uint32_t>(piece_bytes / kAlignment);
  for (int rank = 0; rank < num_ranks; ++rank) {
    new (memory.data() + sizeof(RankMemoryHeader) + static_cast<size_t>(rank) * sizeof(RankLine))
        RankLine{};
  }
  header->magic.store(RankMemoryHeader::kMagic, std::memory_order_release);
  return absl::OkStatus();
}

absl::StatusOr<RankMemory> RankMemory::Attach(std::span<std::byte> memory,
                                              const TensorParallel& parallel) {
  RETURN_IF_ERROR(CheckMemory(memory, sizeof(RankMemoryHeader)));
  auto* const header = reinterpret_cast<RankMemoryHeader*>(memory.data());
  if (header->magic.load(std::memory_order_acquire) != RankMemoryHeader::kMagic ||
      header->version != RankMemoryHeader::kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory of ranks: is not, or of version ", header->version, "; needs version ",
                     RankMemoryHeader::kVersion, ": start all ranks from one program"));
  }
  // Read once: they are not looked at again.
  const uint32_t num_ranks = header->num_ranks;
  const uint64_t turn_bytes = header->turn_bytes;
  const uint64_t piece_bytes = uint64_t{header->piece_pages} * kAlignment;
  RETURN_IF_ERROR(CheckNumbers(num_ranks, turn_bytes, piece_bytes));
  RETURN_IF_ERROR(CheckMemory(memory, Bytes(static_cast<int>(num_ranks), turn_bytes, piece_bytes)));
  if (static_cast<int64_t>(num_ranks) != parallel.num_ranks || parallel.rank < 0 ||
      parallel.rank >= parallel.num_ranks) {
    return absl::InvalidArgumentError(absl::StrCat("memory of ranks: is for ", num_ranks,
                                                   " ranks; this is rank ", parallel.rank, " of ",
                                                   parallel.num_ranks));
  }
  RankMemory ranks;
  ranks.parallel_ = parallel;
  ranks.turn_bytes_ = turn_bytes;
  ranks.piece_bytes_ = piece_bytes;
  ranks.header_ = header;
  ranks.lines_ = reinterpret_cast<RankLine*>(memory.data() + sizeof(RankMemoryHeader));
  ranks.buffers_ = memory.data() + BuffersAt(parallel.num_ranks);
  ranks.pieces_ = ranks.buffers_ + 2 * static_cast<size_t>(num_ranks) * turn_bytes;
  if (ranks.Line(parallel.rank).taken.exchange(1) != 0) {
    return absl::AlreadyExistsError(
        absl::StrCat("memory of ranks: rank ", parallel.rank,
                     " is taken; ranks that start again need new memory, all of them"));
  }
  return ranks;
}

std::span<std::byte> RankMemory::Buffer(int rank, uint32_t turn) const {
  const auto set = static_cast<size_t>(turn % 2) * static_cast<size_t>(parallel_.num_ranks);
  return {buffers_ + (set + static_cast<size_t>(rank)) * turn_bytes_, turn_bytes_};
}

absl::Status RankMemory::EndedStatus() const {
  return absl::AbortedError("a rank of this model has ended, and so have its collectives");
}

bool RankMemory::AwaitRank(int rank) {
  RankLine& line = Line(rank);
  for (int spin = 0; spin < kSpins; ++spin) {
    if (HasCome(line.posted.load(std::memory_order_acquire), turn_)) return true;
    Pause();
  }
  while (true) {
    line.waiters.fetch_add(1);
    const uint32_t posted = line.posted.load();
    const bool has_come = HasCome(posted, turn_);
    const bool has_ended = ended();
    if (!has_come && !has_ended) SleepOn(line.posted, posted);
    line.waiters.fetch_sub(1);
    // A turn that all have come to is whole, whoever has ended since.
    if (has_come || has_ended) return has_come;
  }
}

absl::Status RankMemory::Meet() {
  if (ended()) return EndedStatus();
  ++turn_;
  RankLine& mine = Line(parallel_.rank);
  mine.posted.store(turn_);
  if (mine.waiters.load() > 0) WakeAll(mine.posted);
  for (int rank = 0; rank < parallel_.num_ranks; ++rank) {
    if (!AwaitRank(rank)) return EndedStatus();
  }
  return absl::OkStatus();
}

void RankMemory::End() {
  header_->ended.store(1);
  for (int rank = 0; rank < parallel_.num_ranks; ++rank) WakeAll(Line(rank).posted);
}

}  // namespace retroinfer
