// KvStore with a disk tier over the storage in memory: what is written, read back, and when not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "absl/time/clock.h"
#include "common/hash/segment_name.h"
#include "common/status/error_reason.h"
#include "kv_store_service/persistence/in_memory_segment_storage.h"
#include "kv_store_service/server/kv_store.h"
#include "tests/kv_store_service/named_chain.h"
#include "tests/kv_store_service/segment_writer.h"
#include "tests/kv_store_service/temporary_folder.h"

namespace retroinfer::kvstore {
namespace {

constexpr uint64_t kArenaBytes = 8 << 20;
constexpr uint64_t kArenaPages = kArenaBytes / kPageBytes;

// Passes everything on to a storage that outlives the store.
class SharedStorage final : public SegmentStorage {
 public:
  explicit SharedStorage(std::shared_ptr<SegmentStorage> to) : to_(std::move(to)) {}
  absl::Status Put(const SegmentRecord& record, std::span<const int32_t> token_ids,
                   std::span<const std::byte> image) override {
    if (full_) return absl::ResourceExhaustedError("the disk is full");
    return to_->Put(record, token_ids, image);
  }
  absl::StatusOr<SegmentRecord> Find(const SegmentName& name,
                                     std::span<const int32_t> token_ids) override {
    return to_->Find(name, token_ids);
  }
  std::optional<SegmentRecord> Peek(const SegmentName& name) override { return to_->Peek(name); }
  absl::StatusOr<std::vector<int32_t>> ReadTokens(const SegmentName& name) override {
    return to_->ReadTokens(name);
  }
  absl::Status Read(const SegmentName& name, std::span<std::byte> image) override {
    absl::Status status = to_->Read(name, image);
    if (status.ok() && damages_) image[kPageBytes] ^= std::byte{0xff};
    return fails_ ? absl::UnavailableError("the disk fails") : status;
  }
  absl::StatusOr<size_t> Delete(std::span<const SegmentName> names) override {
    return to_->Delete(names);
  }
  void Touch(std::span<const SegmentName> names, absl::Time when) override {
    to_->Touch(names, when);
  }
  absl::Status FlushTouches() override { return to_->FlushTouches(); }
  std::vector<SegmentRecord> List() override { return to_->List(); }
  absl::Status PutContext(const ContextRecord& context) override {
    return to_->PutContext(context);
  }
  absl::StatusOr<ContextRecord> FindContext(const Hash256& salt_hash,
                                            std::string_view name) override {
    return to_->FindContext(salt_hash, name);
  }
  absl::Status DeleteContext(const Hash256& salt_hash, std::string_view name) override {
    return to_->DeleteContext(salt_hash, name);
  }
  std::vector<ContextRecord> ListContexts() override { return to_->ListContexts(); }
  absl::Status Quarantine(const SegmentName& name, std::string_view reason) override {
    return to_->Quarantine(name, reason);
  }
  absl::StatusOr<size_t> PurgeQuarantine() override { return to_->PurgeQuarantine(); }
  absl::StatusOr<VerifyReport> VerifyAll() override { return to_->VerifyAll(); }
  StorageStats Stats() override { return to_->Stats(); }

  bool damages_ = false;  // reads return a wrong index
  bool fails_ = false;    // reads fail
  std::atomic<bool> full_{false};

 private:
  std::shared_ptr<SegmentStorage> to_;
};

class KvStoreDurableTest : public testing::Test {
 protected:
  KvStoreDurableTest() { Start(); }

  // A new process with an empty arena and the same disk.
  void Start(PersistMode mode = PersistMode::kWriteThrough) {
    store_.reset();
    store_ = std::make_unique<KvStore>(KvStore::Options{}, StateFile(folder_.path() + "/state"));
    auto storage = std::make_unique<SharedStorage>(disk_);
    storage_ = storage.get();
    DurableTierOptions options;
    options.mode = mode;
    KvStore* const store = store_.get();
    store_->SetDurableTier(std::make_unique<DurableTier>(
        options, std::move(storage),
        [store](const SegmentName& name) { return store->IsReferenced(name); }));
    store_->SetArena(*common::SealedMemory::Create("test arena", kArenaBytes, 1));
    call_number_ = 0;
    Attach("model");
  }
  void Attach(const std::string& model, uint32_t num_layers = 2) {
    KvGeometry geometry = kTinyGeometry;
    geometry.num_layers = num_layers;
    const auto result = store_->Attach({geometry, model, 16, 64, 64, false});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->store_writes_arena);
    token_ = result->token;
    auto pair = store_->ClaimDescriptors(token_, 1);
    ASSERT_TRUE(pair.ok()) << pair.status();
    arena_ = *common::SealedMemory::Adopt(std::move(pair->arena), kArenaBytes);
    call_number_ = 0;
  }
  std::span<std::byte> BytesOf(const ExtentRecord& extent) {
    return arena_.bytes().subspan(size_t{extent.pages.first} * kPageBytes,
                                  size_t{extent.pages.count} * kPageBytes);
  }
  std::byte* Mark(const ExtentRecord& extent) {
    return BytesOf(extent).data() + SegmentLayout(kTinyGeometry, 1024).centroids_offset;
  }
  // Reserves as the worker's link does: tries again while the store reads from the disk.
  Reservation Reserve(uint64_t sequence, const std::vector<SegmentIdentity>& chain) {
    while (true) {
      const auto reservation =
          store_->Reserve(token_, ++call_number_, NamedRequest(sequence, chain));
      if (reservation.ok()) return *reservation;
      if (common::ReasonOf(reservation.status()).reason != kWaitsForDiskReason) {
        ADD_FAILURE() << reservation.status();
        return {};
      }
      ++num_waits_;
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  // Computes what is not cached; checks what is. Returns how much was cached.
  size_t Run(uint64_t sequence, const std::vector<SegmentIdentity>& chain) {
    const Reservation reservation = Reserve(sequence, chain);
    for (size_t i = 0; i < reservation.extents.size(); ++i) {
      const ExtentRecord& extent = reservation.extents[i];
      const auto& name = chain[i].name.bytes;
      if (i < reservation.num_cached) {
        EXPECT_EQ(std::memcmp(Mark(extent), name.data(), name.size()), 0);
        continue;
      }
      const uint64_t begin = kSinkTokens + 1024 * i;
      WriteSegment(BytesOf(extent), kTinyGeometry, begin, 1024);
      std::memcpy(Mark(extent), name.data(), name.size());
      const std::vector<SegmentToCommit> segments = {{extent.id, begin, 1024, chain[i]}};
      EXPECT_TRUE(store_->Commit(token_, ++call_number_, sequence, segments).ok());
    }
    EXPECT_TRUE(store_->Release(token_, ++call_number_, sequence).ok());
    return reservation.num_cached;
  }
  void WaitUntilWritten() {
    while (store_->stats().durable->persister.queued > 0) absl::SleepFor(absl::Milliseconds(1));
  }

  TemporaryFolder folder_;
  std::shared_ptr<SegmentStorage> disk_ = MakeInMemorySegmentStorage();
  std::unique_ptr<KvStore> store_;
  SharedStorage* storage_ = nullptr;
  common::SealedMemory arena_;
  std::string token_;
  uint64_t call_number_ = 0;
  int num_waits_ = 0;
  const std::vector<SegmentIdentity> chain_ = NamedChain({1, 2});
};

TEST_F(KvStoreDurableTest, WhatIsCommittedSurvivesTheProcess) {
  EXPECT_EQ(Run(1, chain_), 0u);
  WaitUntilWritten();
  EXPECT_EQ(store_->stats().durable->storage.segments, 2u);
  const auto record = disk_->Peek(chain_[1].name);
  EXPECT_EQ(record->token_begin, 1028u);
  EXPECT_EQ(record->parent, chain_[0].name);
  EXPECT_EQ(record->root, common::RootName("model", common::SaltHash(""), kSegmentVersion));
  // Nothing is pinned any more.
  EXPECT_EQ(store_->stats().free_pages + store_->stats().unreferenced_pages, kArenaPages);

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
  const StoreStats stats = store_->stats();
  EXPECT_EQ(stats.durable->storage.segments + stats.durable_skipped, 80u);
  EXPECT_EQ(stats.reservations_refused, 0u);
  EXPECT_EQ(stats.free_pages + stats.unreferenced_pages, kArenaPages);
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
  EXPECT_EQ(store_->stats().free_pages + store_->stats().unreferenced_pages, kArenaPages);
}

TEST_F(KvStoreDurableTest, AnotherModelOrSaltMisses) {
  Run(1, chain_);
  WaitUntilWritten();
  store_->EndLease(token_, "test");
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
  EXPECT_EQ(store_->stats().free_pages + store_->stats().unreferenced_pages, kArenaPages);
  EXPECT_EQ(Run(2, chain_), 2u);
}

TEST_F(KvStoreDurableTest, AnotherGeometryWaitsForTheWriter) {
  Run(1, chain_);
  store_->EndLease(token_, "test");
  Attach("small", 1);
  EXPECT_EQ(store_->stats().durable->storage.segments, 2u);
  EXPECT_EQ(store_->stats().free_pages, kArenaPages);
}

TEST_F(KvStoreDurableTest, TheStoresOwnSequencesAreNotTheWorkers) {
  EXPECT_EQ(
      store_->Reserve(token_, ++call_number_, NamedRequest(kOwnSequences, chain_)).status().code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->Release(token_, ++call_number_, kOwnSequences + 1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace retroinfer::kvstore
