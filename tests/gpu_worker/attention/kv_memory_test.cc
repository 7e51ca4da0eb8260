#include "gpu_worker/attention/kv_memory.h"

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

TEST_P(KvMemoryTest, KnowsWhatCanNeverFit) {
  EXPECT_TRUE(memory_->CouldFit({.dense_blocks = 10, .meta_blocks = 4}));
  EXPECT_FALSE(memory_->CouldFit({.dense_blocks = 11}));
  EXPECT_FALSE(memory_->CouldFit({.meta_blocks = 5}));
}

// Two cached segments of 1024 tokens each.
SequenceKv WithExtents(uint64_t first, uint64_t second) {
  SequenceKv sequence;
  sequence.prefix.segments = {{.token_begin = 4, .num_tokens = 1024},
                              {.token_begin = 1028, .num_tokens = 1024}};
  sequence.extents = {{.id = first, .num_tokens = 1024}, {.id = second, .num_tokens = 1024}};
  sequence.num_cached_segments = 2;
  return sequence;
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
  b.prefix.segments[0].num_tokens = 2048;
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
