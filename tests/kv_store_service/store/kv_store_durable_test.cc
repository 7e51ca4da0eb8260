// KvStore with a disk tier over the storage in memory: what is written, read back, and when not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "common/hash/segment_name.h"
#include "tests/kv_store_service/memory_copy.h"
#include "tests/kv_store_service/server/durable_store_fixture.h"

namespace retroinfer::kvstore {
namespace {

using KvStoreDurableTest = DurableStoreTest;

TEST_F(KvStoreDurableTest, WhatIsCommittedSurvivesTheProcess) {
  EXPECT_EQ(Run(1, chain_), 0u);
  WaitUntilWritten();
  EXPECT_EQ(store_->stats().durable->storage.segments, 2u);
  const auto record = disk_->Peek(chain_[1].name);
  EXPECT_EQ(record->token_begin, 1028u);
  EXPECT_EQ(record->parent, chain_[0].name);
  EXPECT_EQ(record->root, common::RootName("model", common::SaltHash(""), kSegmentVersion));
  // Nothing is pinned any more.
  EXPECT_TRUE(AwaitNothingIsHeld());

  Start();
  EXPECT_EQ(Run(1, NamedChain({1, 2, 3})), 2u);
  const StoreStats stats = store_->stats();
  EXPECT_EQ(stats.durable->restored_total, 2u);
  EXPECT_EQ(stats.prefix.hits_tokens, 2 * 1024u);
  EXPECT_EQ(stats.prefix.queries_tokens, 3 * 1024u);
  // In the arena now.
  EXPECT_EQ(Run(2, chain_), 2u);
  EXPECT_EQ(store_->stats().durable->restored_total, 2u);
}

TEST_F(KvStoreDurableTest, TailsOfWindowLayersSurviveTheProcess) {
  geometry_.num_window_layers = 1;
  geometry_.window_tokens = 100;
  Start();
  EXPECT_EQ(Run(1, chain_), 0u);
  WaitUntilWritten();
  Start();
  EXPECT_EQ(Run(1, NamedChain({1, 2, 3})), 2u);
  EXPECT_EQ(store_->stats().durable->restored_total, 2u);
  EXPECT_EQ(store_->stats().durable->restore_failures_total, 0u);
}

TEST_F(KvStoreDurableTest, WhatTheArenaEvictedComesBackFromTheDisk) {
  for (int text = 1; text <= 12; ++text) {
    Run(text, NamedChain({text}));
    WaitUntilWritten();
  }
  EXPECT_EQ(store_->stats().durable_skipped, 0u);
  EXPECT_GT(store_->stats().prefix.evictions, 0u);
  for (int text = 1; text <= 12; ++text) EXPECT_EQ(Run(100 + text, NamedChain({text})), 1u) << text;
  EXPECT_EQ(store_->stats().durable->restore_failures_total, 0u);
}

TEST_F(KvStoreDurableTest, ASlowDiskKeepsNobodyFromTheArena) {
  for (int text = 1; text <= 40; ++text) EXPECT_EQ(Run(text, NamedChain({text, 1})), 0u);
  WaitUntilWritten();
  EXPECT_TRUE(AwaitNothingIsHeld());
  const StoreStats stats = store_->stats();
  EXPECT_EQ(stats.durable->storage.segments + stats.durable_skipped, 80u);
  EXPECT_EQ(stats.reservations_refused, 0u);
  EXPECT_EQ(stats.free_pages + stats.unreferenced_pages, kArenaPages);
}

// Nearly as many as the arena holds: some are put off while the others wait for the disk.
TEST_F(KvStoreDurableTest, WhatStaysInTheArenaIsWrittenWhenTheDiskHasTime) {
  storage_->stuck_ = true;
  Run(1, NamedChain({1}));
  const uint64_t segment_pages = kArenaPages - store_->stats().free_pages;
  ASSERT_GT(segment_pages, 0u);
  const int texts = static_cast<int>(kArenaPages / segment_pages) - 1;  // none has to go
  ASSERT_GT(texts, 3);
  for (int text = 2; text <= texts; ++text) Run(text, NamedChain({text}));
  EXPECT_LT(store_->stats().durable->persister.queued, static_cast<uint64_t>(texts));
  storage_->stuck_ = false;
  WaitUntilWritten();
  EXPECT_EQ(store_->stats().durable->storage.segments, static_cast<uint64_t>(texts));
  EXPECT_EQ(store_->stats().durable_skipped, 0u);
  EXPECT_TRUE(AwaitNothingIsHeld());
}

TEST_F(KvStoreDurableTest, ADiskThatWorksAgainGetsWhatStayedInTheArena) {
  limits_.idle_ttl = absl::Seconds(3);  // the tier looks around in half of it
  Start();
  storage_->full_ = true;
  Run(1, chain_);
  WaitUntilWritten();
  EXPECT_EQ(store_->stats().durable->persister.persisted_total, 0u);
  storage_->full_ = false;
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  while (store_->stats().durable->persister.persisted_total < 2) {
    ASSERT_LT(absl::Now(), deadline);
    absl::SleepFor(absl::Milliseconds(10));
  }
}

TEST_F(KvStoreDurableTest, WhatTheDiskHadNoRoomForIsWrittenWhenItIsUsedAgain) {
  storage_->full_ = true;
  EXPECT_EQ(Run(1, chain_), 0u);
  WaitUntilWritten();
  EXPECT_EQ(store_->stats().durable->storage.segments, 0u);
  storage_->full_ = false;
  absl::SleepFor(absl::Milliseconds(1200));  // the back-off
  EXPECT_EQ(Run(2, chain_), 2u);
  WaitUntilWritten();
  EXPECT_EQ(store_->stats().durable->storage.segments, 2u);
  EXPECT_TRUE(AwaitNothingIsHeld());
}

TEST_F(KvStoreDurableTest, AnotherModelOrSaltMisses) {
  Run(1, chain_);
  WaitUntilWritten();
  store_->leases().EndLease(token_, "test");
  Attach("other");
  EXPECT_EQ(Reserve(1, chain_).num_cached, 0u);
  EXPECT_EQ(Reserve(2, NamedChain({1, 2}, 1024, "salt")).num_cached, 0u);
  EXPECT_EQ(store_->stats().durable->restored_total, 0u);
}

TEST_F(KvStoreDurableTest, ADamagedSegmentIsComputedAfresh) {
  Run(1, chain_);
  WaitUntilWritten();
  Start();
  storage_->damages_ = true;
  EXPECT_EQ(Run(1, chain_), 0u);
  const StoreStats stats = store_->stats();
  EXPECT_EQ(stats.durable->restore_failures_total, 1u);
  EXPECT_EQ(stats.durable->storage.quarantined, 1u);
  EXPECT_EQ(Run(2, chain_), 2u);
}

TEST_F(KvStoreDurableTest, ADiskThatFailsIsAMiss) {
  Run(1, chain_);
  WaitUntilWritten();
  Start();
  storage_->fails_ = true;
  EXPECT_EQ(Run(1, chain_), 0u);
  EXPECT_EQ(store_->stats().durable->restore_failures_total, 1u);
  EXPECT_EQ(store_->stats().durable->storage.segments, 2u);
}

TEST_F(KvStoreDurableTest, OnDemandWritesNothingByItself) {
  Start(PersistMode::kOnDemand);
  Run(1, chain_);
  EXPECT_EQ(store_->stats().durable->storage.segments, 0u);
  EXPECT_TRUE(AwaitNothingIsHeld());
  EXPECT_EQ(Run(2, chain_), 2u);
}

// Who asks for a lease has no say in what the segments of the one before are.
TEST_F(KvStoreDurableTest, AnAttachmentThatWaitsDoesNotNameWhatIsWritten) {
  Start(PersistMode::kOnDemand);
  Run(1, chain_);
  store_->leases().EndLease(token_, "test");
  ASSERT_TRUE(store_->leases().Attach({kTinyGeometry, "other", 16, 64, 64, false}).ok());
  const std::vector<SegmentName> names = {chain_[0].name, chain_[1].name};
  store_->context_segments().PersistNow(
      names, [](const SegmentName&, const absl::Status& status) { ADD_FAILURE() << status; });
  WaitUntilWritten();
  ASSERT_TRUE(disk_->Peek(chain_[0].name).has_value());
  EXPECT_EQ(disk_->Peek(chain_[0].name)->root,
            common::RootName("model", common::SaltHash(""), kSegmentVersion));
}

TEST_F(KvStoreDurableTest, SegmentsOfAnotherModelAreNotWrittenAsThisOnes) {
  Start(PersistMode::kOnDemand);
  Run(1, chain_);
  store_->leases().EndLease(token_, "test");
  Attach("other");
  int failures = 0;
  const std::vector<SegmentName> names = {chain_[0].name};
  store_->context_segments().PersistNow(
      names, [&](const SegmentName& name, const absl::Status& status) {
        EXPECT_EQ(name, chain_[0].name);
        EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
        ++failures;
      });
  EXPECT_EQ(failures, 1);
  EXPECT_FALSE(disk_->Peek(chain_[0].name).has_value());
}

TEST_F(KvStoreDurableTest, AnotherGeometryWaitsForTheWriter) {
  Run(1, chain_);
  store_->leases().EndLease(token_, "test");
  Attach("small", 1);
  EXPECT_EQ(store_->stats().durable->storage.segments, 2u);
  EXPECT_EQ(store_->stats().free_pages, kArenaPages);
}

TEST_F(KvStoreDurableTest, ADiskThatStandsStillKeepsNoCallWaiting) {
  Run(1, chain_);
  WaitUntilWritten();
  Start();
  storage_->stuck_ = true;
  ReserveRequest look = NamedRequest(1, chain_);
  look.cached_only = true;
  ASSERT_TRUE(store_->reservations().Reserve(token_, ++call_number_, look).ok());  // a read begins
  EXPECT_EQ(Run(2, NamedChain({7})), 0u);                                          // a write begins
  EXPECT_EQ(Run(3, NamedChain({7})), 1u);
  EXPECT_GT(store_->listing().List(0, 10).size(), 0u);
  EXPECT_GT(
      store_->context_segments().PagesInArena(std::vector<SegmentName>{NamedChain({7})[0].name})[0],
      0u);
  EXPECT_FALSE(store_->context_segments().IsReferenced(chain_[0].name));
  storage_->stuck_ = false;
  WaitUntilWritten();
}

// A slow disk has begun to write a segment when the worker's connection breaks.
class StuckDiskTest : public KvStoreDurableTest {
 protected:
  StuckDiskTest() {
    drain_timeout_ = absl::Milliseconds(50);
    Start();
    storage_->stuck_ = true;
    Run(1, chain_);
    store_->leases().EndLease(token_, "test");
  }
  ~StuckDiskTest() override { storage_->stuck_ = false; }

  absl::Status HandBack(const MemoryDescriptors& memory) {
    const auto result = store_->leases().Attach({kTinyGeometry, "model", 16, 64, 64, true});
    if (!result.ok()) return result.status();
    return store_->leases().HandBack(result->token, 1, CopyOf(memory));
  }
  void ExpectOnDisk() {
    WaitUntilWritten();
    for (const SegmentIdentity& identity : chain_) {
      const auto record = disk_->Peek(identity.name);
      ASSERT_TRUE(record.has_value());
      std::vector<std::byte> image(record->image_bytes);
      ASSERT_TRUE(disk_->Read(identity.name, image).ok());
      EXPECT_EQ(std::memcmp(image.data() + SegmentLayout(kTinyGeometry, 1024).centroids_offset,
                            identity.name.bytes.data(), identity.name.bytes.size()),
                0);
    }
  }
};

TEST_F(StuckDiskTest, OtherMemoryIsTakenAtOnceAndTheOldOneStaysForTheDisk) {
  KvStore other({}, StateFile(folder_.path() + "/other"));
  other.leases().SetArena(*common::SealedMemory::Create("other arena", arena_bytes_, 1));
  const auto attached = other.leases().Attach({kTinyGeometry, "model", 16, 64, 64, false});
  const auto memory = other.leases().ClaimDescriptors(attached->token, 1);
  ASSERT_TRUE(memory.ok()) << memory.status();
  arena_ = {};  // nobody else has the old memory mapped
  const absl::Status status = HandBack(*memory);
  ASSERT_TRUE(status.ok()) << status;
  storage_->stuck_ = false;
  ExpectOnDisk();
}

TEST_F(StuckDiskTest, TheSameMemoryWaits) {
  const auto result = store_->leases().Attach({kTinyGeometry, "model", 16, 64, 64, false});
  const auto memory = store_->leases().ClaimDescriptors(result->token, 1);
  ASSERT_TRUE(memory.ok()) << memory.status();
  store_->leases().EndLease(result->token, "test");
  EXPECT_TRUE(absl::IsUnavailable(HandBack(*memory)));
  storage_->stuck_ = false;
  WaitUntilWritten();
  EXPECT_TRUE(HandBack(*memory).ok());
  ExpectOnDisk();
}

TEST_F(StuckDiskTest, AnotherGeometryWaits) {
  KvGeometry geometry = kTinyGeometry;
  geometry.num_layers = 1;
  const auto result = store_->leases().Attach({geometry, "model", 16, 64, 64, false});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(absl::IsUnavailable(store_->leases().ClaimDescriptors(result->token, 1).status()));
  storage_->stuck_ = false;
  WaitUntilWritten();
  EXPECT_TRUE(store_->leases().ClaimDescriptors(result->token, 1).ok());
  ExpectOnDisk();
}

TEST_F(KvStoreDurableTest, TheStoresOwnSequencesAreNotTheWorkers) {
  EXPECT_EQ(store_->reservations()
                .Reserve(token_, ++call_number_, NamedRequest(kOwnSequences, chain_))
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      store_->reservations().Release(token_, ++call_number_, kOwnSequences + 1).status().code(),
      absl::StatusCode::kInvalidArgument);
}

TEST_F(KvStoreDurableTest, WhoTakesOnlyWhatIsThereStartsARestore) {
  Run(1, chain_);
  WaitUntilWritten();
  Start();
  ReserveRequest request = NamedRequest(1, chain_);
  request.cached_only = true;
  const auto first = store_->reservations().Reserve(token_, ++call_number_, request);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->num_cached, 0u);
  while (store_->stats().durable->restored_total < 2) absl::SleepFor(absl::Milliseconds(1));
  request.sequence_id = 2;
  EXPECT_EQ(store_->reservations().Reserve(token_, ++call_number_, request)->num_cached, 2u);
}

}  // namespace
}  // namespace retroinfer::kvstore
