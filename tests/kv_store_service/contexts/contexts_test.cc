#include "kv_store_service/contexts/contexts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>
#include <set>

#include "kv_store_service/server/store_metrics.h"
#include "tests/kv_store_service/contexts/context_fixture.h"
#include "tests/kv_store_service/random_seed.h"

namespace retroinfer::kvstore {
namespace {

using ::testing::HasSubstr;
using ContextsTest = ContextStoreTest;

std::string Reason(const absl::Status& status) { return common::ReasonOf(status).reason; }

TEST_F(ContextsTest, SavesWhatIsComputedAndFindsItAgain) {
  const auto saved = SaveText("book", {1, 2});
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->reusable_tokens, 2 * 1024u);
  EXPECT_EQ(saved->in_arena, 2u);
  EXPECT_EQ(saved->on_disk, 2u);
  // On demand, nothing else is written.
  Run(1, NamedChain({7}));
  EXPECT_EQ(disk_->List().size(), 2u);
  EXPECT_TRUE(AwaitNothingIsHeld());

  StartContexts();
  const auto listed = contexts_->List(tenant_);
  ASSERT_TRUE(listed.ok());
  ASSERT_EQ(listed->size(), 1u);
  EXPECT_EQ(listed->front().record.context_name, "book");
  EXPECT_EQ(listed->front().in_arena, 0u);
  EXPECT_EQ(Run(1, NamedChain({1, 2, 3})), 2u);
  EXPECT_EQ(contexts_->List(tenant_)->front().in_arena, 2u);
}

TEST_F(ContextsTest, ANameIsTakenOverOnlyWhereThatIsAskedFor) {
  ASSERT_TRUE(SaveText("book", {1}).ok());
  const std::vector<SegmentIdentity> chain = NamedChain({2}, 1024);
  ContextToSave other = ToSave("book", chain);
  const absl::Status refused = SaveAll(other, chain).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Reason(refused), "CONTEXT_EXISTS");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--force"));
  EXPECT_EQ(contexts_->List(tenant_)->front().record.segments[0], NamedChain({1}, 1024)[0].name);
  EXPECT_EQ(disk_->List().size(), 1u);  // nothing was written for it
  other.replace = true;
  ASSERT_TRUE(SaveAll(other, chain).ok());
  ASSERT_EQ(contexts_->List(tenant_)->size(), 1u);
  EXPECT_EQ(contexts_->List(tenant_)->front().record.segments[0], chain[0].name);
}

TEST_F(ContextsTest, ATenantSeesItsOwnNamesOnly) {
  ASSERT_TRUE(SaveText("book", {1}).ok());
  ASSERT_TRUE(SaveText("book", {2}, false, "salt").ok());
  EXPECT_EQ(contexts_->List(tenant_)->size(), 1u);
  EXPECT_EQ(contexts_->List(common::SaltHash("other"))->size(), 0u);
  ASSERT_TRUE(contexts_->Remove(common::SaltHash("salt"), "book").ok());
  EXPECT_EQ(contexts_->List(tenant_)->size(), 1u);
  EXPECT_EQ(Reason(contexts_->Remove(common::SaltHash("salt"), "book").status()),
            "NO_SUCH_CONTEXT");
}

TEST_F(ContextsTest, RemovingTakesWhatNobodyElseHas) {
  ASSERT_TRUE(SaveText("one", {1, 2}).ok());
  ASSERT_TRUE(SaveText("two", {1, 3}).ok());
  const auto removed = contexts_->Remove(tenant_, "one");
  ASSERT_TRUE(removed.ok());
  EXPECT_EQ(removed->segments, 1u);
  EXPECT_EQ(disk_->List().size(), 2u);
  EXPECT_EQ(Run(1, NamedChain({1, 2})), 1u);  // gone from the arena, too
  EXPECT_EQ(contexts_->List(tenant_)->front().missing, 0u);
}

TEST_F(ContextsTest, APinnedOneSurvivesPressureOnArenaAndDisk) {
  ASSERT_TRUE(SaveText("kept", {1, 2}, true).ok());
  ASSERT_TRUE(SaveText("not kept", {3}).ok());
  contexts_.reset();
  limits_.cap_bytes = 6 << 20;
  StartContexts(PersistMode::kWriteThrough);
  EXPECT_EQ(Run(1, NamedChain({1, 2})), 2u);
  for (int text = 10; text < 40; ++text) {
    Run(static_cast<uint64_t>(text), NamedChain({text}));
    WaitUntilWritten();
    EXPECT_LE(disk_->Stats().physical_bytes, limits_.cap_bytes);
  }
  const auto listed = contexts_->List(tenant_);
  EXPECT_EQ(listed->at(0).in_arena, 2u);
  EXPECT_EQ(listed->at(0).on_disk, 2u);
  EXPECT_EQ(listed->at(1).missing, 1u);  // "not kept"
  EXPECT_GT(store_->stats().durable->budget.over_cap_total, 0u);
  EXPECT_EQ(store_->stats().durable->pinned_contexts, 1u);

  // Not pinned any more, it goes as everything else does.
  ASSERT_TRUE(contexts_->SetPinned(tenant_, "kept", false).ok());
  for (int text = 40; text < 60; ++text) {
    Run(static_cast<uint64_t>(text), NamedChain({text}));
    WaitUntilWritten();
  }
  EXPECT_EQ(contexts_->List(tenant_)->at(0).missing, 2u);
  EXPECT_EQ(Reason(contexts_->SetPinned(tenant_, "kept", true).status()), "CONTEXT_LOST");
}

TEST_F(ContextsTest, WhatIsPartlyLostCanBeUnpinnedButNotPinned) {
  ASSERT_TRUE(SaveText("book", {1, 2}, true).ok());
  ASSERT_TRUE(disk_->Delete(std::vector{NamedChain({1, 2})[1].name}).ok());
  const auto unpinned = contexts_->SetPinned(tenant_, "book", false);
  ASSERT_TRUE(unpinned.ok()) << unpinned.status();
  EXPECT_EQ(unpinned->on_disk, 1u);
  EXPECT_EQ(Reason(contexts_->SetPinned(tenant_, "book", true).status()), "CONTEXT_LOST");
}

TEST_F(ContextsTest, MetricsCountThem) {
  common::Metrics metrics("kv_store_service", "1", "r", "cpu");
  ASSERT_TRUE(SaveText("a", {1}, true).ok());
  const uint64_t bytes = disk_->Stats().image_bytes;
  contexts_.reset();
  limits_.tenant_quota_bytes = 2 * bytes + 1;
  StartContexts();
  ASSERT_TRUE(SaveText("b", {2}).ok());
  ASSERT_TRUE(SaveText("c", {3}).ok());
  StoreMetrics store_metrics(&metrics, store_.get());
  const std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("retroinfer_contexts 3\n"));
  EXPECT_THAT(text, HasSubstr("retroinfer_contexts_pinned 1\n"));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("retroinfer_contexts_pinned_bytes ", bytes, "\n")));
  EXPECT_THAT(text, HasSubstr("retroinfer_durable_evictions_total{reason=\"tenant_quota\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("retroinfer_durable_evictions_total{reason=\"ttl\"} 0\n"));
}

TEST_F(ContextsTest, AtMostHalfOfTheArenaCanBePinned) {
  ASSERT_TRUE(SaveText("a", {1, 2}, true).ok());
  const auto second = SaveText("b", {3, 4, 5}, true);
  EXPECT_EQ(Reason(second.status()), "PIN_LIMIT") << second.status();
  EXPECT_TRUE(SaveText("b", {3, 4, 5}).ok());
  EXPECT_EQ(Reason(contexts_->SetPinned(tenant_, "b", true).status()), "PIN_LIMIT");
  EXPECT_TRUE(SaveText("c", {1, 2}, true).ok());  // the same segments
}

TEST_F(ContextsTest, ANameExpires) {
  const auto chain = NamedChain({1});
  ContextToSave context = ToSave("short", chain);
  context.pinned = true;
  context.time_to_live = absl::Milliseconds(50);
  ASSERT_TRUE(SaveAll(context, chain).ok());
  absl::SleepFor(absl::Milliseconds(60));
  EXPECT_EQ(contexts_->List(tenant_)->size(), 0u);
  EXPECT_EQ(Reason(contexts_->SetPinned(tenant_, "short", true).status()), "NO_SUCH_CONTEXT");
}

TEST_F(ContextsTest, WhatIsIdleForTooLongIsRemoved) {
  contexts_.reset();
  limits_.idle_ttl = absl::Milliseconds(200);
  StartContexts();
  ASSERT_TRUE(SaveText("pinned", {1}, true).ok());
  ASSERT_TRUE(SaveText("idle", {2}).ok());
  while (store_->stats().durable->budget.expired_total == 0) absl::SleepFor(absl::Milliseconds(5));
  const auto listed = contexts_->List(tenant_);
  EXPECT_EQ(listed->at(0).on_disk, 0u);  // "idle"
  EXPECT_EQ(listed->at(1).on_disk, 1u);
}

TEST_F(ContextsTest, AQuotaKeepsTenantsApart) {
  ASSERT_TRUE(SaveText("a", {1}).ok());
  const uint64_t bytes = disk_->Stats().image_bytes;
  contexts_.reset();
  limits_.tenant_quota_bytes = 2 * bytes + 1;
  StartContexts();
  ASSERT_TRUE(SaveText("b", {2}).ok());
  for (int text = 10; text < 15; ++text) {
    ASSERT_TRUE(SaveText(absl::StrCat("s", text), {text}, false, "salt").ok());
  }
  EXPECT_EQ(contexts_->List(tenant_)->at(0).on_disk, 1u);
  EXPECT_EQ(contexts_->List(tenant_)->at(1).on_disk, 1u);
  EXPECT_EQ(disk_->List().size(), 4u);
  EXPECT_EQ(store_->stats().durable->budget.over_quota_total, 3u);
  // A context that is larger than the quota cannot be saved, and says so.
  const auto large = SaveText("large", {20, 21, 22}, false, "salt");
  EXPECT_EQ(Reason(large.status()), "CACHE_FULL") << large.status();
}

TEST_F(ContextsTest, WithoutADiskEveryCallSaysSo) {
  KvStore store({}, StateFile(folder_.path() + "/other-state"));
  Contexts contexts(&store);
  EXPECT_EQ(Reason(contexts.List(tenant_).status()), "NO_DURABLE_TIER");
  EXPECT_EQ(Reason(contexts.Save(ToSave("x", chain_)).status()), "NO_DURABLE_TIER");
  EXPECT_EQ(Reason(contexts.RequireTier().status()), "NO_DURABLE_TIER");
}

// Random requests for one-segment texts in write-through mode, and restarts, against a list.
TEST_F(ContextsTest, EvictsAsANaiveModelDoes) {
  ASSERT_TRUE(SaveText("size", {1}).ok());
  const uint64_t size = disk_->Stats().image_bytes;
  contexts_.reset();
  disk_ = MakeInMemorySegmentStorage();
  limits_.cap_bytes = 10 * size;
  limits_.high_watermark = 0.8;  // above 8 segments ...
  limits_.low_watermark = 0.5;   // ... until there are 5
  arena_bytes_ = 64 << 20;       // everything fits
  StartContexts(PersistMode::kWriteThrough);
  std::mt19937_64 random(TestSeed());
  std::list<int32_t> on_disk;  // least recently used first
  std::set<int32_t> in_arena;
  int num_evicted = 0;
  for (int step = 0; step < 400; ++step) {
    if (random() % 16 == 0) {
      StartContexts(PersistMode::kWriteThrough);
      in_arena.clear();
    }
    const auto text = static_cast<int32_t>(1 + random() % 14);
    const auto found = std::find(on_disk.begin(), on_disk.end(), text);
    const bool hit = in_arena.count(text) > 0 || found != on_disk.end();
    ASSERT_EQ(Run(++last_sequence_, NamedChain({text})), hit ? 1u : 0u) << "step " << step;
    WaitUntilWritten();
    absl::SleepFor(absl::Microseconds(10));  // times on disk have microseconds
    if (found != on_disk.end()) {
      on_disk.splice(on_disk.end(), on_disk, found);
    } else {  // new, or evicted from the disk and written again on its use in the arena
      if (on_disk.size() + 1 > 8) {
        for (; on_disk.size() + 1 > 5; ++num_evicted) on_disk.pop_front();
      }
      on_disk.push_back(text);
    }
    in_arena.insert(text);
    std::vector<SegmentName> expected;
    for (const int32_t kept : on_disk) expected.push_back(NamedChain({kept})[0].name);
    std::vector<SegmentName> there;
    for (const SegmentRecord& record : disk_->List()) there.push_back(record.name);
    ASSERT_EQ(there, expected) << "step " << step;
  }
  EXPECT_GT(num_evicted, 20);
}

}  // namespace
}  // namespace retroinfer::kvstore
