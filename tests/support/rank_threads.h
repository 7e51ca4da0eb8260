// The ranks of a model as threads of one process, each with a CPU device of its own.
#pragma once

#include <sys/mman.h>

#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/log/check.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/ops/backend/cpu/cpu_ops.h"
#include "gpu_worker/ops/collective/rank_memory.h"
#include "tests/support/backends.h"

namespace retroinfer::test_support {

// Pages that begin as zeros and that processes which are forked share.
class SharedPages {
 public:
  explicit SharedPages(size_t bytes) : bytes_(bytes) {
    void* const memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    RI_CHECK(memory != MAP_FAILED);
    data_ = static_cast<std::byte*>(memory);
  }
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;
  ~SharedPages() { ::munmap(data_, bytes_); }

  std::span<std::byte> bytes() const { return {data_, bytes_}; }

 private:
  std::byte* data_;
  const size_t bytes_;
};

// Calls body(rank) on a thread for each rank.
template <typename Body>
void OnRanks(int num_ranks, const Body& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

class RankThreads {
 public:
  // A short turn makes several of most matrices.
  explicit RankThreads(int num_ranks, ComputePrecision precision = ComputePrecision::kF32,
                       size_t turn_bytes = RankMemory::kAlignment)
      : pages_(RankMemory::Bytes(num_ranks, turn_bytes)) {
    RI_CHECK(RankMemory::Format(pages_.bytes(), num_ranks, turn_bytes).ok());
    for (int rank = 0; rank < num_ranks; ++rank) {
      auto memory = RankMemory::Attach(pages_.bytes(), {rank, num_ranks});
      RI_CHECK(memory.ok());
      memories_.push_back(std::make_unique<RankMemory>(*memory));
      auto backend = std::make_unique<Backend>();
      auto device = std::make_unique<CpuDevice>(CpuDeviceOptions{.num_threads = 1});
      backend->ops = std::make_unique<CpuOps>(*device, precision, memories_.back().get());
      backend->device = std::move(device);
      auto stream = backend->device->CreateStream(StreamKind::kCompute);
      RI_CHECK(stream.ok());
      backend->stream = *std::move(stream);
      backends_.push_back(std::move(backend));
    }
  }

  int num_ranks() const { return static_cast<int>(backends_.size()); }
  Backend& backend(int rank) { return *backends_[static_cast<size_t>(rank)]; }
  RankMemory& memory(int rank) { return *memories_[static_cast<size_t>(rank)]; }

  template <typename Body>
  void Run(const Body& body) {
    OnRanks(num_ranks(), body);
  }

 private:
  SharedPages pages_;
  std::vector<std::unique_ptr<RankMemory>> memories_;
  std::vector<std::unique_ptr<Backend>> backends_;
};

}  // namespace retroinfer::test_support
