#include "tests/support/storage/faulty_segment_storage.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/time/clock.h"
#include "tests/kv_store_service/persistence/sample_segments.h"
#include "tests/support/storage/in_memory_segment_storage.h"

namespace retroinfer::kvstore {
namespace {

using testing::CheckSample;
using testing::MakeSample;
using testing::PutSample;

class FaultySegmentStorageTest : public ::testing::Test {
 protected:
  std::unique_ptr<SegmentStorage> inner_ = MakeInMemorySegmentStorage();
  FaultySegmentStorage faulty_{inner_.get()};
};

TEST_F(FaultySegmentStorageTest, FailsTheNextWritesOnly) {
  faulty_.FailWrites(DiskFault::kNoSpace, 2);
  EXPECT_TRUE(absl::IsResourceExhausted(PutSample(faulty_, MakeSample(1))));
  EXPECT_TRUE(absl::IsResourceExhausted(faulty_.FlushTouches()));
  EXPECT_TRUE(PutSample(faulty_, MakeSample(1)).ok());
  EXPECT_TRUE(CheckSample(faulty_, MakeSample(1)).ok());
}

TEST_F(FaultySegmentStorageTest, FailsReadsUntilChanged) {
  ASSERT_TRUE(PutSample(faulty_, MakeSample(1)).ok());
  faulty_.FailReads(DiskFault::kIoError);
  EXPECT_TRUE(absl::IsInternal(CheckSample(faulty_, MakeSample(1))));
  EXPECT_TRUE(absl::IsInternal(faulty_.VerifyAll().status()));
  faulty_.FailReads(DiskFault::kNone);
  EXPECT_TRUE(CheckSample(faulty_, MakeSample(1)).ok());
}

TEST_F(FaultySegmentStorageTest, CorruptReadsEndInQuarantine) {
  ASSERT_TRUE(PutSample(faulty_, MakeSample(1)).ok());
  faulty_.FailReads(DiskFault::kCorrupt, 1);
  EXPECT_TRUE(absl::IsDataLoss(CheckSample(faulty_, MakeSample(1))));
  EXPECT_TRUE(absl::IsNotFound(CheckSample(faulty_, MakeSample(1))));
  EXPECT_EQ(faulty_.Stats().corrupt_total, 1u);
}

TEST_F(FaultySegmentStorageTest, IsSlow) {
  faulty_.SetDelay(absl::Milliseconds(20));
  const absl::Time begin = absl::Now();
  ASSERT_TRUE(PutSample(faulty_, MakeSample(1)).ok());
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(20));
}

TEST_F(FaultySegmentStorageTest, WhoWaitsGoesOnWhenTheDelayChanges) {
  faulty_.SetDelay(absl::InfiniteDuration());
  std::thread writer([this] { EXPECT_TRUE(PutSample(faulty_, MakeSample(1)).ok()); });
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_TRUE(faulty_.List().empty());
  faulty_.SetDelay(absl::ZeroDuration());
  writer.join();
  EXPECT_EQ(faulty_.List().size(), 1u);
}

}  // namespace
}  // namespace retroinfer::kvstore
