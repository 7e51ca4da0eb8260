#include "gpu_worker/kv/kv_memory.h"

#include <gtest/gtest.h>

#include "tests/support/backends.h"

namespace retroinfer {
namespace {

class KvMemoryTest : public testing::TestWithParam<test_support::BackendParam> {
 protected:
  void SetUp() override {
    backend_ = GetParam().create();
    auto memory = KvMemory::Create(
        *backend_->device, {.geometry = {.num_layers = 2, .num_kv_heads = 2, .head_dim = 64},
                            .dense_blocks = 10,
                            .meta_blocks = 4,
                            .max_sequences = 2,
                            .max_model_len = 4096});
    ASSERT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
  }

  std::unique_ptr<test_support::Backend> backend_;
  std::unique_ptr<KvMemory> memory_;
};

TEST_P(KvMemoryTest, ReservesAllOrNothingAndTakesEverythingBack) {
  SequenceKv a, b;
  ASSERT_TRUE(memory_->Reserve({.dense_blocks = 6, .meta_blocks = 2}, a));
  EXPECT_EQ(a.dense_blocks.size(), 6u);
  EXPECT_FALSE(memory_->Reserve({.dense_blocks = 5}, b));
  EXPECT_FALSE(memory_->Reserve({.dense_blocks = 1, .meta_blocks = 3}, b));
  EXPECT_EQ(b.table_row, -1);
  EXPECT_EQ(memory_->dense_blocks().num_used(), 6);
  ASSERT_TRUE(memory_->Reserve({.dense_blocks = 4, .meta_blocks = 2}, b));
  EXPECT_NE(a.table_row, b.table_row);
  memory_->Free(a);
  memory_->Free(b);
  memory_->Free(b);  // holds nothing any more
  EXPECT_EQ(memory_->dense_blocks().num_used(), 0);
  EXPECT_EQ(memory_->meta_blocks().num_used(), 0);
  EXPECT_EQ(memory_->tables().rows().num_used(), 0);
}

TEST_P(KvMemoryTest, RowsOfTheTablesLimitTheSequences) {
  SequenceKv a, b, c;
  ASSERT_TRUE(memory_->Reserve({.dense_blocks = 1}, a));
  ASSERT_TRUE(memory_->Reserve({.dense_blocks = 1}, b));
  EXPECT_FALSE(memory_->Reserve({.dense_blocks = 1}, c));
  EXPECT_EQ(memory_->dense_blocks().num_used(), 2);
}

TEST_P(KvMemoryTest, ASequenceGrowsAndTheTablesLearnOfIt) {
  SequenceKv a, b;
  ASSERT_TRUE(memory_->Reserve(KvBlocks{.dense = 2, .meta = 1}, a));
  ASSERT_TRUE(memory_->Reserve(KvBlocks{.dense = 2, .meta = 1}, b));
  Stream& stream = *backend_->stream;
  ASSERT_TRUE(memory_->tables().WriteMeta(stream, a.table_row, a.meta_blocks).ok());
  const std::vector<DenseBlockId> first = a.dense_blocks;
  EXPECT_FALSE(memory_->Grow({.dense = 7}, a));
  EXPECT_FALSE(memory_->Grow({.dense = 1, .meta = 3}, a));
  EXPECT_EQ(a.dense_blocks, first);
  ASSERT_TRUE(memory_->Grow({.dense = 1}, a));
  ASSERT_TRUE(memory_->Grow({.dense = 1, .meta = 2}, a));
  EXPECT_EQ(a.dense_blocks.size(), 4u);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), a.dense_blocks.begin()));
  EXPECT_EQ(memory_->dense_blocks().num_used(), 6);
  ASSERT_TRUE(memory_->TellTables(stream, a).ok());
  EXPECT_FALSE(a.has_grown);
  const auto read = [&](DeviceSpan<const int32_t> row) {
    std::vector<int32_t> host(row.size());
    EXPECT_TRUE(
        backend_->device
            ->Download(stream,
                       {reinterpret_cast<const std::byte*>(row.device_data()), row.size_bytes()},
                       std::as_writable_bytes(std::span(host)))
            .ok());
    EXPECT_TRUE(stream.Synchronize().ok());
    return host;
  };
  EXPECT_EQ(read(memory_->tables().Dense(a.table_row).first(4)), a.dense_blocks);
  EXPECT_EQ(read(memory_->tables().Meta(a.table_row).first(3)), a.meta_blocks);
  memory_->GiveBack(5, a);
  EXPECT_EQ(a.dense_blocks.size(), 4u);
  memory_->GiveBack(2, a);
  EXPECT_EQ(a.dense_blocks, first);
  EXPECT_EQ(memory_->dense_blocks().num_used(), 4);
  memory_->Free(a);
  memory_->Free(b);
  EXPECT_EQ(memory_->dense_blocks().num_used() + memory_->meta_blocks().num_used(), 0);
}

TEST_P(KvMemoryTest, KnowsWhatCanNeverFit) {
  EXPECT_TRUE(memory_->CouldFit({.dense_blocks = 10, .meta_blocks = 4}));
  EXPECT_FALSE(memory_->CouldFit({.dense_blocks = 11}));
  EXPECT_FALSE(memory_->CouldFit({.meta_blocks = 5}));
}

// Two cached segments of 1024 tokens each.
SequenceKv WithExtents(uint64_t first, uint64_t second) {
  SequenceKv sequence;
  sequence.extents = {{.id = first, .num_tokens = 1024}, {.id = second, .num_tokens = 1024}};
  sequence.num_cached_segments = 2;
  return sequence;
}

TEST_P(KvMemoryTest, ATextIsColdUntilAStepHasAttendedToIt) {
  SequenceKv a = WithExtents(7, 8), b = WithExtents(7, 9);
  ASSERT_TRUE(memory_->Reserve({.meta_blocks = 2}, a));
  EXPECT_EQ(memory_->ColdTokens(a), 0) << "an index of its own is none that is loaded";
  memory_->ShareIndexes(a);
  ASSERT_TRUE(memory_->Reserve({.meta_blocks = 2}, b));
  memory_->ShareIndexes(b);
  EXPECT_EQ(memory_->ColdTokens(a), 2048);
  memory_->Attended(a);
  EXPECT_EQ(memory_->ColdTokens(a), 0);
  EXPECT_EQ(memory_->ColdTokens(b), 1024) << "the other segment is known from a";
  memory_->Free(a);
  SequenceKv c = WithExtents(7, 8);
  ASSERT_TRUE(memory_->Reserve({.meta_blocks = 2}, c));
  memory_->ShareIndexes(c);
  EXPECT_EQ(memory_->ColdTokens(c), 1024) << "nobody had segment 8 any more";
}

TEST_P(KvMemoryTest, TheIndexOfASharedSegmentIsThereOnce) {
  SequenceKv a = WithExtents(7, 8), b = WithExtents(7, 9);
  ASSERT_TRUE(memory_->Reserve({.meta_blocks = 2}, a));
  memory_->ShareIndexes(a);
  ASSERT_TRUE(memory_->Reserve({.meta_blocks = 2}, b));
  memory_->ShareIndexes(b);
  EXPECT_EQ(memory_->meta_blocks().num_used(), 3);
  EXPECT_EQ(a.meta_blocks[0], b.meta_blocks[0]);
  EXPECT_NE(a.meta_blocks[1], b.meta_blocks[1]);
  const MetaBlockId shared = a.meta_blocks[0];
  memory_->Free(a);
  EXPECT_EQ(memory_->meta_blocks().num_used(), 2) << "b has the first one still";
  SequenceKv c = WithExtents(7, 9);
  ASSERT_TRUE(memory_->Reserve({.meta_blocks = 2}, c));
  memory_->ShareIndexes(c);
  EXPECT_EQ(c.meta_blocks, b.meta_blocks);
  EXPECT_EQ(c.meta_blocks[0], shared);
  memory_->Free(b);
  memory_->Free(c);
  EXPECT_EQ(memory_->meta_blocks().num_used(), 0);
}

TEST_P(KvMemoryTest, ASharedIndexIsLoadedByWhoeverGetsThereFirst) {
  SequenceKv a = WithExtents(7, 8), b = WithExtents(7, 8);
  EXPECT_TRUE(memory_->TakeIndexLayer(a.extents[0], 0)) << "nobody shares it";
  ASSERT_TRUE(memory_->Reserve({.meta_blocks = 2}, a));
  memory_->ShareIndexes(a);
  EXPECT_TRUE(memory_->TakeIndexLayer(a.extents[0], 0));
  ASSERT_TRUE(memory_->Reserve({.meta_blocks = 2}, b));
  memory_->ShareIndexes(b);
  EXPECT_FALSE(memory_->TakeIndexLayer(b.extents[0], 0));
  memory_->Free(a);  // ends before the second layer
  EXPECT_TRUE(memory_->TakeIndexLayer(b.extents[0], 1));
  EXPECT_TRUE(memory_->TakeIndexLayer(b.extents[1], 0));
  memory_->Free(b);
  EXPECT_TRUE(memory_->TakeIndexLayer(b.extents[0], 0)) << "nothing is left of it";
}

TEST_P(KvMemoryTest, SegmentsOfTwoSizesAreNotOne) {
  SequenceKv a = WithExtents(7, 8), b = WithExtents(7, 8);
  b.extents[0].num_tokens = 2048;
  ASSERT_TRUE(memory_->Reserve({.meta_blocks = 1}, b));
  a.num_cached_segments = 1;
  ASSERT_TRUE(memory_->Reserve({.meta_blocks = 1}, a));
  memory_->ShareIndexes(a);
  b.meta_blocks.push_back(b.meta_blocks[0]);  // of two blocks
  memory_->ShareIndexes(b);
  EXPECT_EQ(b.num_shared_indexes, 0u);
  b.meta_blocks.pop_back();
  memory_->Free(a);
  memory_->Free(b);
  EXPECT_EQ(memory_->meta_blocks().num_used(), 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, KvMemoryTest,
                         testing::ValuesIn(test_support::AvailableBackends()),
                         test_support::BackendName);

}  // namespace
}  // namespace retroinfer
