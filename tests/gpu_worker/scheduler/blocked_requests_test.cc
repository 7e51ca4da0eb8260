#include "gpu_worker/scheduler/blocked_requests.h"

#include <gtest/gtest.h>

#include "gpu_worker/scheduler/priority_levels.h"

namespace retroinfer {
namespace {

constexpr double kPatience = BlockedRequests::kPatience;

class BlockedRequestsTest : public testing::Test {
 protected:
  BlockedRequestsTest() { input_.now = 100; }
  RequestDescription& Add(uint64_t id, RequestPhase phase = RequestPhase::kWaiting) {
    input_.requests.push_back({.id = id, .phase = phase, .arrival = 90, .dense_blocks = 10});
    return input_.requests.back();
  }
  uint64_t Head() const {
    const RequestDescription* const head = blocked_.HeadOfLine(input_);
    return head == nullptr ? 0 : head->id;
  }
  uint64_t HeadForArena() const {
    const RequestDescription* const head = blocked_.HeadOfLineForArena(input_);
    return head == nullptr ? 0 : head->id;
  }

  TenantShares shares_;
  PreemptingRequests preempting_{shares_};
  BlockedRequests blocked_{preempting_};
  SchedulerInput input_;
};

TEST_F(BlockedRequestsTest, TheOneBlockedLongestIsTheHeadOnceItsPatienceIsOver) {
  Add(1);
  Add(2);
  blocked_.Block(input_, input_.requests[1], /*is_head=*/false);
  input_.now += 1;
  blocked_.Block(input_, input_.requests[0], /*is_head=*/false);
  EXPECT_EQ(Head(), 0u);
  input_.now = 100 + kPatience;
  EXPECT_EQ(Head(), 2u);
  input_.requests[1].phase = RequestPhase::kReady;
  blocked_.Update(input_);
  EXPECT_EQ(Head(), 0u) << "it was admitted, and the other is patient yet";
}

TEST_F(BlockedRequestsTest, ASuspendedRequestIsAsOldAsItsArrival) {
  Add(1);
  blocked_.Block(input_, input_.requests[0], /*is_head=*/false);
  input_.now += 1;
  Add(2, RequestPhase::kSuspended);
  blocked_.Block(input_, input_.requests[1], /*is_head=*/false);
  input_.now += kPatience;
  EXPECT_EQ(Head(), 2u);
}

TEST_F(BlockedRequestsTest, APreemptingRequestIsTheHeadAtOnce) {
  Add(1);
  Add(2);
  blocked_.Block(input_, input_.requests[0], /*is_head=*/false);
  preempting_.Add(input_.requests[1], input_.now);
  EXPECT_EQ(Head(), 2u);
}

TEST_F(BlockedRequestsTest, OneBlockedOnTheArenaIsSkippedWhileOthersAreSuspended) {
  Add(1).arena_is_full = true;
  blocked_.Block(input_, input_.requests[0], /*is_head=*/false);
  input_.now += kPatience;
  EXPECT_EQ(Head(), 1u);
  EXPECT_EQ(HeadForArena(), 1u);
  Add(2, RequestPhase::kSuspended);
  EXPECT_EQ(Head(), 0u);
  EXPECT_EQ(HeadForArena(), 1u) << "pages are reserved all the same";
}

TEST_F(BlockedRequestsTest, PatienceDoesNotBeginAnewWithEachQuestionToTheStore) {
  Add(1).arena_is_full = true;
  blocked_.Block(input_, input_.requests[0], /*is_head=*/false);
  input_.now += kPatience;
  input_.requests[0].phase = RequestPhase::kReserving;
  input_.requests[0].arena_is_full = false;
  blocked_.Update(input_);
  EXPECT_EQ(HeadForArena(), 1u);
}

TEST_F(BlockedRequestsTest, AReservationWaitsForTheEndsOfThoseThatHeldMemoryBefore) {
  Add(1);
  Add(2, RequestPhase::kDecoding).length_is_known = true;
  blocked_.Block(input_, input_.requests[0], /*is_head=*/false);
  EXPECT_FALSE(blocked_.WasHeadOfLine(input_.requests[0]));
  blocked_.Block(input_, input_.requests[0], /*is_head=*/true);
  EXPECT_TRUE(blocked_.WasHeadOfLine(input_.requests[0]));
  // A request that begins later, and would end first, is none of those.
  Add(3, RequestPhase::kDecoding).length_is_known = true;
  input_.requests[1].tokens_left = 1000;
  input_.requests[2].tokens_left = 10;
  OutputLengths lengths;
  lengths.Update(input_);
  MemoryBank bank(input_, lengths);
  EXPECT_EQ(blocked_.ReserveFor(input_.requests[0], bank), 1u);
  const RequestDescription newcomer{.id = 4, .phase = RequestPhase::kWaiting, .dense_blocks = 10};
  MemoryBank after_newer = bank;
  after_newer.End(3);
  EXPECT_TRUE(after_newer.MayBegin(newcomer)) << "the head of line gets what the older one holds";
  bank.End(2);
  EXPECT_FALSE(bank.MayBegin(newcomer)) << "these blocks are reserved";
}

TEST_F(BlockedRequestsTest, AHigherClassOvertakesUntilAgeingHasMadeUpForIt) {
  Add(1).priority = 2;
  blocked_.Block(input_, input_.requests[0], /*is_head=*/false);
  const RequestDescription high{.id = 2, .priority = 0};
  const RequestDescription equal{.id = 3, .priority = 2};
  const double end = input_.now + kPatience + 2 * PriorityLevels::kLevelSeconds;
  EXPECT_TRUE(blocked_.MayOvertake(high, input_.requests[0], end - 0.1));
  EXPECT_FALSE(blocked_.MayOvertake(high, input_.requests[0], end));
  EXPECT_FALSE(blocked_.MayOvertake(equal, input_.requests[0], input_.now));
}

}  // namespace
}  // namespace retroinfer
