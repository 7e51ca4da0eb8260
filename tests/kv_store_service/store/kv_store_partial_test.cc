// Segments of which only the index is there: who gets them, how their pages come, and what happens
// if they do not.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/kv_store_service/server/durable_store_fixture.h"

namespace retroinfer::kvstore {
namespace {

class KvStorePartialTest : public DurableStoreTest {
 protected:
  KvStorePartialTest() {
    Run(1, chain_);
    WaitUntilWritten();
    for (const SegmentIdentity& identity : chain_) {
      std::vector<std::byte> image(disk_->Peek(identity.name)->image_bytes);
      EXPECT_TRUE(disk_->Read(identity.name, image).ok());
      images_.push_back(std::move(image));
    }
    Start();
    storage_->rests_are_stuck_ = true;
  }
  ~KvStorePartialTest() override {
    if (storage_ != nullptr) storage_->rests_are_stuck_ = false;
  }

  absl::StatusOr<Reservation> TryReserve(uint64_t sequence, bool takes_partial,
                                         int num_segments = 2) {
    ReserveRequest request = NamedRequest(sequence, chain_);
    request.segments.resize(static_cast<size_t>(num_segments));
    request.takes_partial = takes_partial;
    return store_->reservations().Reserve(token_, ++call_number_, request);
  }
  // As the worker's link does.
  Reservation ReservePartial(uint64_t sequence, int num_segments = 2) {
    while (true) {
      const auto reservation = TryReserve(sequence, true, num_segments);
      if (reservation.ok()) return *reservation;
      if (common::ReasonOf(reservation.status()).reason != kWaitsForDiskReason) {
        ADD_FAILURE() << reservation.status();
        return {};
      }
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  uint32_t NumParts(const ExtentRecord& extent) {
    return static_cast<uint32_t>((BytesOf(extent).size() + extent.part_bytes - 1) /
                                 extent.part_bytes);
  }
  absl::StatusOr<std::vector<uint32_t>> FetchAll(const Reservation& reservation) {
    std::vector<PartsOfExtent> wanted;
    for (const ExtentRecord& extent : reservation.extents) {
      wanted.push_back({extent.id, {}});
      if (extent.part_bytes != 0) wanted.back().runs = {0, NumParts(extent)};
    }
    return store_->reservations().FetchParts(token_, wanted);
  }
  void ExpectImages(const Reservation& reservation) {
    for (size_t i = 0; i < reservation.extents.size(); ++i) {
      const std::span<std::byte> bytes = BytesOf(reservation.extents[i]);
      ASSERT_EQ(bytes.size(), images_[i].size());
      EXPECT_EQ(std::memcmp(bytes.data(), images_[i].data(), bytes.size()), 0) << i;
    }
  }
  void AwaitRestored(uint64_t count) {
    while (store_->stats().durable->restored_total < count) absl::SleepFor(absl::Milliseconds(1));
  }

  std::vector<std::vector<std::byte>> images_;
};

TEST_F(KvStorePartialTest, WhoTakesPartialSegmentsHasThemWithTheirIndexes) {
  const Reservation reservation = ReservePartial(1);
  ASSERT_EQ(reservation.num_cached, 2u);
  EXPECT_EQ(store_->stats().durable->restored_total, 0u);
  for (size_t i = 0; i < 2; ++i) {
    const ExtentRecord& extent = reservation.extents[i];
    EXPECT_EQ(extent.part_bytes, 4096u);
    const SegmentLayout layout(geometry_, 1024);
    const std::span<std::byte> bytes = BytesOf(extent);
    ASSERT_EQ(bytes.size(), images_[i].size());
    EXPECT_EQ(std::memcmp(bytes.data(), images_[i].data(), layout.index_end), 0);
  }
  // Others wait until all is there.
  const auto other = TryReserve(2, false);
  EXPECT_EQ(common::ReasonOf(other.status()).reason, kWaitsForDiskReason) << other.status();
  storage_->rests_are_stuck_ = false;
  const auto there = FetchAll(reservation);
  ASSERT_TRUE(there.ok()) << there.status();
  ExpectImages(reservation);
  AwaitRestored(2);
  EXPECT_EQ(*FetchAll(reservation), std::vector<uint32_t>(2, kAllParts));
  const auto whole = TryReserve(2, false);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->num_cached, 2u);
  EXPECT_EQ(whole->extents[0].id, reservation.extents[0].id);
  EXPECT_EQ(whole->extents[0].part_bytes, 0u);
  EXPECT_EQ(TryReserve(3, true)->extents[0].part_bytes, 0u);
  const auto stats = *store_->stats().durable;
  EXPECT_EQ(stats.index_bytes_total + stats.asked_bytes_total + stats.behind_bytes_total,
            images_[0].size() + images_[1].size());
  for (const uint64_t sequence : {1, 2, 3}) {
    EXPECT_TRUE(store_->reservations().Release(token_, ++call_number_, sequence).ok());
  }
  EXPECT_TRUE(AwaitNothingIsHeld());
}

TEST_F(KvStorePartialTest, SeveralMayHaveAPartialSegmentAndOneMoreBehindIt) {
  const Reservation first = ReservePartial(1, 1);
  ASSERT_EQ(first.num_cached, 1u);
  // The second segment is read for the second sequence, behind the rest of the first.
  storage_->rests_are_stuck_ = false;
  const Reservation second = ReservePartial(2);
  ASSERT_EQ(second.num_cached, 2u);
  EXPECT_EQ(second.extents[0].id, first.extents[0].id);
  ASSERT_TRUE(FetchAll(second).ok());
  ExpectImages(second);
}

TEST_F(KvStorePartialTest, TheRestComesWithoutBeingAskedForAndWhenNobodyWantsItAnyMore) {
  ReservePartial(1);
  EXPECT_TRUE(store_->reservations().Release(token_, ++call_number_, 1).ok());
  storage_->rests_are_stuck_ = false;
  AwaitRestored(2);
  EXPECT_TRUE(AwaitNothingIsHeld());
  EXPECT_EQ(Run(2, chain_), 2u);
}

TEST_F(KvStorePartialTest, ASegmentThatIsDamagedIsLostForThoseWhoHaveItAndComputedByOthers) {
  const Reservation reservation = ReservePartial(1);
  storage_->rests_fail_ = true;
  storage_->rests_are_stuck_ = false;
  EXPECT_FALSE(FetchAll(reservation).ok());
  while (store_->stats().durable->restore_failures_total < 2) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  const auto again = FetchAll(reservation);
  EXPECT_FALSE(again.ok());
  // Nobody waits for it, or finds it, while the first sequence still has the extents.
  const auto other = TryReserve(2, true);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->num_cached, 0u);
  for (const uint64_t sequence : {1, 2}) {
    EXPECT_TRUE(store_->reservations().Release(token_, ++call_number_, sequence).ok());
  }
  EXPECT_TRUE(AwaitNothingIsHeld());
}

// The failure is told, and who comes next computes the segment, though what else is read behind is
// not done with: the rest of an earlier text may be many gigabytes.
TEST_F(KvStorePartialTest, WhoSendsARequestAgainAtOnceDoesNotMeetTheDamagedSegment) {
  const Reservation reservation = ReservePartial(1);
  storage_->damaged_image_ = 1;  // the rest of the first is stuck
  const std::vector<PartsOfExtent> wanted = {
      {reservation.extents[1].id, {NumParts(reservation.extents[1]) - 1, 1}}};
  EXPECT_TRUE(absl::IsDataLoss(store_->reservations().FetchParts(token_, wanted).status()));
  EXPECT_EQ(store_->stats().durable->restore_failures_total, 1u);
  const auto again = TryReserve(2, true);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->num_cached, 1u);
  EXPECT_EQ(again->extents[1].part_bytes, 0u);
  storage_->rests_are_stuck_ = false;
  AwaitRestored(1);
  for (const uint64_t sequence : {1, 2}) {
    EXPECT_TRUE(store_->reservations().Release(token_, ++call_number_, sequence).ok());
  }
  EXPECT_TRUE(AwaitNothingIsHeld());
  EXPECT_EQ(store_->stats().durable->restore_failures_total, 1u);
}

TEST_F(KvStorePartialTest, NobodyButTheStoreCommitsWhatIsReadFromTheDisk) {
  const Reservation reservation = ReservePartial(1);
  const std::vector<SegmentToCommit> segments = {
      {reservation.extents[0].id, kSinkTokens, 1024, chain_[0]}};
  EXPECT_TRUE(absl::IsFailedPrecondition(
      store_->reservations().Commit(token_, ++call_number_, 1, segments).status()));
  // Nobody finds it by that.
  EXPECT_FALSE(TryReserve(2, false, 1).ok());
}

TEST_F(KvStorePartialTest, ImagesOfEarlierVersionsComeAsAWhole) {
  storage_->has_parts_ = false;
  const Reservation reservation = ReservePartial(1);
  ASSERT_EQ(reservation.num_cached, 2u);
  EXPECT_EQ(reservation.extents[0].part_bytes, 0u);
  ExpectImages(reservation);
}

TEST_F(KvStorePartialTest, RefusesPartsOfOthersAndPartsThatAreNone) {
  const Reservation reservation = ReservePartial(1);
  const uint64_t id = reservation.extents[0].id;
  const auto fetch = [&](uint64_t extent_id, std::vector<uint32_t> run) {
    const std::vector<PartsOfExtent> wanted = {{extent_id, std::move(run)}};
    return store_->reservations().FetchParts(token_, wanted).status();
  };
  EXPECT_TRUE(absl::IsNotFound(fetch(id + 1000, {0, 1})));
  EXPECT_TRUE(absl::IsInvalidArgument(fetch(id, {NumParts(reservation.extents[0]), 1})));
  const std::vector<PartsOfExtent> wanted = {{id, {0, 1}}};
  EXPECT_TRUE(absl::IsPermissionDenied(
      store_->reservations().FetchParts("another token 16", wanted).status()));
  EXPECT_TRUE(store_->reservations().FetchParts(token_, wanted).ok());  // of the index
}

TEST_F(KvStorePartialTest, TheStoreEndsWhileARestIsOnItsWay) {
  ReservePartial(1);
  storage_->rests_are_stuck_ = false;
  storage_ = nullptr;
  store_.reset();
}

}  // namespace
}  // namespace retroinfer::kvstore
