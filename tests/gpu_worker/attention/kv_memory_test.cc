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

INSTANTIATE_TEST_SUITE_P(Backends, KvMemoryTest,
                         testing::ValuesIn(test_support::AvailableBackends()),
                         test_support::BackendName);

}  // namespace
}  // namespace retroinfer
