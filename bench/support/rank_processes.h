// Ranks of a model as processes, as in a server, for benchmarks of what they do together.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/support/must.h"
#include "gpu_worker/ops/collective/rank_memory.h"

namespace retroinfer::bench {

// Calls body(RankMemory&) in a new process for each rank, with room for the pieces of GPUs. Returns
// what the program is to end with: 0 if all processes ended well; where one does not, all are
// ended, since others would wait for it.
//
// REQUIRES: nothing of CUDA was called before: it does not live through a fork.
template <typename Body>
int RunRankProcesses(int num_ranks, const Body& body) {
  const size_t bytes =
      RankMemory::Bytes(num_ranks, RankMemory::kTurnBytes, RankMemory::kPieceBytes);
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Fail("no memory for what ranks share");
  const std::span<std::byte> shared(static_cast<std::byte*>(memory), bytes);
  Must(RankMemory::Format(shared, num_ranks, RankMemory::kTurnBytes, RankMemory::kPieceBytes));
  std::vector<pid_t> children;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      RankMemory ranks = Must(RankMemory::Attach(shared, {rank, num_ranks}));
      body(ranks);
      std::exit(0);
    }
    if (child < 0) Fail("no process for rank " + std::to_string(rank));
    children.push_back(child);
  }
  int result = 0;
  while (!children.empty()) {
    int status = 0;
    const pid_t ended = ::wait(&status);
    std::erase(children, ended);
    if (ended > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    if (std::exchange(result, 1) == 1) continue;
    for (const pid_t child : children) ::kill(child, SIGKILL);
  }
  return result;
}

}  // namespace retroinfer::bench
