#include "kv_store_service/tier/partial_image.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

namespace retroinfer::kvstore {
namespace {

constexpr uint32_t kPart = 4096;  // of which a gap of 10 KiB holds two

// Of an image whose bytes are the numbers of their parts; notes what is read.
class CountingParts : public ImageParts {
 public:
  explicit CountingParts(uint64_t bytes) : bytes_(bytes) {}
  uint32_t part_bytes() const override { return kPart; }
  uint64_t image_bytes() const override { return bytes_; }
  const std::vector<int32_t>& token_ids() const override { return token_ids_; }
  absl::Status Read(std::span<const PartRun> runs, std::span<std::byte> image) override {
    if (num_reads_++ == 0 && first_waits_) {
      first_begun_.Notify();
      first_may_end_.WaitForNotification();
    }
    if (fails_) return absl::DataLossError("damaged");
    {
      absl::MutexLock lock(&mutex_);
      last_runs_.assign(runs.begin(), runs.end());
    }
    for (const PartRun& run : runs) {
      for (uint32_t part = run.first; part < run.first + run.count; ++part) {
        ++num_parts_read_;
        for (uint64_t i = uint64_t{part} * kPart; i < std::min(bytes_, uint64_t{part + 1} * kPart);
             ++i) {
          image[i] = static_cast<std::byte>(part + 1);
        }
      }
    }
    return absl::OkStatus();
  }

  std::atomic<int> num_reads_{0};
  std::atomic<int> num_parts_read_{0};
  bool first_waits_ = false;
  std::atomic<bool> fails_{false};
  absl::Notification first_begun_, first_may_end_;
  std::vector<PartRun> last_runs() {
    absl::MutexLock lock(&mutex_);
    return last_runs_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<PartRun> last_runs_ ABSL_GUARDED_BY(mutex_);
  const uint64_t bytes_;
  const std::vector<int32_t> token_ids_ = {1, 2, 3};
};

class PartialImageTest : public ::testing::Test {
 protected:
  PartialImageTest() {
    auto parts = std::make_unique<CountingParts>(bytes_.size());
    parts_ = parts.get();
    image_ = std::make_unique<PartialImage>(std::move(parts), bytes_);
  }
  bool IsThere(uint32_t part) const { return bytes_[part * kPart] == std::byte(part + 1); }

  std::vector<std::byte> bytes_ = std::vector<std::byte>(10 * kPart - 3);
  CountingParts* parts_ = nullptr;
  std::unique_ptr<PartialImage> image_;
  uint64_t read_ = 0;
};

TEST_F(PartialImageTest, APartIsReadOnce) {
  ASSERT_EQ(image_->num_parts(), 10u);
  ASSERT_TRUE(image_->Fetch(std::vector<PartRun>{{2, 2}, {7, 1}}, &read_).ok());
  EXPECT_TRUE(IsThere(2) && IsThere(3) && IsThere(7));
  EXPECT_FALSE(IsThere(4));
  EXPECT_EQ(read_, 3 * kPart);
  EXPECT_EQ(image_->there_until(), 0u);
  ASSERT_TRUE(image_->Fetch(std::vector<PartRun>{{0, 8}}, &read_).ok());
  EXPECT_EQ(parts_->num_parts_read_, 8);
  EXPECT_EQ(image_->there_until(), 8u);
  ASSERT_TRUE(image_->Fetch(std::vector<PartRun>{{0, 8}}, &read_).ok());
  EXPECT_EQ(parts_->num_reads_, 2);
}

TEST_F(PartialImageTest, SmallGapsAreReadWithWhatIsAroundThem) {
  ASSERT_TRUE(image_->Fetch(std::vector<PartRun>{{0, 1}, {3, 1}, {7, 1}}, &read_).ok());
  EXPECT_EQ(parts_->last_runs(), (std::vector<PartRun>{{0, 4}, {7, 1}}));
  EXPECT_EQ(read_, 5 * kPart);
  ASSERT_TRUE(image_->Fetch(std::vector<PartRun>{{1, 2}}, &read_).ok());
  EXPECT_EQ(parts_->num_reads_, 1);
  // A gap of which a part is there, or on its way, is none; nor is one before what came first.
  ASSERT_TRUE(image_->Fetch(std::vector<PartRun>{{8, 1}, {6, 1}}, &read_).ok());
  EXPECT_EQ(parts_->last_runs(), (std::vector<PartRun>{{8, 1}, {6, 1}}));
  EXPECT_EQ(image_->there_until(), 4u);
}

TEST_F(PartialImageTest, TheRestComesInOrderAndSkipsWhatIsThere) {
  ASSERT_TRUE(image_->Fetch(std::vector<PartRun>{{3, 2}}, &read_).ok());
  read_ = 0;
  EXPECT_FALSE(*image_->FetchNext(4, &read_));
  EXPECT_EQ(read_, 3 * kPart);
  EXPECT_EQ(image_->there_until(), 5u);
  EXPECT_FALSE(*image_->FetchNext(4, &read_));
  EXPECT_TRUE(*image_->FetchNext(4, &read_));
  EXPECT_TRUE(*image_->FetchNext(4, &read_));
  EXPECT_EQ(parts_->num_parts_read_, 10);
  EXPECT_EQ(read_, 8 * kPart - 3);
}

TEST_F(PartialImageTest, WhoWantsWhatIsBeingReadWaitsForIt) {
  parts_->first_waits_ = true;
  std::thread reader([this] {
    uint64_t read = 0;
    EXPECT_TRUE(image_->Fetch(std::vector<PartRun>{{0, 5}}, &read).ok());
  });
  parts_->first_begun_.WaitForNotification();
  absl::Notification done;
  std::thread other([&] {
    uint64_t read = 0;
    EXPECT_TRUE(image_->Fetch(std::vector<PartRun>{{4, 2}}, &read).ok());
    EXPECT_EQ(read, kPart);
    EXPECT_TRUE(IsThere(4) && IsThere(5));
    done.Notify();
  });
  // What nobody reads comes at once.
  EXPECT_TRUE(image_->Fetch(std::vector<PartRun>{{8, 1}}, &read_).ok());
  EXPECT_FALSE(done.HasBeenNotified());
  parts_->first_may_end_.Notify();
  reader.join();
  other.join();
  EXPECT_EQ(parts_->num_parts_read_, 7);
}

TEST_F(PartialImageTest, AfterAnErrorNothingComesAndWhatIsThereStays) {
  ASSERT_TRUE(image_->Fetch(std::vector<PartRun>{{0, 2}}, &read_).ok());
  EXPECT_FALSE(image_->has_failed());
  parts_->fails_ = true;
  EXPECT_TRUE(absl::IsDataLoss(image_->Fetch(std::vector<PartRun>{{1, 3}}, &read_)));
  parts_->fails_ = false;
  EXPECT_TRUE(image_->has_failed());
  EXPECT_TRUE(absl::IsDataLoss(image_->TakeFailure()));
  EXPECT_TRUE(image_->TakeFailure().ok());  // is told once
  EXPECT_TRUE(absl::IsDataLoss(image_->Fetch(std::vector<PartRun>{{5, 1}}, &read_)));
  EXPECT_TRUE(absl::IsDataLoss(image_->FetchNext(1, &read_).status()));
  EXPECT_TRUE(image_->Fetch(std::vector<PartRun>{{0, 2}}, &read_).ok());
}

TEST_F(PartialImageTest, ClosingWaitsForReadsThatAreUnderWay) {
  parts_->first_waits_ = true;
  std::thread reader([this] {
    uint64_t read = 0;
    EXPECT_TRUE(image_->Fetch(std::vector<PartRun>{{0, 5}}, &read).ok());
  });
  parts_->first_begun_.WaitForNotification();
  std::atomic<bool> may_end{false};
  std::thread closer([&] {
    image_->Close(absl::AbortedError("over"));
    EXPECT_TRUE(may_end);
  });
  may_end = true;
  parts_->first_may_end_.Notify();
  reader.join();
  closer.join();
  EXPECT_TRUE(absl::IsAborted(image_->Fetch(std::vector<PartRun>{{9, 1}}, &read_)));
}

TEST_F(PartialImageTest, RefusesPartsThatTheImageDoesNotHave) {
  for (const PartRun run : {PartRun{10, 1}, PartRun{9, 2}, PartRun{UINT32_MAX, UINT32_MAX}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(image_->Fetch(std::vector<PartRun>{run}, &read_)));
  }
  EXPECT_EQ(parts_->num_reads_, 0);
}

}  // namespace
}  // namespace retroinfer::kvstore
