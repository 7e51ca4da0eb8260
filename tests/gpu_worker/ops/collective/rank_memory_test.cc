#include "gpu_worker/ops/collective/rank_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "tests/support/rank_threads.h"

namespace retroinfer {
namespace {

using test_support::OnRanks;
using test_support::SharedPages;
using ::testing::HasSubstr;

constexpr size_t kTurn = RankMemory::kAlignment;

// What turn and rank say, where all can see it.
uint64_t WordOf(int rank, int turn) {
  return static_cast<uint64_t>(turn) * 1000 + static_cast<uint64_t>(rank);
}

// Meets the others `turns` times; returns how often it did not find what they had written.
int MeetOften(RankMemory& ranks, int turns) {
  int wrong = 0;
  for (int turn = 0; turn < turns; ++turn) {
    const uint64_t mine = WordOf(ranks.parallel().rank, turn);
    std::memcpy(ranks.Mine().data(), &mine, sizeof(mine));
    if (!ranks.Meet().ok()) return turns;
    for (int rank = 0; rank < ranks.parallel().num_ranks; ++rank) {
      uint64_t found;
      std::memcpy(&found, ranks.Of(rank).data(), sizeof(found));
      wrong += found != WordOf(rank, turn);
    }
  }
  return wrong;
}

TEST(RankMemoryTest, EachTurnShowsWhatAllHaveWritten) {
  for (const int num_ranks : {1, 2, 5}) {
    const SharedPages pages(RankMemory::Bytes(num_ranks, kTurn));
    ASSERT_TRUE(RankMemory::Format(pages.bytes(), num_ranks, kTurn).ok());
    OnRanks(num_ranks, [&](int rank) {
      auto ranks = RankMemory::Attach(pages.bytes(), {rank, num_ranks});
      ASSERT_TRUE(ranks.ok()) << ranks.status();
      EXPECT_EQ(MeetOften(*ranks, 500), 0);
    });
  }
}

TEST(RankMemoryTest, RanksMayBeProcesses) {
  const SharedPages pages(RankMemory::Bytes(2, kTurn));
  ASSERT_TRUE(RankMemory::Format(pages.bytes(), 2, kTurn).ok());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  const int rank = child == 0 ? 1 : 0;
  auto ranks = RankMemory::Attach(pages.bytes(), {rank, 2});
  const int wrong = ranks.ok() ? MeetOften(*ranks, 300) : -1;
  if (child == 0) ::_exit(wrong == 0 ? 0 : 1);
  EXPECT_EQ(wrong, 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(RankMemoryTest, WhoWaitsForARankThatHasEndedIsTold) {
  const SharedPages pages(RankMemory::Bytes(3, kTurn));
  ASSERT_TRUE(RankMemory::Format(pages.bytes(), 3, kTurn).ok());
  OnRanks(3, [&](int rank) {
    auto ranks = RankMemory::Attach(pages.bytes(), {rank, 3});
    ASSERT_TRUE(ranks.ok()) << ranks.status();
    ASSERT_TRUE(ranks->Meet().ok());
    if (rank == 2) return ranks->End();
    EXPECT_EQ(ranks->Meet().code(), absl::StatusCode::kAborted);
    EXPECT_TRUE(ranks->ended());
    EXPECT_EQ(ranks->Meet().code(), absl::StatusCode::kAborted);  // from then on
  });
}

TEST(RankMemoryTest, PiecesLieBehindTheBuffers) {
  constexpr size_t kPiece = 2 * RankMemory::kAlignment;
  const SharedPages pages(RankMemory::Bytes(3, kTurn, kPiece));
  ASSERT_TRUE(RankMemory::Format(pages.bytes(), 3, kTurn, kPiece).ok());
  const auto ranks = RankMemory::Attach(pages.bytes(), {0, 3});
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  EXPECT_EQ(ranks->piece_bytes(), kPiece);
  EXPECT_EQ(ranks->pieces().size(), 3 * kPiece);
  EXPECT_EQ(ranks->pieces().data() + ranks->pieces().size(),
            pages.bytes().data() + RankMemory::Bytes(3, kTurn, kPiece));
  EXPECT_GE(ranks->pieces().data(), ranks->Mine().data() + 3 * kTurn);
}

TEST(RankMemoryTest, APlaceIsTakenOnce) {
  const SharedPages pages(RankMemory::Bytes(2, kTurn));
  ASSERT_TRUE(RankMemory::Format(pages.bytes(), 2, kTurn).ok());
  ASSERT_TRUE(RankMemory::Attach(pages.bytes(), {1, 2}).ok());
  const absl::Status again = RankMemory::Attach(pages.bytes(), {1, 2}).status();
  EXPECT_EQ(again.code(), absl::StatusCode::kAlreadyExists) << again;
  EXPECT_TRUE(RankMemory::Attach(pages.bytes(), {0, 2}).ok());
}

class RankMemoryHeaderTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(RankMemory::Format(pages_.bytes(), 2, kTurn).ok()); }

  void ExpectRefused(const TensorParallel& parallel, const std::string& part) {
    const absl::Status status = RankMemory::Attach(pages_.bytes(), parallel).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
  RankMemoryHeader& header() { return *reinterpret_cast<RankMemoryHeader*>(pages_.bytes().data()); }

  SharedPages pages_{RankMemory::Bytes(2, kTurn)};
};

TEST_F(RankMemoryHeaderTest, IsCheckedByWhoAttaches) {
  ExpectRefused({0, 3}, "is for 2 ranks; this is rank 0 of 3");
  ExpectRefused({2, 2}, "rank 2 of 2");
  ExpectRefused({-1, 2}, "rank -1 of 2");
  header().num_ranks = 3;  // more than there is memory for
  ExpectRefused({0, 3}, "needs");
  header().num_ranks = 1u << 31;
  ExpectRefused({0, 2}, "ranks; 1 to 64");
  header().num_ranks = 2;
  header().turn_bytes = kTurn - 1;
  ExpectRefused({0, 2}, "bytes a turn");
  header().turn_bytes = uint64_t{1} << 63;
  ExpectRefused({0, 2}, "bytes a turn");
  header().turn_bytes = kTurn;
  header().piece_pages = 1;  // more than there is memory for
  ExpectRefused({0, 2}, "needs");
  header().piece_pages = UINT32_MAX;
  ExpectRefused({0, 2}, "pieces of");
  header().piece_pages = 0;
  header().version = RankMemoryHeader::kVersion + 1;
  ExpectRefused({0, 2}, "version");
  header().version = RankMemoryHeader::kVersion;
  header().magic = 1;
  ExpectRefused({0, 2}, "memory of ranks");
}

TEST(RankMemoryTest, MemoryIsMeasuredBeforeItIsUsed) {
  const SharedPages pages(RankMemory::Bytes(2, kTurn));
  const auto short_by_one = pages.bytes().first(pages.bytes().size() - 1);
  EXPECT_EQ(RankMemory::Format(short_by_one, 2, kTurn).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RankMemory::Format(pages.bytes().subspan(64), 2, kTurn).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RankMemory::Format(pages.bytes(), 0, kTurn).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RankMemory::Format(pages.bytes(), 2, 100).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RankMemory::Format(pages.bytes(), 2, kTurn, 100).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RankMemory::Format(pages.bytes(), 2, kTurn, RankMemory::kAlignment).code(),
            absl::StatusCode::kInvalidArgument);
  // Zeros are no memory of ranks.
  EXPECT_EQ(RankMemory::Attach(pages.bytes(), {0, 2}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RankMemory::Attach({}, {0, 1}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ShareOfTest, SharesAreSideBySideAndAsEvenAsUnitsAre) {
  EXPECT_EQ(ShareOf({0, 1}, 101, 16), (Share{0, 101}));
  EXPECT_EQ(ShareOf({0, 2}, 8), (Share{0, 4}));
  EXPECT_EQ(ShareOf({1, 2}, 8), (Share{4, 4}));
  EXPECT_EQ(ShareOf({0, 2}, 101, 16), (Share{0, 48}));  // seven units
  EXPECT_EQ(ShareOf({1, 2}, 101, 16), (Share{48, 53}));
  EXPECT_EQ(ShareOf({2, 3}, 16, 16), (Share{0, 16}));  // one unit for three
  for (const int num_ranks : {1, 2, 3, 7, 64}) {
    int64_t end = 0;
    for (int rank = 0; rank < num_ranks; ++rank) {
      const Share share = ShareOf({rank, num_ranks}, 151936, 128);
      EXPECT_EQ(share.first, end);
      end += share.count;
    }
    EXPECT_EQ(end, 151936);
  }
}

}  // namespace
}  // namespace retroinfer
