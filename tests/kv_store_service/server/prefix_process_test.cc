// Named segments in the real program while workers and stores are killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "build_paths.h"
#include "tests/kv_store_service/named_chain.h"
#include "tests/kv_store_service/random_seed.h"
#include "tests/kv_store_service/server/store_process_fixture.h"

namespace retroinfer::kvstore {
namespace {

class PrefixProcessTest : public StoreProcessTest {
 protected:
  static std::byte* Mark(StoreLink& link, const Extent& extent) {
    const SegmentLayout layout(kTinyGeometry, 1024);
    return BytesOf(link, extent).data() + layout.centroids_offset;
  }
  // Writes a segment whose bytes tell its name.
  static void Write(StoreLink& link, const Extent& extent, uint64_t token_begin,
                    const SegmentIdentity& identity) {
    WriteSegment(BytesOf(link, extent), kTinyGeometry, token_begin, 1024);
    std::memcpy(Mark(link, extent), identity.name.bytes.data(), identity.name.bytes.size());
  }
  static bool HoldsSegment(StoreLink& link, const Extent& extent, const SegmentIdentity& identity) {
    return std::memcmp(Mark(link, extent), identity.name.bytes.data(),
                       identity.name.bytes.size()) == 0;
  }
};

TEST_F(PrefixProcessTest, AKilledWorkerLeavesItsNamedSegmentsToTheNextOne) {
  StartStore();
  ChildProcess worker(
      {absl::StrCat(RETROINFER_BINARY_DIR, "/bin/store_fake_worker"), target(), "named"},
      log_path_);
  ASSERT_TRUE(Eventually([&] { return worker.Log().find("ready") != std::string::npos; }));
  worker.Kill();
  ASSERT_TRUE(Eventually([&] { return !Stats().worker_attached(); }));
  EXPECT_EQ(Stats().named_segments(), 1u);
  EXPECT_EQ(Stats().reserved_extents() + Stats().sequences(), 0u);
  {
    auto link = StoreLink::Connect(LinkOptions());
    ASSERT_TRUE(link.ok()) << link.status();
    const auto extents = Reserve(**link, NamedRequest(1, NamedChain({1, 2})));
    ASSERT_TRUE(extents.ok()) << extents.status();
    EXPECT_TRUE((*extents)[0].cached);
    EXPECT_FALSE((*extents)[1].cached);
  }
  StoreLinkOptions other = LinkOptions();
  other.model_fingerprint = "other";
  auto link = StoreLink::Connect(other);
  ASSERT_TRUE(link.ok()) << link.status();
  const auto extents = Reserve(**link, NamedRequest(1, NamedChain({1})));
  ASSERT_TRUE(extents.ok()) << extents.status();
  EXPECT_FALSE((*extents)[0].cached);
}

// Chains with common prefixes in a small arena, so that segments are evicted all the time, while
// the store is killed again and again: what is cached is always what its name says, and at the end
// no page is lost.
TEST_F(PrefixProcessTest, KillsOfTheStoreNeverMixUpSegments) {
  std::mt19937_64 random(TestSeed());
  StartStore();
  StoreLinkOptions options = LinkOptions();
  options.reserve_timeout = absl::Seconds(2);
  auto link = StoreLink::Connect(options);
  ASSERT_TRUE(link.ok()) << link.status();
  uint64_t sequence = 0;
  uint64_t num_hits = 0;
  std::vector<uint64_t> live;
  // On a busy machine little happens between two kills: then there are more of them, and between
  // them time for at least two reservations, so that one can find what the other committed.
  for (int kill = 0; kill < 6 || (num_hits <= 10 && kill < 60); ++kill) {
    const absl::Time end = absl::Now() + absl::Milliseconds(30 + random() % 150);
    for (int granted = 0; absl::Now() < end || granted < 2;) {
      if (live.size() >= 2) {
        (*link)->Release(live.front());
        live.erase(live.begin());
      }
      std::vector<int32_t> texts;
      for (uint64_t i = 0, n = 1 + random() % 3; i < n; ++i) texts.push_back(1 + random() % 3);
      const auto chain = NamedChain(texts);
      const auto extents = Reserve(**link, NamedRequest(++sequence, chain));
      if (!extents.ok()) continue;
      ++granted;
      live.push_back(sequence);
      for (size_t i = 0; i < chain.size(); ++i) {
        const uint64_t begin = kSinkTokens + 1024 * i;
        if ((*extents)[i].cached) {
          ++num_hits;
          ASSERT_TRUE(HoldsSegment(**link, (*extents)[i], chain[i])) << "sequence " << sequence;
          continue;
        }
        Write(**link, (*extents)[i], begin, chain[i]);
        ASSERT_TRUE(Commit(**link, sequence, {{(*extents)[i].id, begin, chain[i]}}).ok());
      }
    }
    store_->Kill();
    StartStore();
  }
  // The link says that it is attached until it has noticed the last kill: only the store knows
  // whether this is the new attachment.
  ASSERT_TRUE(Eventually([&] {
    return (*link)->num_pending() == 0 && (*link)->state() == StoreLink::State::kAttached &&
           Stats().sequences() == live.size();
  }));
  EXPECT_GT(num_hits, 10u);
  for (const uint64_t id : live) (*link)->Release(id);
  EXPECT_TRUE(Eventually([&] { return Stats().sequences() == 0; }));
  const v1::GetStatsResponse stats = Stats();
  EXPECT_EQ(stats.free_pages() + stats.unreferenced_pages(), stats.arena_pages());
  EXPECT_EQ(stats.named_segment_pages(), stats.unreferenced_pages());
  EXPECT_GT(stats.named_segments(), 0u);
}

}  // namespace
}  // namespace retroinfer::kvstore
