#include "kv_store_service/persistence/eviction_plan.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <list>
#include <random>

#include "tests/kv_store_service/persistence/sample_segments.h"

namespace retroinfer::kvstore {
namespace {

using testing::At;

SegmentName Name(uint64_t i) { return common::Sha256("n").AddU64(i).Finish(); }
Hash256 Tenant(uint64_t i) { return common::Sha256("t").AddU64(i).Finish(); }

EvictionCandidate Candidate(uint64_t i, uint64_t bytes, int64_t last_use, uint64_t tenant = 0) {
  return {Name(i), Tenant(tenant), bytes, 4 + 1024 * i, At(last_use), false};
}

std::vector<SegmentName> Names(const std::vector<uint64_t>& ids) {
  std::vector<SegmentName> names;
  for (uint64_t id : ids) names.push_back(Name(id));
  return names;
}

TEST(EvictionPlanTest, NothingBelowTheHighWatermark) {
  const std::vector<EvictionCandidate> all = {Candidate(1, 45, 1), Candidate(2, 45, 2)};
  const DiskLimits limits = {.cap_bytes = 100};
  EXPECT_TRUE(PlanEviction(all, 90, 0, Tenant(0), limits, At(9)).victims.empty());
  EXPECT_TRUE(PlanEviction(all, 90, 1, Tenant(0), limits, At(9)).fits);
}

TEST(EvictionPlanTest, LeastRecentlyUsedDownToTheLowWatermark) {
  const std::vector<EvictionCandidate> all = {Candidate(1, 10, 5), Candidate(2, 10, 3),
                                              Candidate(3, 10, 4), Candidate(4, 61, 9)};
  const EvictionPlan plan = PlanEviction(all, 91, 0, Tenant(0), {.cap_bytes = 100}, At(9));
  EXPECT_EQ(plan.victims, Names({2, 3}));
  EXPECT_EQ(plan.freed_bytes, 20u);
  EXPECT_EQ(plan.over_cap, 2u);
  EXPECT_TRUE(plan.fits);
}

TEST(EvictionPlanTest, TheEndOfAPrefixGoesBeforeItsBeginning) {
  const std::vector<EvictionCandidate> all = {Candidate(1, 10, 5), Candidate(2, 10, 5),
                                              Candidate(3, 10, 5)};
  EXPECT_EQ(PlanEviction(all, 95, 0, Tenant(0), {.cap_bytes = 100}, At(9)).victims, Names({3, 2}));
}

TEST(EvictionPlanTest, ProtectedSegmentsStayAndTheIncomingMayNotFit) {
  std::vector<EvictionCandidate> all = {Candidate(1, 50, 1), Candidate(2, 50, 2)};
  all[0].is_protected = true;
  const EvictionPlan plan = PlanEviction(all, 100, 60, Tenant(0), {.cap_bytes = 100}, At(9));
  EXPECT_EQ(plan.victims, Names({2}));
  EXPECT_FALSE(plan.fits);
}

TEST(EvictionPlanTest, IdleSegmentsGoWithoutPressure) {
  const std::vector<EvictionCandidate> all = {Candidate(1, 1, 0), Candidate(2, 1, 95)};
  const DiskLimits limits = {.idle_ttl = absl::Seconds(10)};
  const EvictionPlan plan = PlanEviction(all, 2, 0, Tenant(0), limits, At(100));
  EXPECT_EQ(plan.victims, Names({1}));
  EXPECT_EQ(plan.expired, 1u);
}

TEST(EvictionPlanTest, ATenantAboveItsQuotaLosesItsOwn) {
  const std::vector<EvictionCandidate> all = {Candidate(1, 10, 1, 1), Candidate(2, 10, 2, 2),
                                              Candidate(3, 10, 3, 2), Candidate(4, 10, 4, 2)};
  DiskLimits limits = {.tenant_quota_bytes = 25};
  EvictionPlan plan = PlanEviction(all, 40, 0, Tenant(1), limits, At(9));
  EXPECT_EQ(plan.victims, Names({2}));
  EXPECT_EQ(plan.over_quota, 1u);
  limits.quotas[Tenant(2)] = 100;
  EXPECT_TRUE(PlanEviction(all, 40, 0, Tenant(1), limits, At(9)).victims.empty());
  plan = PlanEviction(all, 40, 26, Tenant(3), limits, At(9));
  EXPECT_FALSE(plan.fits);
  EXPECT_TRUE(PlanEviction(all, 40, 25, Tenant(3), limits, At(9)).fits);
}

// The definition, word by word: lists and linear searches.
EvictionPlan NaivePlan(std::list<EvictionCandidate> left, uint64_t physical, uint64_t incoming,
                       const Hash256& tenant, const DiskLimits& limits, absl::Time now) {
  EvictionPlan plan;
  const auto used_by = [&](const Hash256& who) {
    uint64_t bytes = incoming > 0 && who == tenant ? incoming : 0;
    for (const auto& segment : left) bytes += segment.salt_hash == who ? segment.bytes : 0;
    return bytes;
  };
  const auto quota_of = [&](const Hash256& who) {
    const auto own = limits.quotas.find(who);
    return own != limits.quotas.end() ? own->second : limits.tenant_quota_bytes;
  };
  const auto over_quota = [&](const Hash256& who) {
    return quota_of(who) > 0 && used_by(who) > quota_of(who);
  };
  // Removes the oldest unprotected segment for which `wanted` holds; false if there is none.
  const auto remove_oldest = [&](const std::function<bool(const EvictionCandidate&)>& wanted) {
    auto oldest = left.end();
    for (auto it = left.begin(); it != left.end(); ++it) {
      if (it->is_protected || !wanted(*it)) continue;
      if (oldest == left.end() || it->last_use < oldest->last_use ||
          (it->last_use == oldest->last_use &&
           (it->token_begin > oldest->token_begin ||
            (it->token_begin == oldest->token_begin && it->name < oldest->name)))) {
        oldest = it;
      }
    }
    if (oldest == left.end()) return false;
    plan.victims.push_back(oldest->name);
    plan.freed_bytes += oldest->bytes;
    physical -= std::min(physical, oldest->bytes);
    left.erase(oldest);
    return true;
  };
  while (remove_oldest([&](const auto& s) { return now - s.last_use > limits.idle_ttl; })) {
    ++plan.expired;
  }
  while (remove_oldest([&](const auto& s) { return over_quota(s.salt_hash); })) ++plan.over_quota;
  const double cap = static_cast<double>(limits.cap_bytes);
  const auto sum = [&] { return static_cast<double>(physical + incoming); };
  if (cap > 0 && sum() > limits.high_watermark * cap) {
    while (sum() > limits.low_watermark * cap && remove_oldest([](const auto&) { return true; })) {
      ++plan.over_cap;
    }
  }
  if (incoming > 0) plan.fits = !over_quota(tenant) && (cap == 0 || sum() <= cap);
  return plan;
}

TEST(EvictionPlanTest, EqualsTheNaiveModel) {
  const char* text = std::getenv("RETROINFER_TEST_SEED");
  const uint64_t seed = text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  uint64_t victims = 0, refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<EvictionCandidate> all;
    uint64_t physical = random() % 200;
    for (uint64_t i = random() % 40; i > 0; --i) {
      all.push_back(Candidate(random() % 1000 + 1000 * i, random() % 100,
                              static_cast<int64_t>(random() % 20), random() % 4));
      all.back().token_begin = random() % 3;
      all.back().is_protected = random() % 4 == 0;
      physical += all.back().bytes;
    }
    DiskLimits limits;
    if (random() % 4 != 0) limits.cap_bytes = random() % 2000;
    if (random() % 2 == 0) limits.tenant_quota_bytes = random() % 600;
    if (random() % 4 == 0) limits.quotas[Tenant(random() % 4)] = random() % 600;
    if (random() % 4 == 0) limits.idle_ttl = absl::Seconds(random() % 25);
    limits.high_watermark = 0.5 + 0.05 * static_cast<double>(random() % 10);
    limits.low_watermark = limits.high_watermark - 0.1;
    const uint64_t incoming = random() % 3 == 0 ? 0 : random() % 200;
    const Hash256 tenant = Tenant(random() % 5);
    const EvictionPlan plan = PlanEviction(all, physical, incoming, tenant, limits, At(20));
    const EvictionPlan naive =
        NaivePlan({all.begin(), all.end()}, physical, incoming, tenant, limits, At(20));
    ASSERT_EQ(plan.victims, naive.victims) << "round " << round;
    ASSERT_EQ(plan.freed_bytes, naive.freed_bytes);
    ASSERT_EQ(plan.expired, naive.expired);
    ASSERT_EQ(plan.over_quota, naive.over_quota);
    ASSERT_EQ(plan.over_cap, naive.over_cap);
    ASSERT_EQ(plan.fits, naive.fits) << "round " << round;
    victims += plan.victims.size();
    refused += plan.fits ? 0 : 1;
  }
  EXPECT_GT(victims, 10'000u);
  EXPECT_GT(refused, 300u);
}

}  // namespace
}  // namespace retroinfer::kvstore
