#include "gpu_worker/ranks/joint_segment_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace retroinfer {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Notes what it is asked.
class NotingStore final : public SegmentStore {
 public:
  uint32_t arena_pages() const override { return 77; }
  bool attached() const override { return true; }
  uint64_t num_reattached() const override { return 3; }
  bool memory_taken() const override { return true; }
  void Reserve(ReserveRequest request, ReserveCallback callback) override {
    calls.push_back(absl::StrCat("reserve ", request.sequence_id));
    callback(absl::CancelledError("asked"));
  }
  void Commit(uint64_t sequence_id, CommittedSegment segment) override {
    calls.push_back(absl::StrCat("commit ", sequence_id, " ", segment.extent_id));
  }
  void Commit(uint64_t sequence_id, std::vector<CommittedSegment> segments) override {
    calls.push_back(absl::StrCat("commit ", sequence_id, " of ", segments.size()));
  }
  void Release(uint64_t sequence_id) override {
    calls.push_back(absl::StrCat("release ", sequence_id));
  }

  std::vector<std::string> calls;
};

class JointSegmentStoreTest : public testing::Test {
 protected:
  std::vector<std::string> Calls() { return std::exchange(inner_.calls, {}); }
  void Reserve(uint64_t id) {
    store_.Reserve({.sequence_id = id}, [this](const auto& answer) {
      num_answers_ += absl::IsCancelled(answer.status()) ? 1 : 0;
    });
  }

  NotingStore inner_;
  JointSegmentStore store_{inner_, 3};
  int num_answers_ = 0;
};

TEST_F(JointSegmentStoreTest, ASegmentIsCommittedByTheLastRank) {
  store_.Commit(1, CommittedSegment{.extent_id = 10});
  EXPECT_TRUE(store_.NoteWritten(2, {.holder = 1, .extent_id = 10}).ok());
  EXPECT_THAT(Calls(), IsEmpty());
  EXPECT_TRUE(store_.NoteWritten(1, {.holder = 1, .extent_id = 10}).ok());
  EXPECT_THAT(Calls(), ElementsAre("commit 1 10"));
  // Rank 0 may be the last one; of two segments each is by itself.
  EXPECT_TRUE(store_.NoteWritten(1, {.holder = 1, .extent_id = 11}).ok());
  EXPECT_TRUE(store_.NoteWritten(2, {.holder = 1, .extent_id = 12}).ok());
  EXPECT_TRUE(store_.NoteWritten(2, {.holder = 1, .extent_id = 11}).ok());
  EXPECT_THAT(Calls(), IsEmpty());
  store_.Commit(1, CommittedSegment{.extent_id = 11});
  EXPECT_THAT(Calls(), ElementsAre("commit 1 11"));
}

TEST_F(JointSegmentStoreTest, ARankWritesOnce) {
  EXPECT_TRUE(store_.NoteWritten(1, {.holder = 1, .extent_id = 10}).ok());
  EXPECT_EQ(store_.NoteWritten(1, {.holder = 1, .extent_id = 10}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Calls(), IsEmpty());
}

TEST_F(JointSegmentStoreTest, WhatARankSaysIsBounded) {
  for (uint64_t i = 0; i < JointSegmentStore::kMaxParts; ++i) {
    ASSERT_TRUE(store_.NoteWritten(1, {.holder = i, .extent_id = i}).ok());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(store_.NoteWritten(1, {.holder = ~uint64_t{0}})));
}

TEST_F(JointSegmentStoreTest, SavedBlocksAreCommittedAtOnce) {
  store_.Commit(5, std::vector<CommittedSegment>(4));
  EXPECT_THAT(Calls(), ElementsAre("commit 5 of 4"));
}

// What is released may still be written to by ranks that have not been told. What is asked for
// behind that needs what it frees.
TEST_F(JointSegmentStoreTest, ReleasesWaitAndKeepTheirOrder) {
  Reserve(1);
  EXPECT_THAT(Calls(), ElementsAre("reserve 1"));
  store_.Release(1);
  Reserve(2);
  store_.Release(3);
  EXPECT_THAT(Calls(), IsEmpty());
  EXPECT_EQ(num_answers_, 1);
  store_.Settle();
  EXPECT_THAT(Calls(), ElementsAre("release 1", "reserve 2", "release 3"));
  EXPECT_EQ(num_answers_, 2);
  store_.Settle();
  EXPECT_THAT(Calls(), IsEmpty());
  Reserve(4);
  EXPECT_THAT(Calls(), ElementsAre("reserve 4"));
}

// A sequence that ends leaves nothing behind of segments that not all ranks have written.
TEST_F(JointSegmentStoreTest, WhatIsReleasedIsForgotten) {
  store_.Commit(1, CommittedSegment{.extent_id = 10});
  store_.Commit(2, CommittedSegment{.extent_id = 10});
  EXPECT_TRUE(store_.NoteWritten(1, {.holder = 1, .extent_id = 10}).ok());
  store_.Release(1);
  store_.Settle();
  EXPECT_THAT(Calls(), ElementsAre("release 1"));
  EXPECT_TRUE(store_.NoteWritten(1, {.holder = 1, .extent_id = 10}).ok());
  EXPECT_TRUE(store_.NoteWritten(2, {.holder = 1, .extent_id = 10}).ok());
  EXPECT_THAT(Calls(), IsEmpty());
  EXPECT_TRUE(store_.NoteWritten(1, {.holder = 2, .extent_id = 10}).ok());
  EXPECT_TRUE(store_.NoteWritten(2, {.holder = 2, .extent_id = 10}).ok());
  EXPECT_THAT(Calls(), ElementsAre("commit 2 10"));
}

TEST_F(JointSegmentStoreTest, TellsWhatTheStoreIs) {
  EXPECT_EQ(store_.arena_pages(), 77u);
  EXPECT_TRUE(store_.attached());
  EXPECT_EQ(store_.num_reattached(), 3u);
  EXPECT_TRUE(store_.memory_taken());
}

}  // namespace
}  // namespace retroinfer
