#include "kv_store_service/data_plane/data_plane_server.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <random>
#include <thread>

#include "tests/kv_store_service/random_seed.h"

namespace retroinfer::kvstore {
namespace {

constexpr uint32_t kSlots = 40;
constexpr uint32_t kPages = 500;

LogEntry Entry(LogKind kind, PageId page, SlotId slot) {
  return {static_cast<uint32_t>(kind), page, slot, 0};
}

class DataPlaneServerTest : public testing::Test {
 protected:
  DataPlaneServerTest()
      : header_(MakeDataPlaneHeader(kSlots, 128, 64, kPages)),
        memory_(Allocate(header_.total_bytes)),
        plane_(DataPlane::Format(memory_, header_)) {}
  ~DataPlaneServerTest() override { ::operator delete (memory_.data(), std::align_val_t{4096}); }

  static std::span<std::byte> Allocate(size_t bytes) {
    auto* data = static_cast<std::byte*>(::operator new (bytes, std::align_val_t{4096}));
    std::memset(data, 0, bytes);
    return {data, bytes};
  }
  DataPlaneControl& control() { return *reinterpret_cast<DataPlaneControl*>(memory_.data()); }
  void PublishStamps() {
    control().stamps.published.value.store(control().stamps.requested.value.load());
  }

  DataPlaneHeader header_;
  std::span<std::byte> memory_;
  DataPlane plane_;
  DataPlaneServer::Options options_{.watermarks = {0.25, 0.5}};
};

TEST_F(DataPlaneServerTest, ReplaysTheLog) {
  DataPlaneServer server(plane_, options_);
  EXPECT_FALSE(server.RunOnce());
  plane_.log().TryPush(Entry(LogKind::kAdmit, 10, 1));
  plane_.log().TryPush(Entry(LogKind::kAdmit, 11, 2));
  plane_.log().TryPush(Entry(LogKind::kRelease, 10, 1));
  EXPECT_TRUE(server.RunOnce());
  EXPECT_EQ(server.table().SlotOf(11), 2u);
  EXPECT_EQ(server.stats().used_slots, 1u);
  EXPECT_EQ(server.stats().entries_replayed, 3u);
  EXPECT_FALSE(server.RunOnce());
}

TEST_F(DataPlaneServerTest, EvictsOnlyWithFreshStampsAndNeverTwice) {
  DataPlaneServer server(plane_, options_);
  for (uint32_t slot = 0; slot < 32; ++slot) {
    plane_.log().TryPush(Entry(LogKind::kAdmit, 100 + slot, slot));
  }
  plane_.worker_step() = 1000;
  EXPECT_TRUE(server.RunOnce());  // asks for stamps
  EXPECT_EQ(control().stamps.requested.value, 1u);
  EXPECT_FALSE(server.RunOnce());  // waits
  for (uint32_t slot = 0; slot < kSlots; ++slot) plane_.stamps()[slot] = 1000 - slot;
  PublishStamps();
  EXPECT_TRUE(server.RunOnce());
  std::vector<EvictionRequest> requests(64);
  ASSERT_EQ(*plane_.requests().Pop(requests), 12u);  // 8 free, 20 wanted: a step took 32
  for (uint32_t i = 0; i < 12; ++i) {
    EXPECT_EQ(requests[i].slot, 31 - i);
    EXPECT_EQ(requests[i].page, 131 - i);
    EXPECT_EQ(requests[i].stamp_seen, 969 + i);
  }
  EXPECT_EQ(server.stats().in_flight, 12u);
  EXPECT_EQ(server.stats().slots_examined, 2 * kSlots + 32);
  EXPECT_TRUE(server.RunOnce());  // asks for stamps: a part of the order is used
  EXPECT_FALSE(server.RunOnce());
  EXPECT_EQ(control().stamps.requested.value, 2u);

  // One is kept, the others leave: 19 free are less than is wanted, and the next of the last order
  // is asked for, without new stamps.
  plane_.log().TryPush(Entry(LogKind::kKeep, requests[0].page, requests[0].slot));
  for (uint32_t i = 1; i < 12; ++i) {
    plane_.log().TryPush(Entry(LogKind::kEvict, requests[i].page, requests[i].slot));
  }
  EXPECT_TRUE(server.RunOnce());
  const DataPlaneStats stats = server.stats();
  EXPECT_EQ(stats.evictions_applied, 11u);
  EXPECT_EQ(stats.evictions_kept, 1u);
  ASSERT_EQ(*plane_.requests().Pop(requests), stats.in_flight);
  ASSERT_GE(stats.in_flight, 1u);
  EXPECT_EQ(requests[0].slot, 19u);
  EXPECT_EQ(stats.requests_posted, 12 + stats.in_flight);
}

// What steps take is evicted from step to step, without a pause while slots are put in order.
TEST_F(DataPlaneServerTest, EachStepFindsAsManyFreeSlotsAsTheLastOneTook) {
  constexpr uint32_t kTaken = 3;
  options_.watermarks = {0.02, 0.3};
  options_.slots_per_round = 16;
  DataPlaneServer server(plane_, options_);
  std::vector<SlotId> free(kSlots);
  for (SlotId slot = 0; slot < kSlots; ++slot) free[slot] = slot;
  std::vector<StepStamp> stamps(kSlots, 0);
  PageId next_page = 0;
  uint64_t evicted = 0;
  for (uint32_t step = 1; step < 200; ++step) {
    plane_.worker_step() = step;
    const bool wants_stamps = control().stamps.requested.value != control().stamps.published.value;
    if (wants_stamps) {
      std::copy(stamps.begin(), stamps.end(), plane_.stamps().begin());
      PublishStamps();
    }
    EvictionRequest requests[64];
    const size_t count = *plane_.requests().Pop(requests);
    for (size_t i = 0; i < count; ++i) {
      const EvictionRequest& request = requests[i];
      const bool leaves = request.stamp_seen == stamps[request.slot];
      plane_.log().TryPush({static_cast<uint32_t>(leaves ? LogKind::kEvict : LogKind::kKeep),
                            request.page, request.slot, step});
      if (!leaves) continue;
      ASSERT_LT(request.stamp_seen + 4, step) << "used just now";
      free.push_back(request.slot);
      ++evicted;
    }
    ASSERT_GE(free.size(), kTaken) << step;
    for (uint32_t i = 0; i < kTaken; ++i) {
      stamps[free.back()] = step;
      plane_.log().TryPush({static_cast<uint32_t>(LogKind::kAdmit), next_page, free.back(), step});
      next_page = (next_page + 1) % kPages;
      free.pop_back();
    }
    for (int i = 0; i < 8; ++i) server.RunOnce();
  }
  EXPECT_GE(evicted, 150 * kTaken);
  EXPECT_EQ(server.stats().entries_refused, 0u);
}

// Many of those that were chosen had been used: newer stamps are asked for in each step, two copies
// may be under way, and what they know as used is not asked for again.
TEST_F(DataPlaneServerTest, NewerStampsAreAskedForWhileManyAreKept) {
  DataPlaneServer server(plane_, options_);
  const auto requested = [this] { return control().stamps.requested.value.load(); };
  const auto run = [&server] {
    for (int i = 0; i < 4; ++i) server.RunOnce();
  };
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    plane_.log().TryPush(Entry(LogKind::kAdmit, 100 + slot, slot));
  }
  uint32_t step = 1000, kept = 0;
  for (; kept < 600; ++step) {
    plane_.worker_step() = step;
    run();
    PublishStamps();
    run();
    EvictionRequest requests[64];
    const size_t count = *plane_.requests().Pop(requests);
    for (size_t i = 0; i < count; ++i) {
      plane_.log().TryPush(Entry(LogKind::kKeep, requests[i].page, requests[i].slot));
    }
    kept += static_cast<uint32_t>(count);
    ASSERT_LT(step, 1200u);
  }
  run();
  PublishStamps();
  uint64_t before = requested();
  plane_.worker_step() = ++step;
  run();
  EXPECT_EQ(requested(), before + 1) << "once a step";
  plane_.worker_step() = ++step;
  run();
  EXPECT_EQ(requested(), before + 2) << "though the first copy has not come";
  plane_.worker_step() = ++step;
  run();
  EXPECT_EQ(requested(), before + 2) << "two are under way";
  // The first copy knows all slots as used but one.
  std::ranges::fill(plane_.stamps(), step);
  plane_.stamps()[7] = 0;
  control().stamps.published.value = before + 1;
  EvictionRequest requests[64];
  size_t count = *plane_.requests().Pop(requests);
  for (size_t i = 0; i < count; ++i) {
    plane_.log().TryPush(Entry(LogKind::kKeep, requests[i].page, requests[i].slot));
  }
  server.RunOnce();
  count = *plane_.requests().Pop(requests);
  for (size_t i = 0; i < count; ++i) EXPECT_EQ(requests[i].slot, 7u);
  plane_.worker_step() = ++step;
  run();
  EXPECT_EQ(requested(), before + 3);
  // A worker that has published more than was asked for has published nothing.
  control().stamps.published.value = requested() + 5;
  plane_.worker_step() = ++step;
  run();
  EXPECT_LE(requested(), before + 3);
}

TEST_F(DataPlaneServerTest, PostsNoMoreRequestsThanTheRingTakes) {
  // Requests that the worker has not taken yet fill the ring.
  for (int i = 0; i < 61; ++i) plane_.requests().TryPush({0, 0, 0, 0});
  DataPlaneServer server(plane_, options_);
  for (uint32_t slot = 0; slot < 40; ++slot) {
    plane_.log().TryPush(Entry(LogKind::kAdmit, slot, slot));
  }
  server.RunOnce();
  PublishStamps();
  server.RunOnce();
  EXPECT_EQ(server.stats().requests_posted, 3u);
  EXPECT_EQ(server.stats().in_flight, 3u);
}

TEST_F(DataPlaneServerTest, AResetForgetsPagesAndRequests) {
  DataPlaneServer server(plane_, options_);
  for (uint32_t slot = 0; slot < 40; ++slot) {
    plane_.log().TryPush(Entry(LogKind::kAdmit, slot, slot));
  }
  server.RunOnce();
  PublishStamps();
  server.RunOnce();
  EXPECT_EQ(server.stats().in_flight, 20u);
  plane_.log().TryPush(Entry(LogKind::kReset, 0, 0));
  server.RunOnce();
  EXPECT_EQ(server.stats().in_flight, 0u);
  EXPECT_EQ(server.stats().used_slots, 0u);
}

TEST_F(DataPlaneServerTest, AfterAHandBackNothingHappensUntilTheReset) {
  options_.await_reset = true;
  DataPlaneServer server(plane_, options_);
  for (uint32_t slot = 0; slot < 40; ++slot) {
    plane_.log().TryPush(Entry(LogKind::kAdmit, slot, slot));
  }
  server.RunOnce();
  EXPECT_EQ(server.stats().used_slots, 0u);
  EXPECT_EQ(server.stats().entries_refused, 0u);
  EXPECT_EQ(control().stamps.requested.value, 0u);
  plane_.log().TryPush(Entry(LogKind::kReset, 0, 0));
  plane_.log().TryPush(Entry(LogKind::kAdmit, 9, 9));
  server.RunOnce();
  EXPECT_EQ(server.stats().used_slots, 1u);
}

TEST_F(DataPlaneServerTest, CountsGarbageAndGoesOn) {
  DataPlaneServer server(plane_, options_);
  plane_.log().TryPush(Entry(LogKind::kAdmit, kPages, 1));
  plane_.log().TryPush(Entry(static_cast<LogKind>(77), 1, 1));
  plane_.log().TryPush(Entry(LogKind::kAdmit, 1, 1));
  server.RunOnce();
  EXPECT_EQ(server.stats().entries_refused, 2u);
  EXPECT_EQ(server.stats().used_slots, 1u);
  const uint64_t head = control().log_head.value.exchange(1 << 20);
  EXPECT_FALSE(server.RunOnce());
  EXPECT_EQ(server.stats().cursors_refused, 1u);
  control().log_head.value = head;
  plane_.log().TryPush(Entry(LogKind::kAdmit, 2, 2));
  EXPECT_TRUE(server.RunOnce());
  EXPECT_EQ(server.stats().used_slots, 2u);
}

TEST_F(DataPlaneServerTest, SurvivesRandomBytesEverywhere) {
  std::mt19937_64 random(TestSeed());
  DataPlaneServer server(plane_, options_);
  for (int i = 0; i < 20'000; ++i) {
    const size_t at = sizeof(DataPlaneHeader) + random() % (memory_.size() - sizeof(header_));
    memory_[at] = static_cast<std::byte>(random());
    if (i % 10 == 0) server.RunOnce();
  }
}

// A worker on another thread that obeys the protocol; at the end both tables agree.
TEST_F(DataPlaneServerTest, FollowsALiveWorker) {
  constexpr uint64_t kStepsPerRound = 50;
  DataPlaneServer server(plane_, options_);
  ASSERT_TRUE(server.Start().ok());
  std::mt19937_64 random(TestSeed());
  std::map<PageId, SlotId> resident;
  std::vector<StepStamp> stamps(kSlots, 0);
  std::vector<PageId> page_of(kSlots, kNoPage);
  const auto push = [&](const LogEntry& entry) {
    while (!plane_.log().TryPush(entry)) std::this_thread::yield();
  };
  uint64_t published = 0;
  uint64_t evicted = 0;
  for (uint32_t step = 1; step <= 20'000 || evicted < 100; ++step) {
    // No steps that the server cannot follow: it would ask for no page that was not used since.
    while (step > kStepsPerRound * server.num_rounds()) std::this_thread::yield();
    plane_.worker_step().store(step, std::memory_order_release);
    if (const uint64_t wanted =
            plane_.stamp_control().requested.value.load(std::memory_order_acquire);
        wanted != published) {
      std::copy(stamps.begin(), stamps.end(), plane_.stamps().begin());
      plane_.stamp_control().published.value.store(published = wanted, std::memory_order_release);
    }
    EvictionRequest requests[8];
    const size_t count = *plane_.requests().Pop(requests);
    for (size_t i = 0; i < count; ++i) {
      const EvictionRequest& request = requests[i];
      const bool apply =
          page_of[request.slot] == request.page && stamps[request.slot] == request.stamp_seen;
      if (apply) {
        resident.erase(request.page);
        page_of[request.slot] = kNoPage;
        ++evicted;
      }
      push(Entry(apply ? LogKind::kEvict : LogKind::kKeep, request.page, request.slot));
    }
    const auto page = static_cast<PageId>(random() % kPages);
    if (const auto hit = resident.find(page); hit != resident.end()) {
      stamps[hit->second] = step;
    } else if (const auto free = std::find(page_of.begin(), page_of.end(), kNoPage);
               free != page_of.end()) {
      const auto slot = static_cast<SlotId>(free - page_of.begin());
      *free = page;
      stamps[slot] = step;
      resident[page] = slot;
      push(Entry(LogKind::kAdmit, page, slot));
    }
  }
  while (server.stats().log_depth > 0) std::this_thread::yield();
  server.Stop();
  server.RunOnce();
  EXPECT_EQ(server.stats().entries_refused, 0u);
  EXPECT_EQ(server.table().used_slots(), resident.size());
  for (const auto& [page, slot] : resident) EXPECT_EQ(server.table().SlotOf(page), slot);
}

}  // namespace
}  // namespace retroinfer::kvstore
