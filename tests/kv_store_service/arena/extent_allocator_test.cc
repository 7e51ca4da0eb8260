#include "kv_store_service/arena/extent_allocator.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/kv_store_service/random_seed.h"

namespace retroinfer::kvstore {
namespace {

TEST(ExtentAllocatorTest, TakesTheSmallestRunThatFits) {
  ExtentAllocator allocator(100);
  const PageRun a = *allocator.Allocate(10);
  const PageRun b = *allocator.Allocate(5);
  const PageRun c = *allocator.Allocate(20);
  EXPECT_EQ(a, (PageRun{0, 10}));
  EXPECT_EQ(b, (PageRun{10, 5}));
  EXPECT_EQ(c, (PageRun{15, 20}));
  allocator.Free(a);
  EXPECT_EQ(*allocator.Allocate(7), (PageRun{0, 7}));  // not behind c
  EXPECT_EQ(*allocator.Allocate(4), (PageRun{35, 4}));
  EXPECT_EQ(allocator.free_pages(), 64u);
  EXPECT_EQ(allocator.largest_free(), 61u);
  EXPECT_FALSE(allocator.Allocate(62).has_value());
}

TEST(ExtentAllocatorTest, MergesNeighboursOnBothSides) {
  ExtentAllocator allocator(30);
  for (int i = 0; i < 3; ++i) allocator.Allocate(10);
  EXPECT_EQ(allocator.largest_free(), 0u);
  allocator.Free({0, 10});
  allocator.Free({20, 10});
  EXPECT_EQ(allocator.largest_free(), 10u);
  allocator.Free({10, 10});
  EXPECT_EQ(allocator.largest_free(), 30u);
}

TEST(ExtentAllocatorTest, FreesTheTailOfAnAllocation) {
  ExtentAllocator allocator(20);
  allocator.Allocate(20);
  allocator.Free({15, 5});
  EXPECT_EQ(*allocator.Allocate(5), (PageRun{15, 5}));
}

TEST(ExtentAllocatorTest, TakesExactlyTheGivenPagesOrNone) {
  ExtentAllocator allocator(100);
  EXPECT_TRUE(allocator.Take({10, 10}).ok());
  EXPECT_TRUE(allocator.Take({0, 10}).ok());
  EXPECT_TRUE(allocator.Take({90, 10}).ok());
  EXPECT_EQ(allocator.Take({19, 2}).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(allocator.Take({85, 6}).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(allocator.Take({50, 0}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(allocator.Take({95, 6}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(allocator.Take({UINT32_MAX, UINT32_MAX}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(allocator.free_pages(), 70u);
}

TEST(ExtentAllocatorTest, AnEmptyArenaHasNothing) {
  ExtentAllocator allocator(0);
  EXPECT_FALSE(allocator.Allocate(1).has_value());
  EXPECT_FALSE(allocator.Take({0, 1}).ok());
}

TEST(ExtentAllocatorDeathTest, RefusesToFreeWhatIsFree) {
  ExtentAllocator allocator(20);
  allocator.Allocate(10);
  allocator.Free({2, 3});
  EXPECT_DEATH(allocator.Free({4, 2}), "check failed");
  EXPECT_DEATH(allocator.Free({15, 1}), "check failed");
}

// One bit per page; everything by search.
class NaiveAllocator {
 public:
  explicit NaiveAllocator(uint32_t num_pages) : taken_(num_pages) {}

  std::vector<PageRun> FreeRuns() const {
    std::vector<PageRun> runs;
    for (uint32_t page = 0; page < taken_.size(); ++page) {
      if (taken_[page]) continue;
      if (runs.empty() || runs.back().end() != page) runs.push_back({page, 0});
      ++runs.back().count;
    }
    return runs;
  }
  std::optional<PageRun> Allocate(uint32_t count) {
    std::optional<PageRun> best;
    for (const PageRun& run : FreeRuns()) {
      if (run.count >= count && (!best.has_value() || run.count < best->count)) best = run;
    }
    if (!best.has_value()) return std::nullopt;
    Set({best->first, count}, true);
    return PageRun{best->first, count};
  }
  bool Take(PageRun run) {
    for (uint64_t page = run.first; page < run.end(); ++page) {
      if (taken_[page]) return false;
    }
    Set(run, true);
    return true;
  }
  void Set(PageRun run, bool taken) {
    for (uint64_t page = run.first; page < run.end(); ++page) taken_[page] = taken;
  }

 private:
  std::vector<bool> taken_;
};

TEST(ExtentAllocatorTest, EqualsANaiveAllocatorOverRandomOperations) {
  std::mt19937_64 random(TestSeed());
  const auto below = [&](uint64_t n) { return static_cast<uint32_t>(random() % n); };
  constexpr uint32_t kPages = 300;
  ExtentAllocator allocator(kPages);
  NaiveAllocator naive(kPages);
  std::vector<PageRun> held;
  for (int i = 0; i < 20'000; ++i) {
    const uint32_t operation = below(10);
    if (operation < 4) {
      const uint32_t count = 1 + below(below(8) == 0 ? 120 : 20);
      const auto run = allocator.Allocate(count);
      ASSERT_EQ(run, naive.Allocate(count)) << i;
      if (run.has_value()) held.push_back(*run);
    } else if (operation < 5) {
      const PageRun run{below(kPages - 20), 1 + below(20)};
      const bool taken = allocator.Take(run).ok();
      ASSERT_EQ(taken, naive.Take(run)) << i;
      if (taken) held.push_back(run);
    } else if (!held.empty()) {
      PageRun& run = held[below(held.size())];
      if (operation == 5 && run.count > 1) {
        const PageRun tail{run.first + run.count / 2, run.count - run.count / 2};
        run.count /= 2;
        allocator.Free(tail);
        naive.Set(tail, false);
      } else {
        allocator.Free(run);
        naive.Set(run, false);
        run = held.back();
        held.pop_back();
      }
    }
    uint64_t free_pages = 0;
    uint32_t largest = 0;
    for (const PageRun& run : naive.FreeRuns()) {
      free_pages += run.count;
      largest = std::max(largest, run.count);
    }
    ASSERT_EQ(allocator.free_pages(), free_pages) << i;
    ASSERT_EQ(allocator.largest_free(), largest) << i;
  }
}

}  // namespace
}  // namespace retroinfer::kvstore
