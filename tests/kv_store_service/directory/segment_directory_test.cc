#include "kv_store_service/directory/segment_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer::kvstore {
namespace {

using testing::ElementsAre;

ExtentRecord Record(uint64_t id, uint64_t sequence, PageRun pages) {
  return {id, pages, sequence, 1024, {}};
}

class SegmentDirectoryTest : public testing::Test {
 protected:
  SegmentDirectoryTest() {
    EXPECT_TRUE(directory_.AddSequence(7, {Record(1, 7, {0, 10}), Record(2, 7, {10, 10})}).ok());
    EXPECT_TRUE(directory_.AddSequence(8, {Record(3, 8, {20, 10})}).ok());
  }
  SegmentDirectory directory_;
};

TEST_F(SegmentDirectoryTest, FindsSequencesAndExtents) {
  EXPECT_THAT(directory_.FindSequence(7)->extent_ids, ElementsAre(1, 2));
  EXPECT_EQ(directory_.FindSequence(9), nullptr);
  EXPECT_EQ(directory_.FindExtent(3)->sequence_id, 8u);
  EXPECT_EQ(directory_.FindExtent(4), nullptr);
  EXPECT_EQ(directory_.num_extents(), 3u);
  EXPECT_EQ(directory_.num_sequences(), 2u);
}

TEST_F(SegmentDirectoryTest, RefusesAKnownSequence) {
  EXPECT_EQ(directory_.AddSequence(8, {Record(4, 8, {40, 1})}).code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(directory_.num_extents(), 3u);
}

TEST_F(SegmentDirectoryTest, CommitCutsTheTail) {
  EXPECT_EQ(directory_.Commit(2, 1028, 6), (PageRun{16, 4}));
  EXPECT_TRUE(directory_.FindExtent(2)->committed());
  EXPECT_EQ(directory_.FindExtent(2)->pages, (PageRun{10, 6}));
  EXPECT_EQ(directory_.Commit(1, 4, 10).count, 0u);
  EXPECT_EQ(directory_.num_committed(), 2u);
}

TEST_F(SegmentDirectoryTest, FindsOverlapsWithinTheSequenceOnly) {
  directory_.Commit(1, 1028, 5);
  EXPECT_EQ(directory_.FindOverlap(7, 4, 1024), nullptr);
  EXPECT_EQ(directory_.FindOverlap(7, 5, 1024)->id, 1u);
  EXPECT_EQ(directory_.FindOverlap(7, 2051, 1)->id, 1u);
  EXPECT_EQ(directory_.FindOverlap(7, 2052, 1024), nullptr);
  EXPECT_EQ(directory_.FindOverlap(8, 1028, 1024), nullptr);
  EXPECT_EQ(directory_.FindOverlap(99, 1028, 1024), nullptr);
}

TEST_F(SegmentDirectoryTest, RemovingASequenceReturnsItsExtents) {
  directory_.Commit(1, 4, 5);
  const auto removed = directory_.RemoveSequence(7);
  ASSERT_EQ(removed.size(), 2u);
  EXPECT_EQ(removed[0].pages, (PageRun{0, 5}));
  EXPECT_EQ(directory_.num_committed(), 0u);
  EXPECT_EQ(directory_.num_extents(), 1u);
  EXPECT_TRUE(directory_.RemoveSequence(7).empty());
}

TEST_F(SegmentDirectoryTest, ListsInPages) {
  EXPECT_EQ(directory_.List(0, 10).size(), 3u);
  const auto page = directory_.List(1, 1);
  ASSERT_EQ(page.size(), 1u);
  EXPECT_EQ(page[0]->id, 2u);
  EXPECT_TRUE(directory_.List(3, 10).empty());
}

}  // namespace
}  // namespace retroinfer::kvstore
