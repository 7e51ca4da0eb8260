#include "kv_store_service/tier/durable_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "tests/kv_store_service/named_chain.h"
#include "tests/kv_store_service/temporary_folder.h"
#include "tests/support/storage/in_memory_segment_storage.h"

namespace retroinfer::kvstore {
namespace {

class DurableTierTest : public testing::Test {
 protected:
  DurableTierTest()
      : tier_(std::make_unique<DurableTier>(DurableTierOptions{}, MakeInMemorySegmentStorage(),
                                            nullptr)) {}

  PersistRequest Request(size_t i) {
    PersistRequest request;
    request.record.name = chain_[i].name;
    request.record.num_tokens = 1024;
    request.record.image_bytes = image_.size();
    request.token_ids = chain_[i].token_ids;
    request.image = image_;
    request.done = [](const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; };
    return request;
  }
  // Runs a job over both segments. Returns the indices that were read.
  std::vector<size_t> Restore(absl::Status answer = absl::OkStatus()) {
    std::vector<size_t> read;
    absl::Notification done;
    RestoreJob job;
    for (const SegmentIdentity& identity : chain_) {
      std::vector<std::byte>& bytes = buffers_.emplace_back(image_.size());
      job.segments.push_back({identity.name, bytes});
    }
    job.on_read = [&](size_t index, const std::vector<int32_t>& token_ids) {
      EXPECT_EQ(token_ids, chain_[index].token_ids);
      read.push_back(index);
      return answer;
    };
    job.done = [&] { done.Notify(); };
    tier_->Restore(std::move(job));
    done.WaitForNotification();
    return read;
  }

  const std::vector<SegmentIdentity> chain_ = NamedChain({1, 2});
  std::vector<std::byte> image_{4096, std::byte{7}};
  std::deque<std::vector<std::byte>> buffers_;
  std::unique_ptr<DurableTier> tier_;
};

TEST_F(DurableTierTest, WritesAndReadsBack) {
  for (size_t i : {0, 1}) tier_->Offer(Request(i));
  ASSERT_TRUE(tier_->Drain(absl::Seconds(10)));
  EXPECT_TRUE(tier_->Peek(chain_[1].name).has_value());
  EXPECT_THAT(Restore(), testing::ElementsAre(0, 1));
  EXPECT_EQ(buffers_[1], image_);
  ASSERT_TRUE(tier_->Drain(absl::Seconds(10)));
  EXPECT_EQ(tier_->stats().restored_total, 2u);
  EXPECT_EQ(tier_->stats().restored_bytes_total, 2 * image_.size());
}

// Deleted since it was found: a miss, and whoever writes it again finds it at once.
TEST_F(DurableTierTest, AMissingOneEndsTheJobAndIsNoFailure) {
  tier_->Offer(Request(0));
  ASSERT_TRUE(tier_->Drain(absl::Seconds(10)));
  EXPECT_THAT(Restore(), testing::ElementsAre(0));
  EXPECT_EQ(tier_->stats().restore_failures_total, 0u);
  tier_->Offer(Request(1));
  ASSERT_TRUE(tier_->Drain(absl::Seconds(10)));
  EXPECT_TRUE(tier_->Peek(chain_[1].name).has_value());
  EXPECT_THAT(Restore(), testing::ElementsAre(0, 1));
}

TEST_F(DurableTierTest, WhatItDoesWithWhatWasReadMayFail) {
  tier_->Offer(Request(0));
  ASSERT_TRUE(tier_->Drain(absl::Seconds(10)));
  EXPECT_THAT(Restore(absl::NotFoundError("no sequence")), testing::ElementsAre(0));
  EXPECT_EQ(tier_->stats().restore_failures_total, 1u);
}

TEST_F(DurableTierTest, ARefusedImageGoesIntoQuarantine) {
  for (size_t i : {0, 1}) tier_->Offer(Request(i));
  ASSERT_TRUE(tier_->Drain(absl::Seconds(10)));
  EXPECT_THAT(Restore(absl::InvalidArgumentError("no segment")), testing::ElementsAre(0));
  EXPECT_FALSE(tier_->Peek(chain_[0].name).has_value());
  EXPECT_EQ(tier_->stats().storage.quarantined, 1u);
}

TEST(DurableTierStatsTest, TellsTheLimitAndTheDisk) {
  TemporaryFolder folder;
  DurableTierOptions options;
  options.folder = folder.path();
  options.limits.cap_bytes = 12345;
  DurableTier tier(options, MakeInMemorySegmentStorage(), nullptr);
  const DurableTier::Stats stats = tier.stats();
  EXPECT_EQ(stats.limit_bytes, 12345u);
  const auto disk = std::filesystem::space(folder.path());
  EXPECT_EQ(stats.disk_bytes, disk.capacity);
  EXPECT_GT(stats.disk_free_bytes, 0u);
  EXPECT_LE(stats.disk_free_bytes, stats.disk_bytes);
}

TEST_F(DurableTierTest, AFolderThatIsNotThereHasNoDisk) {
  EXPECT_EQ(tier_->stats().disk_bytes, 0u);
  EXPECT_EQ(tier_->stats().disk_free_bytes, 0u);
}

TEST(DurableTierOpenTest, RefusesAFolderThatIsInUse) {
  TemporaryFolder folder;
  DurableTierOptions options;
  options.folder = folder.path() + "/cache";
  const auto first = DurableTier::Open(options, nullptr);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(DurableTier::Open(options, nullptr).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace retroinfer::kvstore
