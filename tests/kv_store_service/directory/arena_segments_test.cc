#include "kv_store_service/directory/arena_segments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "common/status/error_reason.h"
#include "kv_store_service/directory/segment_checks.h"
#include "tests/kv_store_service/segment_writer.h"
#include "tests/kv_store_service/segments_in_memory.h"

namespace retroinfer::kvstore {
namespace {

using testing::HasSubstr;

constexpr uint32_t kArenaPages = 6000;

class ArenaSegmentsTest : public testing::Test {
 protected:
  ArenaSegmentsTest() : bytes_(kArenaPages * kPageBytes), store_(bytes_, kTinyGeometry) {}

  std::vector<ExtentRecord> Reserve(uint64_t sequence, std::vector<uint32_t> tokens) {
    auto reserved = store_.Reserve(ReserveRequest::Unnamed(sequence, tokens));
    EXPECT_TRUE(reserved.ok()) << reserved.status();
    return reserved.ok() ? reserved->extents : std::vector<ExtentRecord>{};
  }
  uint32_t Write(const ExtentRecord& extent, uint64_t token_begin) {
    return WriteSegment(std::span(bytes_).subspan(size_t{extent.pages.first} * kPageBytes,
                                                  size_t{extent.pages.count} * kPageBytes),
                        kTinyGeometry, token_begin, extent.reserved_tokens);
  }
  absl::StatusCode Commit(uint64_t sequence, std::vector<SegmentToCommit> segments) {
    return store_.Commit(sequence, segments).status().code();
  }

  std::vector<std::byte> bytes_;
  SegmentsInMemory store_;
};

TEST_F(ArenaSegmentsTest, ReservesCommitsAndReleases) {
  const auto extents = Reserve(1, {1024, 1024});
  ASSERT_EQ(extents.size(), 2u);
  const uint32_t used = Write(extents[0], 4);
  const auto committed = store_.Commit(1, std::vector<SegmentToCommit>{{extents[0].id, 4, 1024}});
  ASSERT_TRUE(committed.ok()) << committed.status();
  EXPECT_EQ(committed->front().pages, (PageRun{extents[0].pages.first, used}));
  EXPECT_EQ(store_.num_clusters(), 256u);
  EXPECT_EQ(store_.Release(1), used + extents[1].pages.count);
  EXPECT_EQ(store_.allocator().free_pages(), kArenaPages);
  EXPECT_EQ(store_.num_clusters(), 0u);
  EXPECT_EQ(store_.directory().num_extents(), 0u);
  EXPECT_EQ(store_.Release(1), 0u);
}

// What a large segment does not use is room for a small one, and its own again when both end.
TEST(ArenaSegmentsTailTest, ASmallExtentLiesBehindWhatALargeSegmentUses) {
  const KvGeometry geometry{2, 2, 128, kInt8Kv};
  const SegmentLayout large(geometry, kPrefillSegmentTokens);
  const SegmentLayout small(geometry, kDecodeSegmentTokens);
  std::vector<std::byte> bytes(size_t{2} * large.max_pages * kPageBytes);
  SegmentsInMemory store(bytes, geometry);
  const auto reserve = [&](uint64_t sequence, std::vector<uint32_t> tokens) {
    return store.Reserve(ReserveRequest::Unnamed(sequence, tokens))->extents;
  };
  const ExtentRecord first = reserve(1, {kPrefillSegmentTokens})[0];
  ASSERT_EQ(first.pages, (PageRun{0, large.max_pages}));
  const uint32_t used = WriteSegment(bytes, geometry, 4, kPrefillSegmentTokens, 2);
  const uint32_t tail = large.max_pages - used;
  ASSERT_TRUE(tail > small.max_pages && tail < 2 * small.max_pages) << tail;
  const std::vector<SegmentToCommit> segment = {{first.id, 4, kPrefillSegmentTokens}};
  ASSERT_TRUE(store.Commit(1, segment).ok());

  const auto both = reserve(2, {kPrefillSegmentTokens, kDecodeSegmentTokens});
  EXPECT_EQ(both[0].pages, (PageRun{large.max_pages, large.max_pages}));
  EXPECT_EQ(both[1].pages, (PageRun{large.max_pages - small.max_pages, small.max_pages}));
  EXPECT_GE(both[1].pages.first, used);
  // The first one's pages are its own: what it may commit again is what it had.
  EXPECT_EQ((*store.Commit(1, segment))[0].pages, (PageRun{0, used}));
  store.Release(1);
  store.Release(2);
  EXPECT_EQ(store.allocator().free_pages(), 2 * large.max_pages);
  EXPECT_EQ(reserve(3, {kPrefillSegmentTokens, kPrefillSegmentTokens}).size(), 2u);
}

TEST_F(ArenaSegmentsTest, ARepeatedReservationIsTheSame) {
  const auto first = Reserve(1, {1024, 2048});
  const auto again = Reserve(1, {1024, 2048});
  EXPECT_EQ(first[1].id, again[1].id);
  EXPECT_EQ(first[1].pages, again[1].pages);
  EXPECT_EQ(store_.Reserve(ReserveRequest::Unnamed(1, std::vector<uint32_t>{1024})).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(store_.directory().num_extents(), 2u);
}

TEST_F(ArenaSegmentsTest, AFullArenaTakesNothingAndTellsTheNumbers) {
  const uint64_t each = Reserve(1, {1024})[0].pages.count;
  const auto refused =
      store_.Reserve(ReserveRequest::Unnamed(2, std::vector<uint32_t>(kArenaPages / each, 1024)));
  ASSERT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(store_.allocator().free_pages(), kArenaPages - each);
  EXPECT_EQ(store_.directory().num_sequences(), 1u);
  const common::ErrorReason reason = common::ReasonOf(refused.status());
  EXPECT_EQ(reason.reason, "ARENA_FULL");
  EXPECT_EQ(reason.metadata.at("free_pages"), std::to_string(kArenaPages - each));
}

TEST_F(ArenaSegmentsTest, AFragmentedArenaTakesNothing) {
  const uint32_t each = Reserve(1, {1024})[0].pages.count;
  uint64_t sequence = 1;
  while (store_.allocator().free_pages() >= each) Reserve(++sequence, {1024});
  for (uint64_t odd = 1; odd <= sequence; odd += 2) store_.Release(odd);
  const uint64_t free = store_.allocator().free_pages();
  ASSERT_GT(free, uint64_t{each} * 2);
  EXPECT_EQ(store_.Reserve(ReserveRequest::Unnamed(1000, std::vector<uint32_t>{1024, 2048}))
                .status()
                .code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(store_.allocator().free_pages(), free);
}

TEST_F(ArenaSegmentsTest, RefusesTokenCountsThatAreNoSegment) {
  for (const uint32_t tokens : {0u, 65u, 1023u, 1025u, 9216u, UINT32_MAX}) {
    EXPECT_EQ(
        store_.Reserve(ReserveRequest::Unnamed(1, std::vector<uint32_t>{tokens})).status().code(),
        absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(store_.Reserve(ReserveRequest::Unnamed(1, {})).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store_.Reserve(ReserveRequest::Unnamed(1, std::vector<uint32_t>(65537, 1024)))
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ArenaSegmentsTest, CommitIsAllOrNothing) {
  const auto extents = Reserve(1, {1024, 1024});
  Write(extents[0], 4);
  const uint64_t free = store_.allocator().free_pages();
  EXPECT_EQ(Commit(1, {{extents[0].id, 4, 1024}, {extents[1].id, 1028, 1024}}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store_.directory().num_committed(), 0u);
  EXPECT_EQ(store_.allocator().free_pages(), free);
  Write(extents[1], 1028);
  EXPECT_EQ(Commit(1, {{extents[1].id, 1028, 1024}, {extents[0].id, 4, 1024}}),
            absl::StatusCode::kOk);
  EXPECT_EQ(store_.directory().num_committed(), 2u);
}

TEST_F(ArenaSegmentsTest, CommittingAgainChangesNothing) {
  const auto extents = Reserve(1, {1024});
  Write(extents[0], 4);
  EXPECT_EQ(Commit(1, {{extents[0].id, 4, 1024}}), absl::StatusCode::kOk);
  const uint64_t free = store_.allocator().free_pages();
  EXPECT_EQ(Commit(1, {{extents[0].id, 4, 1024}}), absl::StatusCode::kOk);
  EXPECT_EQ(store_.allocator().free_pages(), free);
  EXPECT_EQ(Commit(1, {{extents[0].id, 1028, 1024}}), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ArenaSegmentsTest, RefusesCommitsThatDoNotFit) {
  const auto extents = Reserve(1, {1024, 1024});
  Reserve(2, {1024});
  Write(extents[0], 4);
  Write(extents[1], 4);
  EXPECT_EQ(Commit(1, {}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Commit(1, {{99, 4, 1024}}), absl::StatusCode::kNotFound);
  EXPECT_EQ(Commit(2, {{extents[0].id, 4, 1024}}), absl::StatusCode::kNotFound);
  EXPECT_EQ(Commit(3, {{extents[0].id, 4, 1024}}), absl::StatusCode::kNotFound);
  EXPECT_EQ(Commit(1, {{extents[0].id, 4, 2048}}), absl::StatusCode::kInvalidArgument);
  for (const uint64_t begin : {uint64_t{0}, uint64_t{5}, uint64_t{1024}, UINT64_MAX - 1019}) {
    EXPECT_EQ(Commit(1, {{extents[0].id, begin, 1024}}), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(Commit(1, {{extents[0].id, 4, 1024}, {extents[0].id, 4, 1024}}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Commit(1, {{extents[0].id, 4, 1024}, {extents[1].id, 4, 1024}}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Commit(1, {{extents[0].id, 4, 1024}}), absl::StatusCode::kOk);
  EXPECT_EQ(Commit(1, {{extents[1].id, 4, 1024}}), absl::StatusCode::kInvalidArgument);
}

class DeclarationTest : public ArenaSegmentsTest {
 protected:
  DeclarationTest() {
    const auto extents = Reserve(1, {1024, 1024, 1024});
    Write(extents[0], 4);
    Write(extents[2], 1028);
    EXPECT_EQ(Commit(1, {{extents[0].id, 4, 1024}, {extents[2].id, 1028, 1024}}),
              absl::StatusCode::kOk);
    Reserve(2, {2048});
    for (const uint64_t id : {1, 2}) {
      DeclaredSequence& sequence = known_.emplace_back();
      sequence.sequence_id = id;
      for (const uint64_t extent : store_.directory().FindSequence(id)->extent_ids) {
        sequence.extents.push_back(*store_.directory().FindExtent(extent));
      }
    }
  }
  std::vector<DeclaredSequence> known_;
};

TEST_F(DeclarationTest, ANewStoreKnowsWhatTheOldOneKnew) {
  SegmentsInMemory restarted(bytes_, kTinyGeometry);
  const absl::Status status = restarted.Declare({{}, known_});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(restarted.allocator().free_pages(), store_.allocator().free_pages());
  EXPECT_EQ(restarted.allocator().largest_free(), store_.allocator().largest_free());
  EXPECT_EQ(restarted.directory().num_committed(), 2u);
  EXPECT_EQ(restarted.num_clusters(), store_.num_clusters());
  const auto next = restarted.Reserve(ReserveRequest::Unnamed(3, std::vector<uint32_t>{1024}));
  ASSERT_TRUE(next.ok());
  EXPECT_GT(next->extents.front().id, known_[1].extents[0].id);
  restarted.Release(1);
  restarted.Release(2);
  restarted.Release(3);
  EXPECT_EQ(restarted.allocator().free_pages(), kArenaPages);
}

TEST_F(DeclarationTest, RefusesWhatDoesNotFitAndIsEmptyThen) {
  const auto refuses = [&](const char* what, auto change) {
    std::vector<DeclaredSequence> known = known_;
    change(known);
    SegmentsInMemory restarted(bytes_, kTinyGeometry);
    EXPECT_EQ(restarted.Declare({{}, known}).code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_EQ(restarted.allocator().free_pages(), kArenaPages) << what;
    EXPECT_EQ(restarted.directory().num_sequences(), 0u) << what;
    EXPECT_EQ(restarted.num_clusters(), 0u) << what;
    EXPECT_TRUE(restarted.Declare({{}, known_}).ok()) << what;
  };
  refuses("same sequence", [](auto& known) { known[1].sequence_id = 1; });
  refuses("same extent id", [](auto& known) { known[1].extents[0].id = known[0].extents[0].id; });
  refuses("extent id 0", [](auto& known) { known[1].extents[0].id = 0; });
  // The next ones would be numbers that are in use.
  refuses("large id", [](auto& known) { known[1].extents[0].id = UINT64_MAX - 1; });
  refuses("overlap", [](auto& known) { known[1].extents[0].pages = known[0].extents[1].pages; });
  refuses("outside", [](auto& known) { known[1].extents[0].pages.first = kArenaPages - 1; });
  refuses("too short", [](auto& known) { --known[1].extents[0].pages.count; });
  refuses("no segment", [](auto& known) { known[0].extents[1].token_begin = 2052; });
  refuses("other begin", [](auto& known) { known[0].extents[0].token_begin = 2052; });
  refuses("other tokens", [](auto& known) { known[0].extents[0].reserved_tokens = 2048; });
  refuses("bad tokens", [](auto& known) { known[1].extents[0].reserved_tokens = 7; });
  refuses("not cut", [](auto& known) { known[0].extents[2].pages.count -= 1; });
  refuses("empty sequence", [](auto& known) { known[1].extents.clear(); });
  // Last, because it changes the bytes.
  Write(known_[0].extents[2], 4);
  known_[0].extents[2].token_begin = 4;
  SegmentsInMemory restarted(bytes_, kTinyGeometry);
  EXPECT_THAT(std::string(restarted.Declare({{}, known_}).message()), HasSubstr("have token 4"));
  EXPECT_EQ(restarted.allocator().free_pages(), kArenaPages);
}

TEST(CheckGeometryTest, RefusesSegmentsThatCannotBeCounted) {
  EXPECT_TRUE(CheckGeometry({32, 8, 128, kBf16Kv}).ok());
  EXPECT_FALSE(CheckGeometry({1024, 1024, 128, kF32Kv}).ok());
  EXPECT_FALSE(CheckGeometry({0, 8, 128, kBf16Kv}).ok());
}

}  // namespace
}  // namespace retroinfer::kvstore
