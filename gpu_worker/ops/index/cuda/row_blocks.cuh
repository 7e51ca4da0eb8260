// Thread blocks that work on one row together: a thread block cluster (compute capability 9.0).
// What one of them finds it writes into the shared memory of all. A block waits for as many bytes
// as it is due, which takes no fence: to wait for all threads of a cluster is one for all of device
// memory, takes more than a thousand cycles and empties the L1 cache. With one block nothing is
// sent, and to wait is __syncthreads.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace retroinfer::cuda {

// Whether all bytes that a block is due have arrived in its shared memory. For one use.
struct Arrival {
  uint64_t state;
};

// kMany: the kernel was launched with clusters, of a power of two of up to 16 blocks.
template <bool kMany>
class RowBlocks {
 public:
  static constexpr int kMaxBlocks = kMany ? 16 : 1;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  static constexpr bool kIsThere = !kMany;  // whether the device has this
#else
  static constexpr bool kIsThere = true;
#endif

  __device__ RowBlocks() {
#if __CUDA_ARCH__ >= 900
    if constexpr (kMany) {
      uint32_t number, all;
      asm("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(number));
      asm("mov.u32 %0, %%cluster_nctarank;\n" : "=r"(all));
      index_ = static_cast<int>(number);
      log_count_ = 31 - __clz(static_cast<int>(all));
    }
#endif
  }

  // Of this block in its row.
  __device__ int index() const { return index_; }
  __device__ int count() const { return 1 << log_count_; }
  __device__ int log_count() const { return log_count_; }  // to base 2

  // Makes arrivals fit to be waited for. One thread calls it, before Meet.
  template <int kCount>
  __device__ void Prepare(Arrival (&arrivals)[kCount]) const {
#if __CUDA_ARCH__ >= 900
    if constexpr (kMany) {
      for (Arrival& arrival : arrivals) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n" ::"r"(Address(&arrival))
                     : "memory");
      }
      asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
    }
#endif
  }

  // Waits until all blocks of the row have begun and have prepared their arrivals, and can be
  // written to. All threads call it, between the first arrivals' preparation and the first Send.
  __device__ void Meet() const {
#if __CUDA_ARCH__ >= 900
    if constexpr (kMany) {
      asm volatile(
          "barrier.cluster.arrive.relaxed.aligned;\n"
          "barrier.cluster.wait.aligned;\n" ::
              : "memory");
    }
#endif
  }

  // Says how many bytes are to arrive in all. One thread calls it, once; some may have arrived.
  __device__ void Expect([[maybe_unused]] Arrival& arrival, [[maybe_unused]] int32_t bytes) const {
#if __CUDA_ARCH__ >= 900
    if constexpr (kMany) {
      asm volatile(
          "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(Address(&arrival)),
          "r"(bytes)
          : "memory");
    }
#endif
  }

  // Writes a value of 4, 8 or 16 bytes to where `to` lies in block `block`, this one included.
  template <typename T>
  __device__ void Send(T* to, const T& value, [[maybe_unused]] int block,
                       [[maybe_unused]] Arrival& arrival) const {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
#if __CUDA_ARCH__ >= 900
    if constexpr (kMany) {
      const uint32_t at = AddressIn(block, to), told = AddressIn(block, &arrival);
      const auto* words = reinterpret_cast<const uint32_t*>(&value);
      if constexpr (sizeof(T) == 4) {
        asm volatile(
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];\n" ::"r"(at),
            "r"(words[0]), "r"(told)
            : "memory");
      } else if constexpr (sizeof(T) == 8) {
        asm volatile(
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, "
            "[%3];\n" ::"r"(at),
            "r"(words[0]), "r"(words[1]), "r"(told)
            : "memory");
      } else {
        asm volatile(
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
            "[%5];\n" ::"r"(at),
            "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(told)
            : "memory");
      }
      return;
    }
#endif
    *to = value;
  }

  // Waits until all that is due has arrived; it can be read after. With one block all threads of it
  // call this, and what any of them wrote before can be read.
  __device__ void Await([[maybe_unused]] Arrival& arrival) const {
#if __CUDA_ARCH__ >= 900
    if constexpr (kMany) {
      // A wait in the cluster's scope would empty the L1 cache. What arrives lies in shared memory,
      // and the counter is told of bytes that are there.
      uint32_t is_there = 0;
      while (is_there == 0) {
        asm volatile(
            "{\n"
            ".reg .pred there;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 there, [%1], %2;\n"
            "selp.u32 %0, 1, 0, there;\n"
            "}\n"
            : "=r"(is_there)
            : "r"(Address(&arrival)), "r"(0)
            : "memory");
      }
      return;
    }
#endif
    __syncthreads();
  }

  // Waits for all threads of the row. What they wrote to shared memory before can be read after.
  __device__ void Sync() const {
#if __CUDA_ARCH__ >= 900
    if constexpr (kMany) {
      asm volatile(
          "barrier.cluster.arrive.aligned;\n"
          "barrier.cluster.wait.aligned;\n" ::
              : "memory");
      return;
    }
#endif
    __syncthreads();
  }

  // A number in block `block`, at `local` in this one. A Sync comes before, and one after the last
  // read, so that no block ends, or writes there, before.
  __device__ uint32_t Read(const uint32_t* local, [[maybe_unused]] int block) const {
#if __CUDA_ARCH__ >= 900
    if constexpr (kMany) {
      uint32_t value;
      asm volatile("ld.shared::cluster.u32 %0, [%1];\n"
                   : "=r"(value)
                   : "r"(AddressIn(block, local))
                   : "memory");
      return value;
    }
#endif
    return *local;
  }

 private:
  static __device__ uint32_t Address(const void* local) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(local));
  }
#if __CUDA_ARCH__ >= 900
  static __device__ uint32_t AddressIn(int block, const void* local) {
    uint32_t address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(address) : "r"(Address(local)), "r"(block));
    return address;
  }
#endif

  int index_ = 0, log_count_ = 0;
};

}  // namespace retroinfer::cuda
