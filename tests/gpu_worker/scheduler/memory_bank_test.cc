#include "gpu_worker/scheduler/memory_bank.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <span>

namespace retroinfer {
namespace {

RequestDescription Holder(uint64_t id, int32_t held, int32_t more, int32_t asked = 0) {
  return {.id = id,
          .phase = RequestPhase::kDecoding,
          .dense_blocks = held,
          .more_dense_blocks = more,
          .asked_dense_blocks = asked};
}
RequestDescription Newcomer(uint64_t id, int32_t first, int32_t more) {
  return {.id = id, .dense_blocks = first, .more_dense_blocks = more};
}
// Of a kind that generates next to nothing: a block is expected of it, if it may need any.
RequestDescription Short(RequestDescription request) {
  request.tokens_left = 1000;
  return request;
}

class MemoryBankTest : public testing::Test {
 protected:
  MemoryBankTest() {
    SchedulerInput input;
    input.weights = {1};
    for (uint64_t id = 1; id <= 10; ++id) {
      input.requests = {Short(Holder(id, 1, 1))};
      lengths_.Update(input);
      input.requests.clear();
      lengths_.Update(input);
    }
  }

  MemoryBank Bank(int64_t free_dense, std::vector<RequestDescription> requests,
                  int64_t free_meta = 0) {
    SchedulerInput input;
    input.free_dense_blocks = free_dense;
    input.free_meta_blocks = free_meta;
    input.requests = std::move(requests);
    return MemoryBank(input, lengths_);
  }
  OutputLengths lengths_;
};

TEST_F(MemoryBankTest, OneGrowsWhereAnotherOneCanStillEnd) {
  // 10 blocks. The first one may need 6 more, the second one 4 more; 5 are free.
  const RequestDescription first = Holder(1, 2, 6, 1);
  RequestDescription second = Holder(2, 3, 4, 1);
  const MemoryBank bank = Bank(5, {first, second});
  // With one for the first one the second one gets its 4, ends, and gives back 7.
  EXPECT_TRUE(bank.MayGrow(first));
  EXPECT_TRUE(bank.MayGrow(second));
  // With two, nobody could end.
  EXPECT_FALSE(Bank(5, {Holder(1, 2, 6, 2), second}).MayGrow(Holder(1, 2, 6, 2)));
  second.asked_dense_blocks = 4;
  EXPECT_TRUE(Bank(5, {first, second}).MayGrow(second));
}

TEST_F(MemoryBankTest, NobodyGetsWhatIsNotFree) {
  EXPECT_FALSE(Bank(2, {Holder(1, 2, 3, 3)}).MayGrow(Holder(1, 2, 3, 3)));
  EXPECT_FALSE(Bank(2, {}).MayBegin(Newcomer(1, 3, 0)));
  EXPECT_TRUE(Bank(3, {}).MayBegin(Newcomer(1, 3, 0)));
  // Nor one whom the bank does not know.
  EXPECT_FALSE(Bank(5, {}).MayGrow(Holder(1, 2, 3, 3)));
}

TEST_F(MemoryBankTest, EveryKindOfMemoryCounts) {
  RequestDescription holder = Holder(1, 5, 1, 1);
  holder.more_meta_blocks = 3;
  EXPECT_FALSE(Bank(1, {holder}, 2).MayGrow(holder));
  EXPECT_TRUE(Bank(1, {holder}, 3).MayGrow(holder));
  // What it lacks comes from one that needs other memory.
  RequestDescription other = Holder(2, 0, 0);
  other.meta_blocks = 1;
  EXPECT_TRUE(Bank(1, {holder, other}, 2).MayGrow(holder));
}

TEST_F(MemoryBankTest, ANewcomerMustBeAbleToEndAndTakeTheEndFromNobody) {
  const RequestDescription holder = Short(Holder(1, 4, 4));
  // 10 blocks, 6 free, of which the holder may need 4.
  EXPECT_TRUE(Bank(6, {holder}).MayBegin(Short(Newcomer(2, 2, 8))));
  EXPECT_FALSE(Bank(6, {holder}).MayBegin(Short(Newcomer(2, 3, 7))));
  EXPECT_TRUE(Bank(6, {holder}).MayBegin(Short(Newcomer(2, 3, 2))));
  EXPECT_FALSE(Bank(6, {holder}).MayBegin(Short(Newcomer(2, 2, 9))));
}

TEST_F(MemoryBankTest, NobodyBeginsWhoIsExpectedToWaitHalfWay) {
  // Nothing was learned: all will be needed.
  EXPECT_FALSE(Bank(6, {Holder(1, 4, 4)}).MayBegin(Newcomer(2, 1, 2)));
  EXPECT_TRUE(Bank(6, {Holder(1, 4, 4)}).MayBegin(Newcomer(2, 1, 1)));
  EXPECT_TRUE(Bank(6, {Holder(1, 4, 4)}).MayBegin(Newcomer(2, 0, 0)));
}

TEST_F(MemoryBankTest, WhoLeavesNeedsNoMore) {
  const RequestDescription holder = Holder(1, 4, 4);
  MemoryBank bank = Bank(6, {holder});
  bank.Suspend(1);
  EXPECT_FALSE(bank.MayBegin(Newcomer(2, 7, 0)));
  EXPECT_TRUE(bank.MayBegin(Newcomer(2, 6, 0)));
  bank.End(1);
  EXPECT_TRUE(bank.MayBegin(Newcomer(2, 7, 3)));
}

// --- What is kept for one that waits

bool Anyone(uint64_t) { return true; }
bool Nobody(uint64_t) { return false; }

TEST_F(MemoryBankTest, WhoTakesNothingOfWhatIsKeptBegins) {
  RequestDescription holder = Holder(1, 4, 0);
  holder.meta_blocks = 3;
  RequestDescription waiting = Newcomer(2, 2, 0);
  waiting.more_meta_blocks = 5;
  MemoryBank bank = Bank(6, {holder}, 2);
  EXPECT_EQ(bank.ReserveFor(waiting, Nobody, false), 0u);
  RequestDescription other = Newcomer(3, 2, 2);
  EXPECT_TRUE(bank.MayBegin(other));
  other.meta_blocks = 1;
  EXPECT_FALSE(bank.MayBegin(other)) << "it lacks 3 of them whoever ends";
  EXPECT_FALSE(bank.MayBegin(Newcomer(3, 2, 3))) << "2 of the 6 are its own";
  EXPECT_TRUE(bank.MayBegin(Newcomer(3, 0, 0)));
}

TEST_F(MemoryBankTest, WhatIsKeptIsWhatTheFirstOnesLeave) {
  RequestDescription late = Holder(1, 10, 0), soon = Holder(2, 4, 0);
  late.tokens_left = 2000;
  soon.tokens_left = 1500;
  MemoryBank bank = Bank(5, {late, soon});
  EXPECT_EQ(bank.ReserveFor(Newcomer(3, 8, 0), Anyone, false), 1u);
  EXPECT_TRUE(bank.MayBegin(Newcomer(4, 1, 0)));
  EXPECT_FALSE(bank.MayBegin(Newcomer(4, 2, 0)));
  bank.Begin(Newcomer(4, 1, 0));
  EXPECT_FALSE(bank.MayBegin(Newcomer(5, 1, 0)));
  // One that needs what both leave.
  MemoryBank for_both = Bank(5, {late, soon});
  EXPECT_EQ(for_both.ReserveFor(Newcomer(3, 15, 0), Anyone, false), 2u);
  EXPECT_TRUE(for_both.MayBegin(Newcomer(4, 2, 2)));
  EXPECT_FALSE(for_both.MayBegin(Newcomer(4, 2, 3)));
  // One that needs nothing of theirs leaves no more than it did.
  MemoryBank for_neither = Bank(5, {late, soon});
  EXPECT_EQ(for_neither.ReserveFor(Newcomer(3, 3, 0), Anyone, false), 0u);
  EXPECT_TRUE(for_neither.MayBegin(Newcomer(4, 2, 0)));
  EXPECT_FALSE(for_neither.MayBegin(Newcomer(4, 3, 0)));
}

TEST_F(MemoryBankTest, WhoWaitsForExtentsWaitsForOneThatHasSome) {
  RequestDescription late = Holder(1, 10, 0), soon = Holder(2, 1, 0);
  late.tokens_left = 2000;
  soon.tokens_left = 1500;
  late.wants_extents = true;
  MemoryBank bank = Bank(5, {late, soon});
  EXPECT_EQ(bank.ReserveFor(Newcomer(3, 4, 0), Anyone, true), 2u);
  EXPECT_TRUE(bank.MayBegin(Newcomer(4, 5, 0)));
}

TEST_F(MemoryBankTest, WhoHasPassedAndTookMoreIsNotWaitedFor) {
  const RequestDescription there = Holder(1, 4, 0), passed = Holder(2, 8, 0);
  MemoryBank bank = Bank(3, {there, passed});
  const auto was_there = [](uint64_t id) { return id == 1; };
  EXPECT_EQ(bank.ReserveFor(Newcomer(3, 8, 0), was_there, false), 1u);
  EXPECT_FALSE(bank.MayBegin(Newcomer(4, 1, 0)));
  bank.End(2);
  EXPECT_TRUE(bank.MayBegin(Newcomer(4, 1, 0))) << "15 in all";
}

// Whoever is let in beside one that waits, of either kind of memory: when those have ended that it
// waits for, it begins.
TEST_F(MemoryBankTest, ACrowdThatOvertakesLeavesTheReservation) {
  int64_t num_passed = 0, num_kept = 0;
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    std::mt19937_64 random(seed);
    const auto draw = [&random](int32_t below) {
      return static_cast<int32_t>(random() % static_cast<uint64_t>(below));
    };
    const auto newcomer = [&](uint64_t id) {
      RequestDescription one = Newcomer(id, draw(5), draw(8));
      one.meta_blocks = draw(2) * draw(5);
      one.more_meta_blocks = draw(2) * draw(8);
      one.tokens_left = 1000 + draw(1000);
      return one;
    };
    std::vector<RequestDescription> holders;
    for (uint64_t id = 1; id <= 4; ++id) {
      holders.push_back(newcomer(id));
      holders.back().phase = RequestPhase::kDecoding;
      holders.back().wants_extents = draw(2) == 0;
    }
    MemoryBank bank = Bank(draw(30), holders, draw(30));
    MemoryBank without = bank;  // that keeps nothing
    RequestDescription waiting = newcomer(99);
    waiting.dense_blocks += draw(20);
    const size_t num_ends = bank.ReserveFor(waiting, Anyone, draw(2) == 0);
    std::stable_sort(holders.begin(), holders.end(), [&](const auto& one, const auto& other) {
      return lengths_.Expected(one) < lengths_.Expected(other);
    });
    const auto ends = std::span(holders).first(num_ends);
    MemoryBank alone = without;
    for (const RequestDescription& holder : ends) alone.End(holder.id);
    for (uint64_t id = 100; id < 120; ++id) {
      const RequestDescription one = newcomer(id);
      if (!bank.MayBegin(one)) continue;
      bank.Begin(one);
      without.Begin(one);
      ++num_passed;
    }
    for (const RequestDescription& holder : ends) without.End(holder.id);
    EXPECT_EQ(without.MayBegin(waiting), alone.MayBegin(waiting)) << "seed " << seed;
    num_kept += without.MayBegin(waiting);
  }
  EXPECT_GT(num_passed, 200);
  EXPECT_GT(num_kept, 100);
}

// Blocks that two share are told of neither, so what is told may seem unsafe: whoever can end still
// gets what he needs.
TEST_F(MemoryBankTest, ARequestThatCanEndGetsItsMemoryBesideOneThatCannot) {
  const RequestDescription stuck = Holder(1, 1, 50, 1);
  const RequestDescription other = Holder(2, 1, 2, 1);
  const MemoryBank bank = Bank(2, {stuck, other});
  EXPECT_TRUE(bank.MayGrow(other));
  EXPECT_FALSE(bank.MayGrow(stuck));
}

// Whether all can end, by trying every order.
bool CanAllEnd(std::vector<RequestDescription> holders, int64_t free) {
  std::vector<size_t> order(holders.size());
  std::iota(order.begin(), order.end(), size_t{0});
  do {
    int64_t left = free;
    bool works = true;
    for (const size_t i : order) {
      works &= holders[i].more_dense_blocks <= left;
      left += holders[i].dense_blocks;
    }
    if (works) return true;
  } while (std::next_permutation(order.begin(), order.end()));
  return false;
}

// A crowd that asks for what it likes: after each gift there is an order in which all can end, what
// was refused would have left none, and everybody ends.
TEST_F(MemoryBankTest, ACrowdNeverGetsStuck) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    std::mt19937_64 random(seed);
    const int64_t total = 10 + static_cast<int64_t>(random() % 30);
    std::vector<RequestDescription> holders;
    int64_t free = total;
    int to_come = 12;
    for (uint64_t turn = 0; to_come > 0 || !holders.empty(); ++turn) {
      ASSERT_LT(turn, 20000u) << "seed " << seed;
      if (to_come > 0 && holders.size() < 6 && random() % 3 == 0) {
        const auto first = static_cast<int32_t>(1 + random() % 4);
        const auto more = static_cast<int32_t>(random() % static_cast<uint64_t>(total - first + 1));
        RequestDescription newcomer = Short(Newcomer(100 + turn, first, more));
        if (Bank(free, holders).MayBegin(newcomer)) {
          newcomer.phase = RequestPhase::kDecoding;
          holders.push_back(newcomer);
          free -= first;
          --to_come;
          ASSERT_TRUE(CanAllEnd(holders, free)) << "seed " << seed;
        }
      }
      if (holders.empty()) continue;
      RequestDescription& one = holders[random() % holders.size()];
      if (one.more_dense_blocks == 0) {
        free += one.dense_blocks;
        holders.erase(holders.begin() + (&one - holders.data()));
        continue;
      }
      const auto most = static_cast<uint64_t>(std::min(one.more_dense_blocks, 3));
      const auto asked = static_cast<int32_t>(1 + random() % most);
      one.asked_dense_blocks = asked;
      const bool is_given = Bank(free, holders).MayGrow(one);
      std::vector<RequestDescription> after = holders;
      RequestDescription& grown = after[static_cast<size_t>(&one - holders.data())];
      grown.dense_blocks += asked;
      grown.more_dense_blocks -= asked;
      const bool is_right = asked <= free && CanAllEnd(after, free - asked);
      ASSERT_EQ(is_given, is_right) << "seed " << seed;
      if (!is_given) continue;
      holders = after;
      free -= asked;
    }
    EXPECT_EQ(free, total);
  }
}

}  // namespace
}  // namespace retroinfer
