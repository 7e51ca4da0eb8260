// Segments that are found by their names: sharing, comparing, waiting, eviction, declaration.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "common/status/error_reason.h"
#include "kv_store_service/directory/arena_segments.h"
#include "tests/kv_store_service/named_chain.h"
#include "tests/kv_store_service/random_seed.h"
#include "tests/kv_store_service/segment_writer.h"
#include "tests/kv_store_service/segments_in_memory.h"

namespace retroinfer::kvstore {
namespace {

using testing::HasSubstr;

constexpr uint32_t kArenaPages = 6000;

class PrefixReuseTest : public testing::Test {
 protected:
  PrefixReuseTest() : bytes_(kArenaPages * kPageBytes), store_(bytes_, kTinyGeometry) {
    store_.SetFingerprint(common::FingerprintHash("model"));
  }

  Reservation Reserve(const ReserveRequest& request) {
    auto reservation = store_.Reserve(request);
    EXPECT_TRUE(reservation.ok()) << reservation.status();
    return reservation.ok() ? *reservation : Reservation{};
  }
  // Writes and commits segment `i` of the sequence under its name.
  void Commit(uint64_t sequence, const Reservation& reservation,
              const std::vector<SegmentIdentity>& chain, size_t i) {
    const ExtentRecord& extent = reservation.extents[i];
    const uint64_t begin = kSinkTokens + i * kDecodeSegmentTokens;
    WriteSegment(std::span(bytes_).subspan(size_t{extent.pages.first} * kPageBytes,
                                           size_t{extent.pages.count} * kPageBytes),
                 kTinyGeometry, begin, extent.reserved_tokens);
    const auto committed = store_.Commit(
        sequence, std::vector<SegmentToCommit>{{extent.id, begin, kDecodeSegmentTokens, chain[i]}});
    ASSERT_TRUE(committed.ok()) << committed.status();
  }
  // Computes what is not cached of a chain and releases the sequence. Returns what was cached.
  size_t Run(uint64_t sequence, const std::vector<SegmentIdentity>& chain) {
    const Reservation reservation = Reserve(NamedRequest(sequence, chain));
    for (size_t i = reservation.num_cached; i < chain.size(); ++i) {
      Commit(sequence, reservation, chain, i);
    }
    store_.Release(sequence);
    return reservation.num_cached;
  }

  std::vector<std::byte> bytes_;
  SegmentsInMemory store_;
};

TEST_F(PrefixReuseTest, AReleasedPrefixIsFoundAgain) {
  const auto chain = NamedChain({1, 2, 3});
  EXPECT_EQ(Run(1, chain), 0u);
  EXPECT_EQ(store_.directory().num_named(), 3u);
  const uint64_t free = store_.allocator().free_pages();
  EXPECT_EQ(free + store_.directory().unreferenced_pages(), kArenaPages);

  const Reservation again = Reserve(NamedRequest(2, chain));
  EXPECT_EQ(again.num_cached, 3u);
  EXPECT_EQ(store_.allocator().free_pages(), free);
  EXPECT_EQ(store_.directory().unreferenced_pages(), 0u);
  // The same request again, as after a lost answer.
  EXPECT_EQ(Reserve(NamedRequest(2, chain)).num_cached, 3u);
  EXPECT_EQ(store_.counters().queries_tokens, 6 * 1024u);
  EXPECT_EQ(store_.counters().hits_tokens, 3 * 1024u);
  EXPECT_EQ(store_.Release(2), 0u);
  EXPECT_EQ(store_.directory().num_named(), 3u);
}

TEST_F(PrefixReuseTest, SharesTheCommonPrefixAndReservesTheRest) {
  Run(1, NamedChain({1, 2, 3}));
  const auto other = NamedChain({1, 2, 4});
  const Reservation first = Reserve(NamedRequest(2, other, 1));
  EXPECT_EQ(first.num_cached, 2u);
  ASSERT_EQ(first.extents.size(), 4u);
  const Reservation second = Reserve(NamedRequest(3, NamedChain({1, 5})));
  EXPECT_EQ(second.num_cached, 1u);
  EXPECT_EQ(second.extents[0].id, first.extents[0].id);
  EXPECT_EQ(store_.directory().FindExtent(first.extents[0].id)->references, 2u);
  Commit(2, first, other, 2);
  EXPECT_EQ(store_.Release(2), first.extents[3].pages.count);
  EXPECT_EQ(Reserve(NamedRequest(4, other)).num_cached, 3u);
}

TEST_F(PrefixReuseTest, OtherSaltsTokensAndModelsMiss) {
  const auto chain = NamedChain({1, 2});
  Run(1, chain);
  const auto num_cached = [&](const std::vector<SegmentIdentity>& wanted) {
    ReserveRequest request = NamedRequest(2, wanted);
    request.cached_only = true;
    const size_t count = Reserve(request).num_cached;
    store_.Release(2);
    return count;
  };
  EXPECT_EQ(num_cached(NamedChain({1, 2}, 1024, "salt")), 0u);
  EXPECT_EQ(num_cached(NamedChain({3, 2})), 0u);
  // A name that does not fit its tokens, or its tenant.
  auto forged = chain;
  forged[0].token_ids[5] = 77;
  EXPECT_EQ(num_cached(forged), 0u);
  forged = chain;
  forged[1].salt_hash = common::SaltHash("salt");
  EXPECT_EQ(num_cached(forged), 1u);
  store_.SetFingerprint(common::FingerprintHash("another model"));
  EXPECT_EQ(num_cached(chain), 0u);
  store_.SetFingerprint(common::FingerprintHash("model"));
  EXPECT_EQ(num_cached(chain), 2u);
}

TEST_F(PrefixReuseTest, CachedOnlyReservesNothing) {
  const auto chain = NamedChain({1, 2});
  ReserveRequest request = NamedRequest(9, chain, 1);
  request.cached_only = true;
  EXPECT_TRUE(Reserve(request).extents.empty());
  EXPECT_EQ(store_.directory().num_sequences(), 0u);
  Run(1, NamedChain({1}));
  EXPECT_EQ(Reserve(request).extents.size(), 1u);
  EXPECT_EQ(Reserve(request).num_cached, 1u);
  EXPECT_EQ(store_.directory().num_sequences(), 1u);
  store_.Release(9);
}

TEST_F(PrefixReuseTest, TheSecondWaitsForTheFirst) {
  const auto chain = NamedChain({1, 2});
  const Reservation first = Reserve(NamedRequest(1, chain));
  const auto wait = [&] {
    const auto second = store_.Reserve(NamedRequest(2, chain, 1));
    return !second.ok() && absl::IsAborted(second.status()) &&
           common::ReasonOf(second.status()).reason == kSegmentInProgressReason;
  };
  EXPECT_TRUE(wait());
  EXPECT_EQ(store_.directory().num_sequences(), 1u);
  Commit(1, first, chain, 0);
  EXPECT_TRUE(wait());
  Commit(1, first, chain, 1);
  EXPECT_FALSE(wait());
  EXPECT_EQ(store_.directory().FindSequence(2)->num_cached, 2u);
}

TEST_F(PrefixReuseTest, NobodyWaitsForAReleasedOrRefusedSegment) {
  const auto chain = NamedChain({1, 2});
  Reserve(NamedRequest(1, chain));
  EXPECT_FALSE(store_.Reserve(NamedRequest(2, chain)).ok());
  store_.Release(1);
  const Reservation second = Reserve(NamedRequest(2, chain));
  EXPECT_EQ(second.num_cached, 0u);
  EXPECT_FALSE(store_.Reserve(NamedRequest(3, chain)).ok());
  EXPECT_TRUE(store_.Reserve(NamedRequest(3, chain), /*compute_anyway=*/true).ok());
  store_.Release(3);
  // Its bytes are no segment.
  EXPECT_FALSE(store_
                   .Commit(2, std::vector<SegmentToCommit>{{second.extents[0].id, 4,
                                                            kDecodeSegmentTokens, chain[0]}})
                   .ok());
  EXPECT_TRUE(store_.Reserve(NamedRequest(4, {chain[0]})).ok());
}

TEST_F(PrefixReuseTest, ADuplicateStaysItsSequencesOwn) {
  const auto chain = NamedChain({1});
  const Reservation first = Reserve(NamedRequest(1, chain));
  const Reservation second = *store_.Reserve(NamedRequest(2, chain), /*compute_anyway=*/true);
  Commit(1, first, chain, 0);
  Commit(2, second, chain, 0);
  EXPECT_EQ(store_.directory().num_named(), 1u);
  EXPECT_EQ(store_.directory().FindExtent(second.extents[0].id)->key, nullptr);
  const uint64_t pages = store_.directory().FindExtent(second.extents[0].id)->pages.count;
  EXPECT_EQ(store_.Release(2), pages);
  EXPECT_EQ(store_.Release(1), 0u);
}

TEST_F(PrefixReuseTest, RefusesNamesThatAreNoChain) {
  auto chain = NamedChain({1, 2});
  const auto refused = [&](const ReserveRequest& request) {
    return store_.Reserve(request).status().code() == absl::StatusCode::kInvalidArgument;
  };
  ReserveRequest gap = NamedRequest(1, chain);
  gap.segments[0].identity.reset();
  EXPECT_TRUE(refused(gap));
  ReserveRequest other_parent = NamedRequest(1, chain);
  std::swap(other_parent.segments[0], other_parent.segments[1]);
  EXPECT_TRUE(refused(other_parent));
  ReserveRequest short_tokens = NamedRequest(1, chain);
  short_tokens.segments[1].identity->token_ids.pop_back();
  EXPECT_TRUE(refused(short_tokens));
  // A commit under a name that is not that of its tokens.
  const Reservation reservation = Reserve(NamedRequest(1, chain));
  chain[0].token_ids[0] ^= 1;
  const auto commit = store_.Commit(
      1,
      std::vector<SegmentToCommit>{{reservation.extents[0].id, 4, kDecodeSegmentTokens, chain[0]}});
  EXPECT_THAT(std::string(commit.status().message()), HasSubstr("is not that of its parent"));
}

TEST_F(PrefixReuseTest, RoomIsMadeFromUnreferencedSegmentsOnly) {
  const auto held = NamedChain({1, 2});
  Run(1, held);
  Reserve(NamedRequest(100, held));
  Run(2, NamedChain({3, 4}));
  const uint32_t each = SegmentLayout(kTinyGeometry, 1024).max_pages;
  // More than could ever be made free: nothing is evicted for it.
  const auto too_much =
      store_.Reserve(ReserveRequest::Unnamed(3, std::vector<uint32_t>(kArenaPages / each, 1024)));
  EXPECT_EQ(too_much.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(store_.directory().num_named(), 4u);
  uint64_t sequence = 10;
  while (store_.Reserve(ReserveRequest::Unnamed(++sequence, {1024})).ok()) {
  }
  EXPECT_GE(store_.counters().evictions, 1u);
  EXPECT_EQ(store_.directory().num_named(), 4u - store_.counters().evictions);
  ReserveRequest look = NamedRequest(1000, held);
  look.cached_only = true;
  EXPECT_EQ(Reserve(look).num_cached, 2u);
}

TEST_F(PrefixReuseTest, TheEndOfAPrefixGoesFirst) {
  const auto chain = NamedChain({1, 2, 3});
  Run(1, chain);
  const auto unreferenced = store_.directory().Unreferenced();
  ASSERT_EQ(unreferenced.size(), 3u);
  EXPECT_EQ(unreferenced[0]->key->identity.name, chain[2].name);
  EXPECT_EQ(unreferenced[2]->key->identity.name, chain[0].name);
}

TEST_F(PrefixReuseTest, NamesAreGrantedOnlyAfterTheirTokensWereCompared) {
  const auto chain = NamedChain({1, 2, 3});
  Run(1, {chain[0], chain[1]});
  ReserveRequest names = NamedRequest(2, chain);
  for (SegmentWanted& wanted : names.segments) wanted.identity->token_ids.clear();
  const uint64_t free = store_.allocator().free_pages();
  const Reservation asked = Reserve(names);
  EXPECT_EQ(asked.num_to_compare, 2u);
  EXPECT_TRUE(asked.extents.empty());
  EXPECT_EQ(store_.allocator().free_pages(), free);
  EXPECT_EQ(store_.directory().num_sequences(), 0u);
  EXPECT_EQ(store_.counters().hits_tokens, 0u);
  // One is not enough.
  names.segments[0].identity->token_ids = chain[0].token_ids;
  EXPECT_EQ(Reserve(names).num_to_compare, 2u);
  names.segments[1].identity->token_ids = chain[1].token_ids;
  names.segments[1].identity->token_ids[9] ^= 1;
  EXPECT_EQ(Reserve(names).num_cached, 1u);
  store_.Release(2);
  names.segments[1].identity->token_ids = chain[1].token_ids;
  const Reservation granted = Reserve(names);
  EXPECT_EQ(granted.num_cached, 2u);
  ASSERT_EQ(granted.extents.size(), 3u);
  // Who waits is not asked.
  ReserveRequest second = NamedRequest(3, chain);
  for (SegmentWanted& wanted : second.segments) wanted.identity->token_ids.clear();
  EXPECT_EQ(common::ReasonOf(store_.Reserve(second).status()).reason, kSegmentInProgressReason);
  // The granted one again, without tokens: the same extents.
  for (SegmentWanted& wanted : names.segments) wanted.identity->token_ids.clear();
  EXPECT_EQ(Reserve(names).num_cached, 2u);
}

TEST_F(PrefixReuseTest, WhatAFormerWorkerMayWriteToIsOutOfUse) {
  const auto chain = NamedChain({1});
  const Reservation reservation = Reserve(NamedRequest(1, chain, 1));
  Commit(1, reservation, chain, 0);
  std::vector<PageRun> unfinished;
  store_.ReleaseAll(&unfinished);
  ASSERT_EQ(unfinished, std::vector<PageRun>{reservation.extents[1].pages});
  EXPECT_EQ(store_.withheld_pages(), unfinished[0].count);
  const std::vector<uint32_t> all(kArenaPages / unfinished[0].count, 1024);
  EXPECT_EQ(common::ReasonOf(store_.Reserve(ReserveRequest::Unnamed(2, all)).status()).reason,
            kWaitsForDiskReason);
  EXPECT_EQ(common::ReasonOf(store_.Reserve(ReserveRequest::Unnamed(2, all), true).status()).reason,
            "ARENA_FULL");
  SegmentsInMemory other(bytes_, kTinyGeometry);
  other.Withhold(unfinished[0]);
  for (uint64_t sequence = 1;; ++sequence) {
    const auto extents = other.Reserve(ReserveRequest::Unnamed(sequence, {1024}));
    if (!extents.ok()) break;
    const PageRun& pages = extents->extents[0].pages;
    EXPECT_TRUE(pages.end() <= unfinished[0].first || pages.first >= unfinished[0].end());
  }
  store_.Readmit(unfinished[0]);
  EXPECT_EQ(store_.withheld_pages(), 0u);
  EXPECT_TRUE(store_.Reserve(ReserveRequest::Unnamed(2, {1024})).ok());
}

TEST_F(PrefixReuseTest, ReleaseAllKeepsTheNamed) {
  const auto chain = NamedChain({1, 2});
  const Reservation reservation = Reserve(NamedRequest(1, chain, 1));
  Commit(1, reservation, chain, 0);
  Reserve(ReserveRequest::Unnamed(2, {1024}));
  store_.ReleaseAll();
  EXPECT_EQ(store_.directory().num_sequences(), 0u);
  EXPECT_EQ(store_.directory().num_extents(), 1u);
  EXPECT_EQ(store_.allocator().free_pages() + store_.directory().unreferenced_pages(), kArenaPages);
  // Nobody works on the second one any more.
  EXPECT_EQ(Reserve(NamedRequest(3, chain)).num_cached, 1u);
}

// Random chains against a store that is a list of names: what is cached, and what is evicted.
TEST_F(PrefixReuseTest, EvictsLikeANaiveLru) {
  std::mt19937_64 random(TestSeed());
  const uint32_t capacity = [&] {  // segments that fit once they are cut
    const Reservation one = Reserve(ReserveRequest::Unnamed(1, {1024}));
    store_.Release(1);
    return (kArenaPages - one.extents[0].pages.count) / one.extents[0].pages.count;
  }();
  ASSERT_GT(capacity, 4u);
  std::vector<common::SegmentName> lru;  // oldest first
  uint64_t evictions = 0;
  for (uint64_t sequence = 1; sequence <= 300; ++sequence) {
    std::vector<int32_t> texts;
    for (uint64_t i = 0, n = 1 + random() % 3; i < n; ++i) texts.push_back(1 + random() % 3);
    const auto chain = NamedChain(texts);
    size_t expected_cached = 0;
    while (expected_cached < chain.size() &&
           std::find(lru.begin(), lru.end(), chain[expected_cached].name) != lru.end()) {
      ++expected_cached;
    }
    ASSERT_EQ(Run(sequence, chain), expected_cached) << sequence;
    for (auto identity = chain.rbegin(); identity != chain.rend(); ++identity) {
      std::erase(lru, identity->name);
      lru.push_back(identity->name);
    }
    // The store evicts just as many as it needs, from the front.
    const size_t evicted = store_.counters().evictions - evictions;
    evictions = store_.counters().evictions;
    lru.erase(lru.begin(), lru.begin() + static_cast<ptrdiff_t>(evicted));
    const auto unreferenced = store_.directory().Unreferenced();
    ASSERT_EQ(unreferenced.size(), lru.size());
    for (size_t i = 0; i < lru.size(); ++i) {
      ASSERT_EQ(unreferenced[i]->key->identity.name, lru[i]) << sequence << " " << i;
    }
    ASSERT_EQ(store_.allocator().free_pages() + store_.directory().unreferenced_pages(),
              kArenaPages);
  }
  EXPECT_GT(evictions, 50u);
}

TEST_F(PrefixReuseTest, ARestartedStoreKnowsTheNames) {
  const auto chain = NamedChain({1, 2});
  Run(1, chain);
  Run(2, NamedChain({5}));
  const Reservation live = Reserve(NamedRequest(3, chain, 1));
  Reserve(NamedRequest(4, {chain[0]}));
  std::vector<DeclaredSequence> sequences;
  for (const uint64_t id : {3, 4}) {
    const SequenceRecord& record = *store_.directory().FindSequence(id);
    DeclaredSequence& sequence = sequences.emplace_back();
    sequence.sequence_id = id;
    sequence.num_cached = record.num_cached;
    for (const uint64_t extent : record.extent_ids) {
      sequence.extents.push_back(*store_.directory().FindExtent(extent));
    }
  }
  Declaration first{.sequences = sequences}, second;
  for (const ExtentRecord* extent : store_.directory().List(0, 100)) {
    if (extent->key == nullptr) continue;
    const bool is_referenced = extent->references > 0;
    (is_referenced ? first : second)
        .segments.push_back({*extent, extent->key->identity, is_referenced});
  }
  ASSERT_EQ(first.segments.size(), 2u);
  ASSERT_EQ(second.segments.size(), 1u);
  // An unreferenced one whose pages are in use is left out; so is one with a wrong name.
  DeclaredSegment stale = second.segments[0];
  stale.extent.id = 50;
  stale.extent.pages = live.extents[2].pages;
  stale.identity = NamedChain({8})[0];
  DeclaredSegment forged = stale;
  forged.extent.id = 51;
  forged.identity.token_ids[0] ^= 1;
  second.segments.insert(second.segments.begin(), {stale, forged});

  SegmentsInMemory restarted(bytes_, kTinyGeometry);
  restarted.SetFingerprint(common::FingerprintHash("model"));
  absl::Status status = restarted.Declare(first);
  ASSERT_TRUE(status.ok()) << status;
  status = restarted.Declare(second);
  ASSERT_TRUE(status.ok()) << status;
  forged.is_referenced = true;
  SegmentsInMemory other(bytes_, kTinyGeometry);
  EXPECT_TRUE(absl::IsInvalidArgument(other.Declare({{forged}, {}})));
  EXPECT_EQ(restarted.directory().num_named(), 3u);
  EXPECT_EQ(restarted.allocator().free_pages(), store_.allocator().free_pages());
  EXPECT_EQ(restarted.directory().unreferenced_pages(), store_.directory().unreferenced_pages());
  EXPECT_EQ(restarted.directory().FindExtent(live.extents[0].id)->references, 2u);
  EXPECT_EQ(restarted.Reserve(NamedRequest(3, chain, 1))->num_cached, 2u);
  EXPECT_EQ(restarted.Reserve(NamedRequest(5, NamedChain({5})))->num_cached, 1u);
  restarted.ReleaseAll();
  EXPECT_EQ(restarted.allocator().free_pages() + restarted.directory().unreferenced_pages(),
            kArenaPages);
}

}  // namespace
}  // namespace retroinfer::kvstore
