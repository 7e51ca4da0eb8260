#include "gpu_worker/device/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>
#include <vector>

namespace retroinfer {
namespace {

TEST(ThreadPoolTest, RunsEachIterationOnce) {
  for (const int num_threads : {1, 2, 5}) {
    ThreadPool pool(num_threads);
    EXPECT_EQ(pool.num_threads(), num_threads);
    for (const int64_t count : {0, 1, 2, 31, 1000}) {
      std::vector<int> calls(static_cast<size_t>(count));  // plain: visible after the loop
      pool.ParallelFor(count, [&](int64_t i) { ++calls[static_cast<size_t>(i)]; });
      for (const int call : calls) ASSERT_EQ(call, 1);
    }
  }
}

TEST(ThreadPoolTest, ManySmallLoopsInARow) {
  ThreadPool pool(4);
  int64_t total = 0;
  for (int64_t round = 0; round < 5000; ++round) {
    std::atomic<int64_t> sum = 0;
    const int64_t count = round % 7;
    pool.ParallelFor(count, [&](int64_t i) { sum += i + 1; });
    total += sum - count * (count + 1) / 2;
  }
  EXPECT_EQ(total, 0);
}

TEST(ThreadPoolTest, LoopsAfterTheThreadsFellAsleep) {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::atomic<int> calls = 0;
    pool.ParallelFor(6, [&](int64_t) {
      ++calls;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    });
    ASSERT_EQ(calls, 6);
  }
}

TEST(ThreadPoolTest, UsesSeveralThreads) {
  ThreadPool pool(2);
  std::atomic<int> inside = 0;
  // Each iteration waits for the other: one thread alone would never return.
  pool.ParallelFor(2, [&](int64_t) {
    ++inside;
    while (inside < 2) std::this_thread::yield();
  });
  EXPECT_EQ(inside, 2);
}

TEST(ThreadPoolTest, ALoopWithinALoopRunsOnItsThread) {
  ThreadPool pool(3);
  std::atomic<int> calls = 0;
  pool.ParallelFor(4, [&](int64_t) {
    const auto outer = std::this_thread::get_id();
    pool.ParallelFor(5, [&](int64_t) {
      EXPECT_EQ(std::this_thread::get_id(), outer);
      ++calls;
    });
  });
  EXPECT_EQ(calls, 20);
}

TEST(ThreadPoolTest, SeveralCallersAtATime) {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  std::atomic<int64_t> sum = 0;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        pool.ParallelFor(8, [&](int64_t i) { sum += i; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 4 * 300 * 28);
}

TEST(ThreadPoolTest, IdleThreadsSleep) {
  ThreadPool pool(8);
  pool.ParallelFor(100, [](int64_t) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.05);
}

}  // namespace
}  // namespace retroinfer
