#include "kv_store_service/tier/tier_bridge.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/kv_store_service/named_chain.h"
#include "tests/kv_store_service/segment_writer.h"
#include "tests/kv_store_service/server/durable_store_fixture.h"
#include "tests/support/storage/in_memory_segment_storage.h"

namespace retroinfer::kvstore {
namespace {

// Keeps every write back until it is told to go on.
class WaitingStorage final : public SharedStorage {
 public:
  WaitingStorage(std::shared_ptr<SegmentStorage> to, absl::Notification* go_on)
      : SharedStorage(std::move(to)), go_on_(*go_on) {}
  absl::Status Put(const SegmentRecord& record, std::span<const int32_t> token_ids,
                   std::span<const std::byte> image) override {
    go_on_.WaitForNotification();
    return SharedStorage::Put(record, token_ids, image);
  }

 private:
  absl::Notification& go_on_;
};

class TierBridgeTest : public testing::Test {
 protected:
  TierBridgeTest()
      : tier_(std::make_unique<DurableTier>(
            DurableTierOptions{}, std::make_unique<WaitingStorage>(disk_, &go_on_), nullptr)),
        bridge_(tier_.get(), [this](absl::FunctionRef<void()> work) {
          absl::MutexLock lock(&mutex_);
          work();
        }) {}
  ~TierBridgeTest() override {
    if (!go_on_.HasBeenNotified()) go_on_.Notify();
    tier_.reset();
  }

  SegmentsOfArena NewArena(const std::string& model = "model", uint64_t bytes = 8 << 20) {
    SegmentsOfArena made;
    made.arena =
        std::make_shared<const Arena>(*common::SealedMemory::Create("test arena", bytes, 1));
    made.segments = std::make_shared<ArenaSegments>(made.arena->num_pages(), kTinyGeometry);
    made.fingerprint = model;
    made.segments->SetFingerprint(common::FingerprintHash(model));
    return made;
  }
  // Writes and commits the chain's first segment. Returns its record.
  ExtentRecord Fill(const SegmentsOfArena& at, uint64_t sequence) {
    ArenaSegments& segments = *at.segments;
    const auto reservation = segments.Reserve(NamedRequest(sequence, chain_));
    const ExtentRecord extent = reservation->extents[0];
    WriteSegment(at.arena->BytesOf(extent.pages), kTinyGeometry, 4, 1024);
    const std::vector<SegmentToCommit> to_commit = {{extent.id, 4, 1024, chain_[0]}};
    const auto images = segments.ImagesToCommit(sequence, to_commit);
    return segments.Commit(sequence, to_commit, ReadImagesOf(*at.arena, kTinyGeometry, *images))
        ->front();
  }
  // Reserves what is missing of the request, writes and commits it. Returns all records.
  std::vector<ExtentRecord> Compute(const SegmentsOfArena& at, const ReserveRequest& request) {
    ArenaSegments& segments = *at.segments;
    const auto reservation = segments.Reserve(request);
    EXPECT_TRUE(reservation.ok()) << reservation.status();
    std::vector<SegmentToCommit> to_commit;
    uint64_t begin = kSinkTokens;
    for (size_t i = 0; i < request.segments.size(); ++i) {
      const SegmentWanted& segment = request.segments[i];
      const ExtentRecord& extent = reservation->extents[i];
      if (i >= reservation->num_cached && segment.identity.has_value()) {
        WriteSegment(at.arena->BytesOf(extent.pages), kTinyGeometry, begin, segment.num_tokens);
        to_commit.push_back({extent.id, begin, segment.num_tokens, segment.identity});
      }
      begin += segment.num_tokens;
    }
    if (to_commit.empty()) return reservation->extents;
    const auto images = segments.ImagesToCommit(request.sequence_id, to_commit);
    return *segments.Commit(request.sequence_id, to_commit,
                            ReadImagesOf(*at.arena, kTinyGeometry, *images));
  }
  void WaitUntilIdle() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](TierBridge* bridge) { return bridge->is_idle(); }, &bridge_));
  }

  const std::vector<SegmentIdentity> chain_ = NamedChain({1});
  absl::Notification go_on_;
  std::shared_ptr<SegmentStorage> disk_ = MakeInMemorySegmentStorage();
  absl::Mutex mutex_;
  std::unique_ptr<DurableTier> tier_;
  TierBridge bridge_;
  ContextPins kept_;
};

// The disk is slow, and the store has taken another arena when it comes to the segment.
TEST_F(TierBridgeTest, AnArenaStaysUntilTheDiskIsDoneWithIt) {
  SegmentsOfArena here = NewArena();
  const std::weak_ptr<const Arena> arena = here.arena;
  const ExtentRecord extent = Fill(here, 1);
  std::vector<std::byte> image(size_t{extent.pages.count} * kPageBytes);
  std::memcpy(image.data(), here.arena->BytesOf(extent.pages).data(), image.size());
  TierBridge::ToPersist prepared;
  {
    absl::MutexLock lock(&mutex_);
    prepared = bridge_.Prepare(here, std::span(&extent, 1), kept_);
    EXPECT_FALSE(bridge_.is_idle());
    EXPECT_GT(here.segments->directory().pinned_pages(), 0u);
  }
  bridge_.Submit(std::move(prepared));
  here = NewArena("other");
  EXPECT_FALSE(arena.expired());
  go_on_.Notify();
  WaitUntilIdle();
  std::vector<std::byte> on_disk(image.size());
  ASSERT_TRUE(disk_->Read(chain_[0].name, on_disk).ok());
  EXPECT_EQ(on_disk, image);
  while (!arena.expired()) absl::SleepFor(absl::Milliseconds(1));
}

TEST_F(TierBridgeTest, ReadsBackByNameAndLeavesTheNewArenaAlone) {
  go_on_.Notify();
  SegmentsOfArena here = NewArena();
  const ExtentRecord extent = Fill(here, 1);
  TierBridge::ToPersist prepared;
  {
    absl::MutexLock lock(&mutex_);
    prepared = bridge_.Prepare(here, std::span(&extent, 1), kept_);
  }
  bridge_.Submit(std::move(prepared));
  WaitUntilIdle();
  ReserveRequest names = NamedRequest(5, chain_);
  names.segments[0].identity->token_ids.clear();
  const SegmentsOfArena old = NewArena();
  here = NewArena();
  {
    absl::MutexLock lock(&mutex_);
    bridge_.StartRestore(old, names);
    EXPECT_FALSE(bridge_.is_idle());
  }
  WaitUntilIdle();
  // Whom it was begun for has it, with the tokens that the disk has.
  absl::MutexLock lock(&mutex_);
  const ExtentRecord* read = old.segments->directory().FindNamed(chain_[0].name);
  ASSERT_NE(read, nullptr);
  EXPECT_EQ(read->key->identity.token_ids, chain_[0].token_ids);
  EXPECT_EQ(here.segments->directory().num_extents(), 0u);
  EXPECT_EQ(here.segments->allocator().free_pages(), here.arena->num_pages());
  EXPECT_EQ(old.segments->directory().pinned_pages(), 0u);
}

// What is cached lies in the middle of the arena, where it leaves no room for the rest.
TEST_F(TierBridgeTest, ReadsWhatIsCachedAgainWhereItIsInTheWay) {
  go_on_.Notify();
  const SegmentsOfArena here = NewArena("model", 16 << 20);
  ReserveRequest names = NamedRequest(1, chain_);
  SegmentIdentity next{.parent = chain_[0].name, .salt_hash = chain_[0].salt_hash};
  next.token_ids.assign(kPrefillSegmentTokens, 7);
  next.name = common::NameSegment(next.parent, next.token_ids);
  names.segments.push_back({kPrefillSegmentTokens, next});
  TierBridge::ToPersist prepared;
  {
    absl::MutexLock lock(&mutex_);
    prepared = bridge_.Prepare(here, Compute(here, names), kept_);
  }
  bridge_.Submit(std::move(prepared));
  WaitUntilIdle();
  absl::MutexLock lock(&mutex_);
  ArenaSegments& segments = *here.segments;
  segments.Release(1);
  ASSERT_TRUE(segments.EvictNamed(chain_[0].name) && segments.EvictNamed(next.name));
  ASSERT_TRUE(segments.Reserve(ReserveRequest::Unnamed(2, std::vector<uint32_t>(4, 1024))).ok());
  Compute(here, NamedRequest(3, chain_));
  segments.Release(2);
  segments.Release(3);
  ASSERT_LT(segments.allocator().largest_free(),
            SegmentLayout(kTinyGeometry, kPrefillSegmentTokens).max_pages);
  names.sequence_id = 4;
  bridge_.StartRestore(here, names);
  mutex_.Await(absl::Condition(
      +[](TierBridge* bridge) { return bridge->is_idle(); }, &bridge_));
  EXPECT_EQ(segments.FindCached(names).size(), 2u);
  const auto reservation = segments.Reserve(names);
  ASSERT_TRUE(reservation.ok()) << reservation.status();
  EXPECT_EQ(reservation->num_cached, 2u);
}

TEST_F(TierBridgeTest, SegmentsOfAnotherModelAreNotWrittenUnderThisOnesName) {
  SegmentsOfArena here = NewArena();
  Fill(here, 1);
  here.fingerprint = "other";
  std::vector<SegmentName> of_another_model;
  const std::vector<SegmentName> names = {chain_[0].name};
  absl::MutexLock lock(&mutex_);
  const auto prepared = bridge_.PrepareNamed(here, names, nullptr, &of_another_model);
  EXPECT_TRUE(prepared.wanted.empty() && prepared.offered.empty());
  EXPECT_EQ(of_another_model, names);
  EXPECT_TRUE(bridge_.is_idle());
}

}  // namespace
}  // namespace retroinfer::kvstore
