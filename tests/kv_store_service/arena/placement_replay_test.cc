// What PlanAllocation() grants and keeps of documents, against the placement before it.
#include "tests/kv_store_service/arena/placement_replay.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <iomanip>
#include <iostream>
#include <random>

#include "tests/kv_store_service/random_seed.h"

namespace retroinfer::kvstore {
namespace {

using Totals = PlacementReplay::Totals;
using Draw = std::function<ReplayedDocument(std::mt19937_64&, int64_t capacity)>;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = 1024 * kMiB;
constexpr int kRounds = 600;

struct Arena {
  KvGeometry geometry;
  uint64_t bytes;
};
const KvGeometry kEightB{32, 8, 128, kBf16Kv};
const KvGeometry kNeedle{5, 2, 128, kBf16Kv};
const std::vector<Arena>& Arenas() {
  static const std::vector<Arena> arenas = {{kEightB, 4 * kGiB},
                                            {kEightB, 6 * kGiB},
                                            {kEightB, 20 * kGiB},
                                            {kEightB, 60 * kGiB},
                                            {kNeedle, 128 * kMiB},
                                            {kNeedle, 144 * kMiB},
                                            {kNeedle, 192 * kMiB},
                                            {{2, 2, 64, kBf16Kv}, 40 * kMiB},
                                            {{32, 8, 128, kInt8Kv}, 6 * kGiB}};
  return arenas;
}

// A document of `from` to `to` percent of what the arena can hold, with answers of up to 4,096
// tokens where they fit.
ReplayedDocument Document(uint64_t text, int64_t capacity, int from, int to, uint64_t more) {
  std::mt19937_64 random(text);
  const int64_t percent =
      from + static_cast<int64_t>(random() % static_cast<uint64_t>(to - from + 1));
  ReplayedDocument document{text,
                            std::max<int64_t>(kDecodeSegmentTokens, capacity * percent / 100)};
  document.more_tokens =
      std::min<int64_t>(static_cast<int64_t>(more), capacity - document.prompt_tokens);
  return document;
}
Draw Fresh(int from, int to) {
  return [from, to](std::mt19937_64& random, int64_t capacity) {
    return Document(random(), capacity, from, to, random() % 4096);
  };
}
// Each is one of `texts`, the i-th with a weight of 1 / i.
Draw Resent(int texts, int from, int to) {
  return [=](std::mt19937_64& random, int64_t capacity) {
    double sum = 0;
    for (int i = 1; i <= texts; ++i) sum += 1.0 / i;
    double at = static_cast<double>(random() >> 11) / static_cast<double>(uint64_t{1} << 53) * sum;
    int text = 1;
    while (text < texts && (at -= 1.0 / text) > 0) ++text;
    return Document(static_cast<uint64_t>(text), capacity, from, to, random() % 4096);
  };
}

// As many at a time as `at_once` says, where the sum of what they reserve is at most `share` of the
// arena. Whoever is refused waits until one of the others ends.
Totals Replay(const Arena& arena, bool is_new, const Draw& draw, size_t at_once = 1,
              double share = 1) {
  PlacementReplay replay(arena.geometry, arena.bytes,
                         is_new ? Planner(PlanAllocation) : Planner(PlanOneByOne), is_new);
  std::mt19937_64 random(7);
  std::deque<std::pair<uint64_t, uint64_t>> running;  // id, pages reserved
  uint64_t reserved = 0;
  const auto end_one = [&] {
    const size_t index = random() % running.size();
    reserved -= running[index].second;
    replay.Release(running[index].first);
    running.erase(running.begin() + static_cast<std::ptrdiff_t>(index));
  };
  for (uint64_t id = 1; id <= kRounds; ++id) {
    const ReplayedDocument document = draw(random, replay.CapacityTokens());
    const uint64_t pages = replay.PagesOf(document);
    while (!running.empty() && (running.size() >= at_once || static_cast<double>(reserved + pages) >
                                                                 share * replay.num_pages())) {
      end_one();
    }
    bool is_granted = replay.Run(id, document);
    while (!is_granted && !running.empty()) {
      end_one();
      is_granted = replay.Run(id, document);
    }
    if (!is_granted) continue;
    running.emplace_back(id, pages);
    reserved += pages;
  }
  return replay.totals();
}

double Percent(uint64_t part, uint64_t whole) {
  return 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}
void Print(const Arena& arena, const std::string& what, const Totals& before, const Totals& now) {
  std::cout << std::fixed << std::setprecision(1) << "  " << arena.geometry.num_layers << "x"
            << arena.geometry.num_kv_heads << "x" << arena.geometry.head_dim << " "
            << arena.geometry.format.name << " " << arena.bytes / kMiB << " MiB, " << what
            << ": refused " << Percent(before.refused, before.asked) << " -> "
            << Percent(now.refused, now.asked) << " %, found cached "
            << Percent(before.hit_tokens, before.tokens) << " -> "
            << Percent(now.hit_tokens, now.tokens) << " % of the tokens\n";
}

struct Workload {
  std::string name;
  Draw draw;
};

TEST(PlacementReplayTest, AnIdleArenaRefusesNothingThatFits) {
  const std::vector<Workload> workloads = {{"fresh, 75 to 100 %", Fresh(75, 100)},
                                           {"fresh, 1 to 100 %", Fresh(1, 100)},
                                           {"8 texts, 75 to 100 %", Resent(8, 75, 100)},
                                           {"30 texts, 1 to 100 %", Resent(30, 1, 100)}};
  uint64_t refused_before = 0;
  for (const Arena& arena : Arenas()) {
    for (const Workload& workload : workloads) {
      const Totals before = Replay(arena, false, workload.draw);
      const Totals now = Replay(arena, true, workload.draw);
      Print(arena, workload.name, before, now);
      EXPECT_EQ(now.refused, 0u);
      refused_before += before.refused;
    }
  }
  EXPECT_GT(refused_before, 1000u);
}

// Where nothing was refused before, either.
TEST(PlacementReplayTest, AsMuchIsFoundCachedAsBefore) {
  const std::vector<Workload> workloads = {{"20 texts, 5 to 30 %", Resent(20, 5, 30)},
                                           {"40 texts, 2 to 60 %", Resent(40, 2, 60)},
                                           {"100 texts, 1 to 10 %", Resent(100, 1, 10)},
                                           {"6 texts, 15 to 20 %", Resent(6, 15, 20)}};
  for (const Workload& workload : workloads) {
    double sum_before = 0, sum_now = 0;
    for (const Arena& arena : Arenas()) {
      const Totals before = Replay(arena, false, workload.draw);
      const Totals now = Replay(arena, true, workload.draw);
      Print(arena, workload.name, before, now);
      EXPECT_EQ(now.refused, 0u);
      if (before.refused > 0) continue;
      const double hits_before = Percent(before.hit_tokens, before.tokens);
      const double hits_now = Percent(now.hit_tokens, now.tokens);
      // One arena, one sequence: which of two texts is found is partly luck.
      EXPECT_GE(hits_now, hits_before - 2);
      sum_before += hits_before;
      sum_now += hits_now;
    }
    EXPECT_GE(sum_now, sum_before);
  }
}

TEST(PlacementReplayTest, TwoWhoseSumFitsHardlyEverWait) {
  for (const double share : {0.9, 1.0}) {
    uint64_t before_refused = 0, now_refused = 0, asked = 0;
    for (const Arena& arena : Arenas()) {
      for (const auto& [from, to] : {std::pair(10, 60), std::pair(40, 50)}) {
        const Totals before = Replay(arena, false, Fresh(from, to), 2, share);
        const Totals now = Replay(arena, true, Fresh(from, to), 2, share);
        Print(arena,
              "two of " + std::to_string(from) + " to " + std::to_string(to) + " %, at most " +
                  std::to_string(static_cast<int>(100 * share)) + " % in all",
              before, now);
        before_refused += before.refused;
        now_refused += now.refused;
        asked += now.asked;
      }
    }
    EXPECT_LT(Percent(now_refused, asked), share < 1 ? 1 : 4);
    EXPECT_LT(3 * now_refused, before_refused);
  }
}

}  // namespace
}  // namespace retroinfer::kvstore
