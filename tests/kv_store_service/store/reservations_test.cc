// The calls of a worker about its sequences: who may call, what is counted.
#include "kv_store_service/store/reservations.h"

#include <gtest/gtest.h>

#include "tests/kv_store_service/server/durable_store_fixture.h"

namespace retroinfer::kvstore {
namespace {

class ReservationsTest : public DurableStoreTest {
 protected:
  Reservations& calls() { return store_->reservations(); }
};

TEST_F(ReservationsTest, OnlyTheHolderOfTheLeaseMayCall) {
  const ReserveRequest request = ReserveRequest::Unnamed(1, {1024});
  EXPECT_TRUE(absl::IsPermissionDenied(calls().Reserve("other", 1, request).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(calls().Commit("other", 1, 1, {}).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(calls().Release("other", 1, 1).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(calls().Declare("other", 0, {}, true)));
  EXPECT_TRUE(absl::IsFailedPrecondition(calls().Declare(token_, 0, {}, true)))
      << "nothing was handed back";
}

TEST_F(ReservationsTest, ACallThatComesLateChangesNothing) {
  ASSERT_TRUE(calls().Reserve(token_, 5, ReserveRequest::Unnamed(1, {1024})).ok());
  EXPECT_TRUE(absl::IsAborted(calls().Release(token_, 5, 1).status()));
  EXPECT_EQ(store_->stats().sequences, 1u);
  const auto freed = calls().Release(token_, 6, 1);
  ASSERT_TRUE(freed.ok());
  EXPECT_GT(*freed, 0u);
}

TEST_F(ReservationsTest, WhatIsCommittedAndRefusedIsCounted) {
  const auto reservation = calls().Reserve(token_, 1, ReserveRequest::Unnamed(1, {1024, 1024}));
  ASSERT_TRUE(reservation.ok());
  const ExtentRecord& extent = reservation->extents[0];
  const std::vector<SegmentToCommit> segments = {{extent.id, kSinkTokens, 1024, std::nullopt}};
  EXPECT_FALSE(calls().Commit(token_, 2, 1, segments).ok()) << "nothing was written";
  WriteSegment(BytesOf(extent), kTinyGeometry, kSinkTokens, 1024);
  const auto committed = calls().Commit(token_, 3, 1, segments);
  ASSERT_TRUE(committed.ok()) << committed.status();
  EXPECT_LT((*committed)[0].pages.count, extent.pages.count) << "the tail was freed";
  EXPECT_FALSE(
      calls()
          .Reserve(token_, 4, ReserveRequest::Unnamed(2, std::vector<uint32_t>(1000, 1024)))
          .ok());
  const StoreStats stats = store_->stats();
  EXPECT_EQ(stats.segments_committed, 1u);
  EXPECT_EQ(stats.segments_refused, 1u);
  EXPECT_EQ(stats.reservations_refused, 1u);
  EXPECT_EQ(stats.clusters, 256u);
}

}  // namespace
}  // namespace retroinfer::kvstore
