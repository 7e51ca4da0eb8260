#include "gpu_worker/scheduler/request_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <span>

namespace retroinfer {
namespace {

using ::testing::ElementsAre;

class RequestOrderTest : public testing::Test {
 protected:
  RequestOrderTest() {
    input_.now = 100;
    input_.weights = {1, 1};
    constexpr bool kWants[] = {true, true};
    shares_.Update(input_.weights, kWants);
  }
  RequestDescription& Add(uint64_t id, int64_t prompt_tokens) {
    input_.requests.push_back({.id = id,
                               .phase = RequestPhase::kWaiting,
                               .arrival = 100,
                               .prompt_tokens = prompt_tokens,
                               .takes_in_order = true});
    return input_.requests.back();
  }
  RequestOrder NewOrder() {
    levels_.Update(input_);
    return RequestOrder(input_, levels_, shares_, times_, preempting_);
  }
  static std::vector<uint64_t> All(RequestOrder order) {
    std::vector<uint64_t> ids;
    while (const auto* const next = order.Next([](const auto&) { return true; })) {
      ids.push_back(next->id);
    }
    return ids;
  }

  const SchedulerOptions options_{.num_layers = 4, .max_rows = 1024, .max_batch = 4};
  CostModel costs_;
  TenantShares shares_;
  PriorityLevels levels_;
  const TimeEstimates times_{options_, costs_};
  PreemptingRequests preempting_{shares_};
  SchedulerInput input_;
};

TEST_F(RequestOrderTest, TheLeastToReadIsFirstAndASuspendedRequestHasNothingToRead) {
  Add(1, 4000);
  Add(2, 200);
  Add(3, 100000).phase = RequestPhase::kSuspended;
  Add(4, 10).phase = RequestPhase::kDecoding;
  Add(5, 100).phase = RequestPhase::kReady;
  EXPECT_THAT(All(NewOrder()), ElementsAre(3, 5, 2, 1));
}

TEST_F(RequestOrderTest, LevelsComeFirstAndPreemptingRequestsBeforeAllLevels) {
  Add(1, 4000);
  Add(2, 200).priority = 1;
  Add(3, 8000).priority = 2;
  EXPECT_THAT(All(NewOrder()), ElementsAre(1, 2, 3));
  preempting_.Add(input_.requests[2], input_.now);
  EXPECT_THAT(All(NewOrder()), ElementsAre(3, 1, 2));
}

TEST_F(RequestOrderTest, WaitingMovesUpToTheHighestPriorityThereIs) {
  Add(1, 4000).priority = 2;
  Add(2, 200).priority = 3;
  input_.requests[1].arrival = input_.now - 5 * PriorityLevels::kLevelSeconds;
  EXPECT_EQ(levels_.LevelOf(3, 0), 3);
  EXPECT_THAT(All(NewOrder()), ElementsAre(2, 1));
  EXPECT_EQ(levels_.LevelOf(3, 5 * PriorityLevels::kLevelSeconds), 2) << "and no further";
}

TEST_F(RequestOrderTest, TenantsTakeTurnsByWhatWasChosenForThem) {
  Add(1, 1000);
  Add(2, 2000);
  Add(3, 5000).tenant = 1;
  RequestOrder order = NewOrder();
  const auto any = [](const auto&) { return true; };
  const RequestDescription* const first = order.Next(any);
  EXPECT_EQ(first->id, 1u);
  order.Charge(*first);
  EXPECT_EQ(order.Next(any)->id, 3u) << "the other tenant got nothing yet";
}

TEST_F(RequestOrderTest, OnePutBackIsChosenAgain) {
  Add(1, 1000);
  Add(2, 2000);
  RequestOrder order = NewOrder();
  const auto is_first = [](const RequestDescription& request) { return request.id == 1; };
  const RequestDescription* const first = order.Next(is_first);
  EXPECT_EQ(order.Next(is_first), nullptr);
  order.PutBack(*first);
  EXPECT_EQ(order.Next(is_first), first);
}

// Whatever is chosen, accepted, charged and put back meanwhile.
TEST_F(RequestOrderTest, InOrderTheSameIsChosenAsWhenEachIsAsked) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    const auto num_tenants = static_cast<uint32_t>(1 + random() % 5);
    input_.requests.clear();
    input_.weights.assign(num_tenants, 1.0);
    input_.weights[0] = 2;
    const auto wants = std::make_unique<bool[]>(num_tenants);
    shares_.Update(input_.weights, std::span<const bool>(wants.get(), num_tenants));
    for (uint64_t id = 1; id <= 1 + random() % 60; ++id) {
      RequestDescription& request = Add(id, static_cast<int64_t>(100 * (1 + random() % 4)));
      request.tenant = static_cast<uint32_t>(random() % num_tenants);
      request.priority = static_cast<int32_t>(random() % 3);
      request.arrival = input_.now - static_cast<double>(random() % 3) * 7;
      if (random() % 8 == 0) request.phase = RequestPhase::kSuspended;
    }
    RequestOrder asked = NewOrder(), in_order = NewOrder();
    const uint64_t divisor = 1 + random() % 20;
    for (int choice = 0; choice < 70; ++choice) {
      const uint64_t remainder = random() % divisor;
      const auto may = [&](const RequestDescription& one) { return one.id % divisor == remainder; };
      const RequestDescription* const next = asked.Next(may);
      ASSERT_EQ(in_order.NextInOrder(may), next) << round << ", " << choice;
      if (next == nullptr) continue;
      if (random() % 2 == 0) {
        asked.Charge(*next);
        in_order.Charge(*next);
      }
      if (random() % 4 == 0) {
        asked.PutBack(*next);
        in_order.PutBack(*next);
      }
    }
  }
}

TEST_F(RequestOrderTest, InOrderNoMoreAreAskedThanAreChosenOrPassedOver) {
  for (uint64_t id = 1; id <= 1000; ++id) Add(id, 100).tenant = static_cast<uint32_t>(id % 2);
  RequestOrder order = NewOrder();
  int num_asked = 0;
  for (uint64_t choice = 0; choice < 32; ++choice) {
    const auto* const next = order.NextInOrder([&](const RequestDescription& one) {
      ++num_asked;
      return one.id > 3;
    });
    ASSERT_NE(next, nullptr);
    EXPECT_EQ(next->id, choice + 4);
  }
  EXPECT_EQ(num_asked, 32 * 4);
}

}  // namespace
}  // namespace retroinfer
