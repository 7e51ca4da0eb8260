#include "gpu_worker/ops/attention/cuda/chosen_blocks.h"

#include <gtest/gtest.h>

namespace retroinfer::cuda {
namespace {

TEST(ChosenBlocksTest, PartsLieOneBehindTheOther) {
  const ChoiceLayout layout(3, 4, 65);
  EXPECT_EQ(layout.words_of_pair, 3);
  EXPECT_EQ(layout.words, size_t{12} * 65 * 4 * 4);
  EXPECT_EQ(layout.counts - layout.words, size_t{12} * 3 * 4);
  EXPECT_EQ(layout.order - layout.counts, size_t{12} * 4);
  EXPECT_EQ(layout.end - layout.order, size_t{12} * 4);
  EXPECT_EQ(layout.end, 3 * ChoiceBytesOfUnit(4, 65));
}

TEST(ChosenBlocksTest, ScratchHoldsAPassOrAsMuchAsIsAllowed) {
  EXPECT_EQ(PrefillAttentionScratchBytes(63, 131072, 32), 0);
  EXPECT_EQ(PrefillAttentionScratchBytes(1024, 131072, 32), ChoiceLayout(16, 32, 1024).end);
  // A million tokens: a whole pass.
  EXPECT_EQ(PrefillAttentionScratchBytes(1024, 1 << 20, 32), ChoiceLayout(16, 32, 8192).end);
  EXPECT_EQ(PrefillAttentionScratchBytes(1024, 10 << 20, 32), kMostChoiceBytes);
  // One unit must have room, however long its prompt.
  EXPECT_EQ(PrefillAttentionScratchBytes(1024, 100 << 20, 32), ChoiceLayout(1, 32, 819200).end);
}

// What is planned for the largest pass is enough for smaller ones.
TEST(ChosenBlocksTest, ScratchGrowsWithEachNumber) {
  size_t last = 0;
  for (const int64_t tokens : {5000, 100'000, 1'000'000, 20'000'000, 100'000'000}) {
    size_t of_rows = 0;
    for (const int64_t rows : {64, 100, 1024, 4096, 65536}) {
      const size_t bytes = PrefillAttentionScratchBytes(rows, tokens, 32);
      EXPECT_GE(bytes, of_rows);
      EXPECT_GE(PrefillAttentionScratchBytes(rows, tokens, 64), bytes);
      of_rows = bytes;
    }
    EXPECT_GE(of_rows, last);
    last = of_rows;
  }
}

}  // namespace
}  // namespace retroinfer::cuda
