#include "kv_store_service/persistence/read_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "absl/synchronization/notification.h"

namespace retroinfer::kvstore {
namespace {

constexpr size_t kBufferBytes = 8192;

TEST(ReadPoolTest, WorksOnEachIndexOnce) {
  ReadPool pool(4, kBufferBytes);
  for (const uint32_t count : {0u, 1u, 2u, 5u, 1000u}) {
    std::vector<std::atomic<int>> calls(count);
    ASSERT_TRUE(pool.Run(count,
                         [&](uint32_t index, std::span<std::byte> buffer) {
                           ++calls[index];
                           EXPECT_EQ(buffer.size(), kBufferBytes);
                           EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 4096, 0u);
                           return absl::OkStatus();
                         })
                    .ok());
    EXPECT_TRUE(std::ranges::all_of(calls, [](const auto& of_one) { return of_one == 1; }));
  }
}

// Each of the calls waits for all others: they must be under way at a time.
TEST(ReadPoolTest, AsManyReadsAsThreadsAreUnderWayAtATime) {
  ReadPool pool(7, kBufferBytes);
  for (int round = 0; round < 3; ++round) {
    auto* const all = new absl::Barrier(8);
    ASSERT_TRUE(pool.Run(8,
                         [all](uint32_t, std::span<std::byte>) {
                           if (all->Block()) delete all;
                           return absl::OkStatus();
                         })
                    .ok());
  }
}

TEST(ReadPoolTest, CallsBesideEachOtherAllEnd) {
  ReadPool pool(3, kBufferBytes);
  absl::Notification may_end;
  std::thread stuck([&] {
    EXPECT_TRUE(pool.Run(4,
                         [&](uint32_t, std::span<std::byte>) {
                           may_end.WaitForNotification();
                           return absl::OkStatus();
                         })
                    .ok());
  });
  // All threads of the pool may wait: a caller works itself.
  std::vector<std::thread> others;
  for (int i = 0; i < 4; ++i) {
    others.emplace_back([&] {
      std::atomic<uint32_t> sum{0};
      EXPECT_TRUE(pool.Run(100,
                           [&](uint32_t index, std::span<std::byte>) {
                             sum += index;
                             return absl::OkStatus();
                           })
                      .ok());
      EXPECT_EQ(sum, 4950u);
    });
  }
  for (std::thread& other : others) other.join();
  may_end.Notify();
  stuck.join();
}

TEST(ReadPoolTest, AFailureEndsTheRestAndDamageIsToldBeforeOtherErrors) {
  ReadPool pool(2, kBufferBytes);
  std::atomic<uint32_t> calls{0};
  const absl::Status failed = pool.Run(100000, [&](uint32_t, std::span<std::byte>) {
    ++calls;
    return absl::UnavailableError("the disk fails");
  });
  EXPECT_TRUE(absl::IsUnavailable(failed));
  EXPECT_LE(calls, 3u);
  auto* const both = new absl::Barrier(2);
  const absl::Status damaged = pool.Run(2, [both](uint32_t index, std::span<std::byte>) {
    if (both->Block()) delete both;
    return index == 0 ? absl::UnavailableError("the disk fails") : absl::DataLossError("damaged");
  });
  EXPECT_TRUE(absl::IsDataLoss(damaged));
  EXPECT_TRUE(pool.Run(9, [](uint32_t, std::span<std::byte>) { return absl::OkStatus(); }).ok());
}

}  // namespace
}  // namespace retroinfer::kvstore
