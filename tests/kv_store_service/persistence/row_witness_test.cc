#include "kv_store_service/persistence/row_witness.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/kv_store_service/persistence/sample_segments.h"
#include "tests/kv_store_service/temporary_folder.h"

namespace retroinfer::kvstore {
namespace {

class RowWitnessTest : public ::testing::Test {
 protected:
  RowWitness Open() { return *RowWitness::Open(path_, &catalog_); }
  void Insert(int index) { catalog_.Insert({.record = testing::MakeSample(index, 8).record}); }

  TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/COUNTS";
  SegmentCatalog catalog_;
};

TEST_F(RowWitnessTest, KeepsTheLastCounts) {
  EXPECT_EQ(*Open().Read(), std::nullopt);
  EXPECT_EQ(Open().CountLost({}), 0u);
  for (int i = 0; i < 3; ++i) Insert(i);
  Open().Raise();
  EXPECT_EQ(*Open().Read(), (RowCounts{3, 0}));
  ASSERT_TRUE(Open().Lower({.segments = 2}).ok());
  EXPECT_EQ(*Open().Read(), (RowCounts{1, 0}));
  ASSERT_TRUE(Open().Lower({.segments = 9, .contexts = 9}).ok());
  EXPECT_EQ(*Open().Read(), (RowCounts{0, 0}));
  EXPECT_EQ(std::filesystem::file_size(path_), 28u);
}

TEST_F(RowWitnessTest, CountsWhatIsMissingAndNotWhatWasFoundDamaged) {
  for (int i = 0; i < 3; ++i) Insert(i);
  Open().Raise();
  EXPECT_EQ(Open().CountLost({}), 0u);
  catalog_.Erase(testing::MakeSample(1, 8).name());
  catalog_.Erase(testing::MakeSample(2, 8).name());
  EXPECT_EQ(Open().CountLost({}), 2u);
  EXPECT_EQ(Open().CountLost({.segments = 1}), 1u);
  EXPECT_EQ(Open().CountLost({.segments = 2}), 0u);
}

TEST_F(RowWitnessTest, NoticesEveryFlippedBit) {
  Open().Raise();
  std::ifstream file(path_, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(file), {}};
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] ^= static_cast<char>(1 << bit % 8);
    std::ofstream(path_, std::ios::binary) << bad;
    EXPECT_TRUE(absl::IsDataLoss(Open().Read().status())) << bit;
    EXPECT_EQ(Open().CountLost({}), 1u);
  }
}

TEST_F(RowWitnessTest, SaysWhereItCannotBeOpened) {
  EXPECT_FALSE(RowWitness::Open("/no/such/folder/COUNTS", &catalog_).ok());
}

}  // namespace
}  // namespace retroinfer::kvstore
