#include "gpu_worker/ops/model/cuda/int4_layout.h"

#include <gtest/gtest.h>

#include <set>

#include "gpu_worker/ops/model/cuda/weight_forms.h"

namespace retroinfer::cuda {
namespace {

TEST(Int4LayoutTest, EveryWordAndGroupHasAPlaceOfItsOwn) {
  constexpr int64_t kRows = 48, kCols = 384;
  std::set<int64_t> words;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t col = 0; col < kCols; col += 8) words.insert(Int4WordAt(row, col, kCols));
  }
  EXPECT_EQ(std::ssize(words), kRows * kCols / 8);
  EXPECT_EQ(*words.begin(), 0);
  EXPECT_EQ(*words.rbegin(), Int4CodeBytes(kRows, kCols) / 4 - 1);
  for (const int64_t group_cols : {32, 64, 128}) {
    std::set<int64_t> groups;
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t group = 0; group < kCols / group_cols; ++group) {
        groups.insert(Int4GroupAt(row, group, kCols / group_cols));
      }
    }
    EXPECT_EQ(std::ssize(groups), kRows * kCols / group_cols);
    EXPECT_EQ(*groups.rbegin(), Int4GroupBytes(kRows, kCols, group_cols) / 4 - 1);
  }
  std::set<int> shifts;
  for (int64_t col = 0; col < 8; ++col) shifts.insert(Int4ShiftOf(col));
  EXPECT_EQ(shifts, (std::set<int>{0, 4, 8, 12, 16, 20, 24, 28}));
  EXPECT_EQ(Int4ShiftOf(4), 8);
  EXPECT_EQ(Int4ShiftOf(5), 24);  // beside column 4 when the word is shifted by 8 and masked
}

// As the kernel for few rows reads them: lane l has row l / 4 and, in its word w, columns from
// w * 32 + l % 4 * 8 on.
TEST(Int4LayoutTest, AWarpReadsConsecutiveBytes) {
  for (int64_t lane = 0; lane < 32; ++lane) {
    for (int64_t word = 0; word < 4; ++word) {
      const int64_t col = 256 + word * 32 + lane % 4 * 8;
      EXPECT_EQ(Int4WordAt(32 + lane / 4, col, 512), Int4WordAt(32, 256, 512) + lane * 4 + word);
      EXPECT_EQ(Int4WordAt(40 + lane / 4, col, 512),
                Int4WordAt(32, 256, 512) + 128 + lane * 4 + word);
    }
  }
}

TEST(Int4LayoutTest, FormsWithOtherGroupsAreRefused) {
  for (const int64_t cols : {0, 32, 64, 128, 256})
    EXPECT_TRUE(HasWeightForm(Int4Weights(cols, true)));
  for (const int64_t cols : {16, 48, 96, 192})
    EXPECT_FALSE(HasWeightForm(Int4Weights(cols, false)));
}

// What a backend takes together with what the form says of scales is what is allocated.
TEST(Int4LayoutTest, BytesAreThoseOfCodesAndGroups) {
  for (const int64_t group_cols : {0, 32, 128, 256}) {
    const WeightForm form = Int4Weights(group_cols, true);
    EXPECT_EQ(WeightBytes(form, 4096, 1024) + form.ScaleBytes(1024, 4096),
              static_cast<size_t>(Int4CodeBytes(1024, 4096) +
                                  Int4GroupBytes(1024, 4096, Int4GroupCols(form))));
  }
  EXPECT_EQ(Int4CodeBytes(17, 129), 32 * 256 / 2);
}

}  // namespace
}  // namespace retroinfer::cuda
