// KvStore with a disk tier: blocks and generated KV are written, survive, and come back for rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "common/kv/block_layout.h"
#include "tests/kv_store_service/prompt_text.h"
#include "tests/kv_store_service/rows_in_memory.h"
#include "tests/kv_store_service/server/durable_store_fixture.h"

namespace retroinfer::kvstore {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class KvStoreRowsTest : public DurableStoreTest {
 protected:
  // As the worker's link does: tries again while the store reads from the disk.
  Reservation Ask(const ReserveRequest& request) {
    while (true) {
      const auto reservation = store_->reservations().Reserve(token_, ++call_number_, request);
      if (reservation.ok()) return *reservation;
      if (common::ReasonOf(reservation.status()).reason != kWaitsForDiskReason) {
        ADD_FAILURE() << reservation.status();
        return {};
      }
      ++num_waits_;
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  void Save(const std::vector<SegmentIdentity>& chain, size_t offset = 0) {
    const ReserveRequest request = ChainRequest(900, chain, offset);
    const Reservation reservation = Ask(request);
    std::vector<SegmentToCommit> segments;
    uint64_t begin = request.token_begin;
    for (size_t i = 0; i < reservation.extents.size(); ++i) {
      const ExtentRecord& extent = reservation.extents[i];
      if (i >= reservation.num_cached) {
        WriteImage(BytesOf(extent), kTinyGeometry, begin, extent.reserved_tokens);
        BytesOf(extent)[kLastByte] = Mark(chain[i]);
        segments.push_back({extent.id, begin, extent.reserved_tokens, chain[i]});
      }
      begin += extent.reserved_tokens;
    }
    if (!segments.empty()) {
      EXPECT_TRUE(store_->reservations().Commit(token_, ++call_number_, 900, segments).ok());
    }
    EXPECT_TRUE(store_->reservations().Release(token_, ++call_number_, 900).ok());
  }
  // Tokens of each piece that holds rows; negative of generated ones. Checks their bytes.
  std::vector<int> Rows(const ReserveRequest& request) {
    std::vector<int> pieces;
    for (const ExtentRecord& extent : Ask(request).extents) {
      const SegmentIdentity& identity = extent.key->identity;
      const int tokens = static_cast<int>(extent.reserved_tokens);
      pieces.push_back(identity.provenance.has_value() ? -tokens : tokens);
      EXPECT_EQ(BytesOf(extent)[kLastByte], Mark(identity));
    }
    EXPECT_TRUE(store_->reservations().Release(token_, ++call_number_, request.sequence_id).ok());
    return pieces;
  }
  static std::byte Mark(const SegmentIdentity& identity) {
    return static_cast<std::byte>(identity.name.bytes[0]);
  }
  static constexpr size_t kLastByte = 3 * kPageBytes - 1;  // behind the header

  const PromptText text_ = PromptText::Of(4096);
  // An exact block, a full generated one and one that is not full.
  const std::vector<SegmentIdentity> turn_ = [this] {
    std::vector<SegmentIdentity> chain = {text_.Block(0)};
    chain.push_back(text_.Generated(chain.back().name, 64, 64));
    chain.push_back(text_.Generated(chain.back().name, 128, 30));
    return chain;
  }();
};

TEST_F(KvStoreRowsTest, WhatATurnLeftSurvivesTheProcess) {
  Save(turn_);
  WaitUntilWritten();
  EXPECT_EQ(store_->stats().durable->storage.segments, 3u);
  EXPECT_EQ(disk_->Peek(turn_[2].name)->provenance, turn_[2].provenance);
  EXPECT_TRUE(AwaitNothingIsHeld());
  Start();
  EXPECT_THAT(Rows(RowsRequest(1, text_.Rows(0, 1000))), ElementsAre(64, -64, -30));
  EXPECT_GT(num_waits_, 0);
  EXPECT_EQ(store_->stats().durable->restored_total, 3u);
  EXPECT_EQ(store_->stats().prefix.rows_hits_tokens, 158u);
  // In the arena now.
  EXPECT_THAT(Rows(RowsRequest(1, text_.Rows(0, 1000))), ElementsAre(64, -64, -30));
  EXPECT_EQ(store_->stats().durable->restored_total, 3u);
}

TEST_F(KvStoreRowsTest, OnlyWhatIsWantedIsRead) {
  Save(turn_);
  WaitUntilWritten();
  Start();
  EXPECT_THAT(Rows(RowsRequest(1, text_.Branch(70, 512, 9).Rows(0, 500))), ElementsAre(64));
  EXPECT_EQ(store_->stats().durable->restored_total, 1u);
  ReserveRequest without = RowsRequest(1, text_.Rows(0, 1000));
  without.made_by.reset();
  EXPECT_THAT(Rows(without), ElementsAre(64));
  ReserveRequest cached_only = RowsRequest(1, text_.Rows(0, 1000));
  cached_only.cached_only = true;  // does not wait for what it starts
  EXPECT_THAT(Rows(cached_only), ElementsAre(64));
  EXPECT_THAT(Rows(RowsRequest(1, text_.Rows(0, 1000))), ElementsAre(64, -64, -30));
}

TEST_F(KvStoreRowsTest, AMainRequestReadsGeneratedSegmentsBack) {
  const SegmentIdentity generated = text_.Generated(text_.TextAt(0), 0, 1024);
  Save({generated});
  WaitUntilWritten();
  Start();
  ReserveRequest request = ChainRequest(1, text_.Segments(2, 1024));
  request.made_by = MadeBy("wave");
  for (size_t i = 0; i < 2; ++i) request.segments[i].text = text_.TextAt(1024 * (i + 1));
  const Reservation reservation = Ask(request);
  EXPECT_EQ(reservation.num_cached, 1u);
  EXPECT_EQ(reservation.extents[0].key->identity.name, generated.name);
  EXPECT_EQ(store_->stats().durable->restored_total, 1u);
}

// Whoever has computed the text meanwhile.
TEST_F(KvStoreRowsTest, AConversationGoesOnAsItWasHeldAlsoFromTheDisk) {
  const SegmentIdentity generated = text_.Generated(text_.TextAt(0), 0, 1024);
  Save({generated});
  WaitUntilWritten();
  Start();
  Save(text_.Segments(1, 1024));
  ReserveRequest request = ChainRequest(1, text_.Segments(1, 1024));
  EXPECT_FALSE(Ask(request).extents[0].key->identity.provenance.has_value());
  EXPECT_EQ(num_waits_, 0);
  request.sequence_id = 2;
  request.made_by = MadeBy("wave");
  request.segments[0].text = text_.TextAt(1024);
  EXPECT_EQ(Ask(request).extents[0].key->identity.name, generated.name);
  EXPECT_GT(num_waits_, 0);
}

TEST_F(KvStoreRowsTest, WhatTheDiskCannotReadIsNotWaitedForTwice) {
  Save(turn_);
  WaitUntilWritten();
  Start();
  storage_->fails_ = true;
  EXPECT_THAT(Rows(RowsRequest(1, text_.Rows(0, 1000))), IsEmpty());
  EXPECT_EQ(store_->stats().durable->restore_failures_total, 1u);
  EXPECT_TRUE(AwaitNothingIsHeld());
}

TEST_F(KvStoreRowsTest, AnImageThatIsNoBlockGoesIntoQuarantine) {
  Save(turn_);
  WaitUntilWritten();
  std::vector<std::byte> image(BlockLayout(kTinyGeometry).num_pages * kPageBytes);
  const SegmentRecord record = *disk_->Peek(turn_[1].name);
  ASSERT_TRUE(disk_->Delete({&record.name, 1}).ok());
  ASSERT_TRUE(disk_->Put(record, turn_[1].token_ids, image).ok());
  Start();
  EXPECT_THAT(Rows(RowsRequest(1, text_.Rows(0, 1000))), ElementsAre(64));
  EXPECT_EQ(store_->stats().durable->storage.quarantined, 1u);
}

TEST_F(KvStoreRowsTest, WhatADiskSaysOfHowItWasMadeMustGiveTheName) {
  Save(turn_);
  WaitUntilWritten();
  SegmentRecord record = *disk_->Peek(turn_[1].name);
  std::vector<std::byte> image(record.image_bytes);
  ASSERT_TRUE(disk_->Read(record.name, image).ok());
  ASSERT_TRUE(disk_->Delete({&record.name, 1}).ok());
  record.provenance->sources = common::SaltHash("other");
  ASSERT_TRUE(disk_->Put(record, turn_[1].token_ids, image).ok());
  Start();
  EXPECT_THAT(Rows(RowsRequest(1, text_.Rows(0, 1000))), ElementsAre(64));
  EXPECT_EQ(store_->stats().durable->storage.quarantined, 1u);
}

// More than the queue of the disk takes, and more than half of the arena.
TEST_F(KvStoreRowsTest, ManyBlocksAreWrittenWhenTheDiskHasTime) {
  const PromptText text = PromptText::Of(64 * 90);
  storage_->stuck_ = true;
  std::vector<SegmentIdentity> chain;
  for (size_t i = 0; i < 90; ++i) chain.push_back(text.Block(64 * i));
  Save(chain);
  EXPECT_LT(store_->stats().durable->persister.queued, 90u);
  storage_->stuck_ = false;
  const absl::Time deadline = absl::Now() + absl::Minutes(2);
  while (store_->stats().durable->storage.segments < 90 && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(store_->stats().durable->storage.segments, 90u);
  EXPECT_TRUE(AwaitNothingIsHeld());
  // Of what the arena has no room for, a beginning comes back.
  Start();
  const uint64_t sequence = 5;
  const auto room = store_->reservations().Reserve(
      token_, ++call_number_, ReserveRequest::Unnamed(sequence, {1024, 1024, 1024, 1024}));
  ASSERT_TRUE(room.ok()) << room.status();
  const std::vector<int> pieces = Rows(RowsRequest(1, text.Rows(0, text.size())));
  EXPECT_GT(pieces.size(), 10u);
  EXPECT_LT(pieces.size(), 89u);
}

}  // namespace
}  // namespace retroinfer::kvstore
