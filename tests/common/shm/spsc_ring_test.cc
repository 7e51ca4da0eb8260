#include "common/shm/spsc_ring.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

namespace retroinfer {
namespace {

class SpscRingTest : public testing::Test {
 protected:
  RingCursor head_{};
  RingCursor tail_{};
  std::array<uint64_t, 8> entries_{};
  SpscRing<uint64_t> ring_{&head_, &tail_, entries_};
};

TEST_F(SpscRingTest, FillsEmptiesAndWrapsAround) {
  std::array<uint64_t, 8> out{};
  for (uint64_t round = 0; round < 5; ++round) {
    for (uint64_t i = 0; i < 8; ++i) EXPECT_TRUE(ring_.TryPush(round * 8 + i));
    EXPECT_FALSE(ring_.TryPush(99));
    ASSERT_EQ(*ring_.Pop(std::span(out).first(3)), 3u);
    EXPECT_EQ(out[2], round * 8 + 2);
    ASSERT_EQ(*ring_.Pop(out), 5u);
    EXPECT_EQ(out[4], round * 8 + 7);
    EXPECT_EQ(*ring_.Pop(out), 0u);
  }
}

TEST_F(SpscRingTest, ShowsEntriesWhereTheyLieUntilTheyAreDropped) {
  std::array<uint64_t, 8> out{};
  for (uint64_t i = 0; i < 6; ++i) EXPECT_TRUE(ring_.TryPush(i));
  ASSERT_EQ(*ring_.Pop(std::span(out).first(5)), 5u);
  for (uint64_t i = 6; i < 11; ++i) EXPECT_TRUE(ring_.TryPush(i));
  for (int i = 0; i < 2; ++i) {
    const auto parts = ring_.Peek(4);
    ASSERT_TRUE(parts.ok());
    EXPECT_EQ(parts->size(), 4u);
    EXPECT_EQ(std::vector(parts->first.begin(), parts->first.end()),
              (std::vector<uint64_t>{5, 6, 7}));
    EXPECT_EQ(std::vector(parts->second.begin(), parts->second.end()), std::vector<uint64_t>{8});
    EXPECT_EQ(ring_.FreeEntries(), 2u);
  }
  ring_.Drop(4);
  EXPECT_EQ(ring_.FreeEntries(), 6u);
  EXPECT_EQ(ring_.Peek(100)->size(), 2u);
  EXPECT_EQ(ring_.Peek(100)->first[0], 9u);
  EXPECT_EQ(ring_.Peek(0)->size(), 0u);
}

TEST_F(SpscRingTest, ConsumerRefusesAnImpossibleCursor) {
  head_.value = 9;
  std::array<uint64_t, 8> out{};
  EXPECT_EQ(ring_.Peek(1).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ring_.Pop(out).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(SpscRingTest, ProducerTreatsAnImpossibleCursorAsFull) {
  tail_.value = 1000;
  EXPECT_EQ(ring_.FreeEntries(), 0u);
  EXPECT_FALSE(ring_.TryPush(1));
}

TEST_F(SpscRingTest, TwoThreadsSeeEveryEntryInOrder) {
  constexpr uint64_t kCount = 100'000;
  std::thread producer([&] {
    for (uint64_t i = 0; i < kCount;) {
      if (ring_.TryPush(i))
        ++i;
      else
        std::this_thread::yield();
    }
  });
  std::array<uint64_t, 8> out{};
  uint64_t expected = 0;
  while (expected < kCount) {
    const size_t count = *ring_.Pop(out);
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(out[i], expected++);
    if (count == 0) std::this_thread::yield();
  }
  producer.join();
}

}  // namespace
}  // namespace retroinfer
