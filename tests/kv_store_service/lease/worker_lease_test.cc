#include "kv_store_service/lease/worker_lease.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "common/shm/descriptor_protocol.h"
#include "kv_store_service/directory/arena_segments.h"
#include "tests/kv_store_service/segment_writer.h"

namespace retroinfer::kvstore {
namespace {

using absl::StatusCode;

class WorkerLeaseTest : public testing::Test {
 protected:
  WorkerLeaseTest() { lease_.SetReady(); }

  static AttachParameters Parameters(bool hand_back = false) {
    return {kTinyGeometry, "model", 16, 64, 64, hand_back};
  }
  std::string Begin(bool hand_back = false) {
    Attachment attachment;
    attachment.token = *NewAttachToken();
    attachment.parameters = Parameters(hand_back);
    attachment.claim_deadline = now_ + absl::Seconds(5);
    const std::string token = attachment.token;
    lease_.Begin(std::move(attachment));
    return token;
  }

  const absl::Time now_ = absl::Now();
  WorkerLease lease_;
};

TEST_F(WorkerLeaseTest, AnAttachmentPromisesNothingUntilItIsTheLease) {
  const std::string first = Begin();
  EXPECT_TRUE(lease_.CheckAttach(Parameters()).ok());
  EXPECT_EQ(lease_.BeginCall(first, 1, 1).code(), StatusCode::kFailedPrecondition);
  const std::string second = Begin();
  EXPECT_EQ(lease_.CheckClaim(first, false).code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(lease_.CheckClaim(second, true).code(), StatusCode::kPermissionDenied);
  EXPECT_TRUE(lease_.CheckClaim(second, false).ok());
  EXPECT_EQ(lease_.holder(), nullptr);
  lease_.Start(7, nullptr);
  EXPECT_EQ(lease_.holder()->pid, 7);
  EXPECT_EQ(lease_.CheckClaim(second, false).code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(lease_.CheckAttach(Parameters()).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(lease_.End().token, second);
  EXPECT_FALSE(lease_.has_attachment());
  EXPECT_TRUE(lease_.CheckAttach(Parameters()).ok());
}

TEST_F(WorkerLeaseTest, OnlyAnAttachmentWithoutALeaseIsLate) {
  EXPECT_FALSE(lease_.IsLate(now_ + absl::Hours(1)));
  Begin();
  EXPECT_FALSE(lease_.IsLate(now_));
  EXPECT_TRUE(lease_.IsLate(now_ + absl::Hours(1)));
  lease_.Start(7, nullptr);
  EXPECT_FALSE(lease_.IsLate(now_ + absl::Hours(1)));
}

TEST_F(WorkerLeaseTest, CallsHaveNumbersThatGrowWithinOneLease) {
  std::string token = Begin();
  lease_.Start(7, nullptr);
  EXPECT_TRUE(lease_.BeginCall(token, 5, 1).ok());
  EXPECT_EQ(lease_.BeginCall(token, 5, 1).code(), StatusCode::kAborted);
  EXPECT_EQ(lease_.BeginCall(token, 6, kOwnSequences).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(lease_.BeginCall("other", 7, 1).code(), StatusCode::kPermissionDenied);
  lease_.End();
  EXPECT_EQ(lease_.BeginCall(token, 8, 1).code(), StatusCode::kPermissionDenied);
  token = Begin();
  lease_.Start(8, nullptr);
  EXPECT_TRUE(lease_.BeginCall(token, 1, 1).ok());
}

TEST_F(WorkerLeaseTest, HandedBackMemoryIsDeclaredInOrderBeforeAnythingElse) {
  std::string token = Begin(/*hand_back=*/true);
  EXPECT_EQ(lease_.BeginPart(token, 0).code(), StatusCode::kFailedPrecondition);
  lease_.Start(7, nullptr);
  EXPECT_EQ(lease_.BeginCall(token, 1, 1).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(lease_.BeginPart(token, 1).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(lease_.BeginPart(token, 0).ok());
  lease_.EndPart(false);
  EXPECT_EQ(lease_.BeginPart(token, 0).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(lease_.BeginCall(token, 1, 1).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(lease_.BeginPart(token, 1).ok());
  lease_.EndPart(true);
  EXPECT_TRUE(lease_.BeginCall(token, 1, 1).ok());
  EXPECT_EQ(lease_.BeginPart(token, 2).code(), StatusCode::kFailedPrecondition);

  lease_.End();
  token = Begin(/*hand_back=*/true);
  lease_.Start(7, nullptr);
  lease_.RefuseDeclaration();
  EXPECT_EQ(lease_.BeginPart(token, 0).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(lease_.BeginCall(token, 1, 1).code(), StatusCode::kFailedPrecondition);
}

TEST(WorkerLeaseAdoptionTest, WaitsForOneWorkerOnly) {
  WorkerLease lease;
  const AttachParameters parameters{kTinyGeometry, "model", 16, 64, 64, false};
  EXPECT_EQ(lease.CheckAttach(parameters).code(), StatusCode::kUnavailable);
  lease.AwaitAdoption({1, 4096, kTinyGeometry, "model"});
  EXPECT_EQ(lease.CheckAttach(parameters).code(), StatusCode::kUnavailable);
  AttachParameters other{kTinyGeometry, "other", 16, 64, 64, true};
  EXPECT_EQ(lease.CheckAttach(other).code(), StatusCode::kFailedPrecondition);
  other.model_fingerprint = "model";
  EXPECT_TRUE(lease.CheckAttach(other).ok());
  lease.GiveUpAdoption();
  EXPECT_TRUE(lease.is_starting());
  EXPECT_EQ(lease.CheckAttach(other).code(), StatusCode::kUnavailable);
  lease.SetReady();
  EXPECT_TRUE(lease.CheckAttach(parameters).ok());
}

TEST(AttachTokenTest, IsNewEachTime) {
  EXPECT_EQ(NewAttachToken()->size(), kAttachTokenBytes);
  EXPECT_NE(*NewAttachToken(), *NewAttachToken());
}

}  // namespace
}  // namespace retroinfer::kvstore
