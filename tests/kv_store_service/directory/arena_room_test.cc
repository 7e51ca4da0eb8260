// Whatever fits into an arena beside what is in use is granted, whatever else is in it: random
// documents in arenas without memory.
#include <gtest/gtest.h>

#include <ostream>
#include <random>
#include <vector>

#include "common/hash/segment_name.h"
#include "common/status/error_reason.h"
#include "kv_store_service/directory/arena_segments.h"
#include "tests/kv_store_service/random_seed.h"

namespace retroinfer::kvstore {
namespace {

struct Arena {
  KvGeometry geometry;
  uint64_t bytes;
};

void PrintTo(const Arena& arena, std::ostream* out) {
  *out << arena.geometry.num_layers << "x" << arena.geometry.num_kv_heads << "x"
       << arena.geometry.head_dim << " " << arena.geometry.format.name << ", " << arena.bytes
       << " bytes";
}

constexpr uint64_t kMiB = uint64_t{1} << 20;

class ArenaRoomTest : public testing::TestWithParam<Arena> {
 protected:
  ArenaRoomTest()
      : geometry_(GetParam().geometry),
        num_pages_(static_cast<uint32_t>(GetParam().bytes / geometry_.page_bytes())),
        large_(SegmentLayout(geometry_, kPrefillSegmentTokens).max_pages),
        small_(SegmentLayout(geometry_, kDecodeSegmentTokens).max_pages),
        store_(num_pages_, geometry_),
        random_(TestSeed()) {
    store_.SetFingerprint(common::FingerprintHash("model"));
    capacity_ = num_pages_ / large_ * kPrefillSegmentTokens +
                num_pages_ % large_ / small_ * kDecodeSegmentTokens;
  }

  // Segments of a document of `tokens` tokens, with names.
  std::vector<SegmentWanted> Segments(int32_t text, int64_t tokens) const {
    const common::Hash256 salt_hash = common::SaltHash("");
    const std::vector<int32_t> sink(kSinkTokens, 1);
    common::SegmentName parent =
        common::NameSegment(common::RootName("model", salt_hash, kSegmentVersion), sink);
    std::vector<SegmentWanted> segments;
    while (tokens >= kDecodeSegmentTokens) {
      SegmentWanted& segment = segments.emplace_back();
      segment.num_tokens =
          tokens >= kPrefillSegmentTokens ? kPrefillSegmentTokens : kDecodeSegmentTokens;
      tokens -= segment.num_tokens;
      SegmentIdentity& identity = segment.identity.emplace();
      identity.parent = parent;
      identity.salt_hash = salt_hash;
      identity.token_ids.assign(segment.num_tokens, text);
      identity.name = parent = common::NameSegment(parent, identity.token_ids);
    }
    return segments;
  }
  uint64_t PagesOf(const std::vector<SegmentWanted>& segments) const {
    uint64_t pages = 0;
    for (const SegmentWanted& segment : segments) {
      pages += SegmentLayout(geometry_, segment.num_tokens).max_pages;
    }
    return pages;
  }
  // A document of 75 to 100 % of what the arena can hold, or a short one; one of a few, whose
  // texts have another length each time, and answers behind them.
  std::vector<SegmentWanted> Document(int64_t capacity) {
    const auto text = static_cast<int32_t>(1 + random_() % 4);
    const int64_t part = capacity / 4 + 1;
    const bool is_short = random_() % 3 == 0;
    const int64_t tokens = static_cast<int64_t>(random_() % static_cast<uint64_t>(part)) +
                           (is_short ? kDecodeSegmentTokens : capacity - part + 1);
    std::vector<SegmentWanted> segments = Segments(text, std::min(tokens, capacity));
    for (uint64_t more = random_() % 5; more > 0; --more) {
      segments.push_back({kDecodeSegmentTokens, std::nullopt});
      if (PagesOf(segments) <= num_pages_) continue;
      segments.pop_back();
      break;
    }
    return segments;
  }

  // Reserves, and computes what is not cached: commits segments of 88 to 96 % of their extents.
  absl::Status Run(uint64_t sequence, const std::vector<SegmentWanted>& segments) {
    const auto reservation = store_.Reserve({sequence, segments});
    if (!reservation.ok()) return reservation.status();
    CheckDisjoint();
    std::vector<SegmentToCommit> to_commit;
    ReadImages images;
    uint64_t token_begin = kSinkTokens;
    for (size_t i = 0; i < segments.size(); ++i) {
      const ExtentRecord& extent = reservation->extents[i];
      if (i >= reservation->num_cached) {
        to_commit.push_back({extent.id, token_begin, segments[i].num_tokens, segments[i].identity});
        const auto used =
            static_cast<uint32_t>(uint64_t{extent.pages.count} * (880 + random_() % 80) / 1000);
        images.emplace(extent.id, SegmentImage{used});
      }
      token_begin += segments[i].num_tokens;
    }
    if (to_commit.empty()) return absl::OkStatus();
    return store_.Commit(sequence, to_commit, std::move(images)).status();
  }
  void CheckDisjoint() const {
    uint64_t pages = store_.allocator().free_pages();
    for (const ExtentRecord* extent : store_.directory().List(0, SIZE_MAX)) {
      pages += extent->pages.count;
    }
    EXPECT_EQ(pages, num_pages_);
  }

  const KvGeometry geometry_;
  const uint32_t num_pages_;
  const uint32_t large_;
  const uint32_t small_;
  absl::flat_hash_set<common::SegmentName> pinned_;
  ArenaSegments store_;
  std::mt19937_64 random_;
  int64_t capacity_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Arenas, ArenaRoomTest,
                         testing::Values(Arena{{32, 8, 128, kBf16Kv}, 4096 * kMiB},
                                         Arena{{32, 8, 128, kBf16Kv}, 6144 * kMiB},
                                         Arena{{32, 8, 128, kBf16Kv}, 20480 * kMiB},
                                         Arena{{32, 8, 128, kInt8Kv}, 6144 * kMiB},
                                         Arena{{5, 2, 128, kBf16Kv}, 128 * kMiB},
                                         Arena{{5, 2, 128, kBf16Kv}, 144 * kMiB},
                                         Arena{{5, 2, 128, kBf16Kv}, 192 * kMiB},
                                         Arena{{2, 2, 64, kBf16Kv}, 40 * kMiB}));

TEST_P(ArenaRoomTest, AnIdleArenaRefusesNothingThatFits) {
  uint64_t hits = 0;
  for (uint64_t sequence = 1; sequence <= 60; ++sequence) {
    ASSERT_TRUE(Run(sequence, Document(capacity_)).ok()) << sequence;
    hits = store_.counters().hits_tokens;
    store_.Release(sequence);
  }
  EXPECT_GT(hits, 0u);
}

// A pin keeps no request out.
TEST_P(ArenaRoomTest, PinnedContextsRefuseNothingThatFits) {
  store_.SetPinnedNames(&pinned_);
  for (int32_t text = 1; text <= 4; text += 2) {
    for (const SegmentWanted& segment : Segments(text, capacity_ / 4)) {
      pinned_.insert(segment.identity->name);
    }
  }
  for (uint64_t sequence = 1; sequence <= 60; ++sequence) {
    ASSERT_TRUE(Run(sequence, Document(capacity_)).ok()) << sequence;
    store_.Release(sequence);
  }
}

// As long as all who take a part of the arena leave kept segments their half, these stay.
TEST_P(ArenaRoomTest, PinnedContextsStayWhereThereIsRoomForBoth) {
  store_.SetPinnedNames(&pinned_);
  const auto pinned = Segments(1000, capacity_ / 4);
  for (const SegmentWanted& segment : pinned) pinned_.insert(segment.identity->name);
  ASSERT_TRUE(Run(1, pinned).ok());
  store_.Release(1);
  for (uint64_t sequence = 2; sequence <= 60; ++sequence) {
    ASSERT_TRUE(Run(sequence, Document(capacity_ / 2)).ok()) << sequence;
    store_.Release(sequence);
    ASSERT_EQ(store_.FindCached({sequence, pinned}).size(), pinned.size()) << sequence;
  }
}

// What is read back from the disk, for a sequence of the store's own, before the request itself.
TEST_P(ArenaRoomTest, RestoresRefuseNothingThatFits) {
  using Evictable = ArenaSegments::Evictable;
  for (uint64_t sequence = 1; sequence <= 60; ++sequence) {
    std::vector<SegmentWanted> segments = Document(capacity_);
    while (!segments.back().identity.has_value()) segments.pop_back();
    const std::vector<ExtentRecord> held = store_.FindCached({sequence, segments});
    const auto missing = std::span<const SegmentWanted>(segments).subspan(held.size());
    // What is behind a gap would not be read.
    for (const SegmentWanted& segment : missing) store_.EvictNamed(segment.identity->name);
    const uint64_t own = kOwnSequences + sequence;
    if (const auto kept = store_.ReserveOwn(own, held, missing, Evictable::kPinned); kept.ok()) {
      EXPECT_EQ(kept->num_cached, held.size());
      CheckDisjoint();
      store_.Release(own);
    } else {
      EXPECT_EQ(common::ReasonOf(kept.status()).reason, "ARENA_FULL");
      const auto read = store_.ReserveOwn(own, held, missing, Evictable::kCached);
      ASSERT_TRUE(read.ok()) << sequence << ": " << read.status();
      EXPECT_LT(read->num_cached, held.size());
      CheckDisjoint();
      store_.Release(own);
    }
    ASSERT_TRUE(Run(sequence, segments).ok()) << sequence;
    store_.Release(sequence);
  }
}

}  // namespace
}  // namespace retroinfer::kvstore
