#include "gpu_worker/ops/cpu/thread_scratch.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <thread>

namespace retroinfer::cpu {
namespace {

TEST(ThreadScratchTest, GrowsOnlyAndIsAligned) {
  std::byte* large = ThreadScratch(100'000);
  std::memset(large, 1, 100'000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large) % 64, 0u);
  EXPECT_EQ(ThreadScratch(10), large);
  EXPECT_EQ(ThreadScratch(100'000), large);
  std::byte* larger = ThreadScratch(200'000);
  std::memset(larger, 1, 200'000);
  EXPECT_EQ(ThreadScratch(200'000), larger);
}

TEST(ThreadScratchTest, EachThreadHasItsOwn) {
  std::byte* mine = ThreadScratch(100);
  std::byte* other = nullptr;
  std::thread([&other] { other = ThreadScratch(100); }).join();
  EXPECT_NE(mine, other);
}

}  // namespace
}  // namespace retroinfer::cpu
