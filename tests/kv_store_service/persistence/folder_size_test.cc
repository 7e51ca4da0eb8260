#include "kv_store_service/persistence/folder_size.h"

#include <gtest/gtest.h>

namespace retroinfer::kvstore {
namespace {

class FolderSizeTest : public testing::Test {
 protected:
  uint64_t actual_ = 100;
  int measurements_ = 0;
  absl::Time now_ = absl::UnixEpoch();
  std::function<void()> meanwhile_ = [] {};
  FolderSize size_{[this] {
                     ++measurements_;
                     meanwhile_();
                     return actual_;
                   },
                   [this] { return now_; }};
};

TEST_F(FolderSizeTest, AddsWhatItIsToldBetweenMeasurements) {
  EXPECT_EQ(size_.Bytes(), 100u);
  for (int i = 0; i < 63; ++i) {
    size_.Add(10);
    EXPECT_EQ(size_.Bytes(), 110u + 10 * static_cast<uint64_t>(i));
  }
  EXPECT_EQ(measurements_, 1);
  size_.Add(10);
  actual_ = 700;
  EXPECT_EQ(size_.Bytes(), 700u);
  EXPECT_EQ(measurements_, 2);
}

TEST_F(FolderSizeTest, MeasuresAgainAfterAWhileAndWhenTold) {
  size_.Bytes();
  actual_ = 50;
  size_.Forget();
  EXPECT_EQ(size_.Bytes(), 50u);
  actual_ = 60;
  now_ += absl::Seconds(29);
  EXPECT_EQ(size_.Bytes(), 50u);
  now_ += absl::Seconds(2);
  EXPECT_EQ(size_.Bytes(), 60u);
}

TEST_F(FolderSizeTest, AChangeDuringAMeasurementIsNotLost) {
  meanwhile_ = [this] { size_.Add(5); };
  EXPECT_EQ(size_.Bytes(), 100u);
  meanwhile_ = [] {};
  actual_ = 105;
  EXPECT_EQ(size_.Bytes(), 105u);
  EXPECT_EQ(size_.Bytes(), 105u);
  EXPECT_EQ(measurements_, 2);
}

}  // namespace
}  // namespace retroinfer::kvstore
