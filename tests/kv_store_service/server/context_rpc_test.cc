#include "kv_store_service/server/context_rpc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/rpc/grpc_status.h"
#include "tests/kv_store_service/contexts/context_fixture.h"

namespace retroinfer::kvstore {
namespace {

class ContextRpcTest : public ContextStoreTest {
 protected:
  v1::SaveContextRequest SaveRequest() {
    const ContextToSave context = ToSave("book", chain_);
    v1::SaveContextRequest request;
    request.set_name("book");
    request.set_salt_hash(std::string(context.salt_hash.view()));
    request.set_root(std::string(context.root.view()));
    for (const int32_t token : context.sink_token_ids) request.add_sink_token_ids(token);
    for (const SegmentName& name : context.segments) {
      request.add_segments(std::string(name.view()));
    }
    request.set_num_tokens(2100);
    request.mutable_time_to_live()->set_seconds(3600);
    return request;
  }
  static std::string Reason(const grpc::Status& status) {
    return common::ReasonOf(common::FromGrpcStatus(status)).reason;
  }
  template <typename Request>
  Request One(const std::string& name) {
    Request request;
    request.set_name(name);
    request.set_salt_hash(std::string(tenant_.view()));
    return request;
  }

  ContextRpc rpc_{contexts_.get()};
};

TEST_F(ContextRpcTest, CarriesAContextFromSavingToRemoval) {
  const v1::SaveContextRequest request = SaveRequest();
  v1::SaveContextResponse response;
  ASSERT_TRUE(rpc_.SaveContext(nullptr, &request, &response).ok());
  EXPECT_EQ(response.missing_segments(), 2u);
  Run(1, chain_);
  WaitUntilWritten();
  ASSERT_TRUE(rpc_.SaveContext(nullptr, &request, &response).ok());
  ASSERT_TRUE(response.has_saved());
  EXPECT_EQ(response.saved().tier(), v1::CONTEXT_TIER_ARENA_AND_DISK);
  EXPECT_EQ(response.saved().num_segments(), 2u);
  EXPECT_EQ(response.saved().expires().seconds() - response.saved().created().seconds(), 3600);

  const auto pin = One<v1::PinContextRequest>("book");
  v1::PinContextResponse pinned;
  ASSERT_TRUE(rpc_.PinContext(nullptr, &pin, &pinned).ok());
  EXPECT_TRUE(pinned.context().pinned());
  const auto unpin = One<v1::UnpinContextRequest>("book");
  v1::UnpinContextResponse unpinned;
  ASSERT_TRUE(rpc_.UnpinContext(nullptr, &unpin, &unpinned).ok());
  EXPECT_FALSE(unpinned.context().pinned());

  const auto verify = One<v1::VerifyContextRequest>("book");
  v1::VerifyContextResponse report;
  ASSERT_TRUE(rpc_.VerifyContext(nullptr, &verify, &report).ok());
  EXPECT_EQ(report.intact_segments(), 2u);

  store_->context_segments().DropFromArena(std::vector{chain_[1].name});
  v1::ListContextsRequest list;
  list.set_salt_hash(std::string(tenant_.view()));
  v1::ListContextsResponse listed;
  ASSERT_TRUE(rpc_.ListContexts(nullptr, &list, &listed).ok());
  EXPECT_EQ(listed.contexts(0).tier(), v1::CONTEXT_TIER_DISK);
  ASSERT_TRUE(disk_->Delete(std::vector{chain_[0].name}).ok());
  listed.Clear();
  ASSERT_TRUE(rpc_.ListContexts(nullptr, &list, &listed).ok());
  EXPECT_EQ(listed.contexts(0).tier(), v1::CONTEXT_TIER_ARENA);
  ASSERT_TRUE(disk_->Delete(std::vector{chain_[1].name}).ok());
  listed.Clear();
  ASSERT_TRUE(rpc_.ListContexts(nullptr, &list, &listed).ok());
  EXPECT_EQ(listed.contexts(0).tier(), v1::CONTEXT_TIER_PARTLY_LOST);

  const auto remove = One<v1::RemoveContextRequest>("book");
  v1::RemoveContextResponse removed;
  ASSERT_TRUE(rpc_.RemoveContext(nullptr, &remove, &removed).ok());
  EXPECT_EQ(Reason(rpc_.RemoveContext(nullptr, &remove, &removed)), "NO_SUCH_CONTEXT");
}

TEST_F(ContextRpcTest, RefusesWhatMakesNoSense) {
  const auto refused = [this](v1::SaveContextRequest request) {
    v1::SaveContextResponse response;
    return Reason(rpc_.SaveContext(nullptr, &request, &response));
  };
  v1::SaveContextRequest request = SaveRequest();
  request.set_name("");
  EXPECT_EQ(refused(request), "INVALID_CONTEXT");
  request.set_name(std::string(257, 'x'));
  EXPECT_EQ(refused(request), "INVALID_CONTEXT");
  request = SaveRequest();
  request.set_salt_hash("short");
  EXPECT_EQ(refused(request), "INVALID_CONTEXT");
  request = SaveRequest();
  request.add_segments("short");
  EXPECT_EQ(refused(request), "INVALID_CONTEXT");
  request = SaveRequest();
  request.clear_segments();
  EXPECT_EQ(refused(request), "INVALID_CONTEXT");
  request = SaveRequest();
  request.add_sink_token_ids(1);
  EXPECT_EQ(refused(request), "INVALID_CONTEXT");
  request = SaveRequest();
  request.mutable_time_to_live()->set_seconds(-1);
  EXPECT_EQ(refused(request), "INVALID_CONTEXT");
}

// Each holds a thread, of which the worker's own calls need some.
TEST_F(ContextRpcTest, OnlySomeContextsAreMovedOrCheckedAtATime) {
  ASSERT_TRUE(SaveText("book", {1, 2}).ok());
  storage_->stuck_ = true;  // none of them ends
  absl::Mutex mutex;
  std::vector<std::string> ended;
  std::vector<std::thread> calls;
  for (int i = 0; i < 10; ++i) {
    calls.emplace_back([&] {
      const auto verify = One<v1::VerifyContextRequest>("book");
      v1::VerifyContextResponse report;
      const grpc::Status status = rpc_.VerifyContext(nullptr, &verify, &report);
      absl::MutexLock lock(&mutex);
      ended.push_back(status.ok() ? "OK" : Reason(status));
    });
  }
  {
    absl::MutexLock lock(&mutex);
    const auto two = [&ended] { return ended.size() >= 2; };
    mutex.Await(absl::Condition(&two));
    EXPECT_EQ(ended, std::vector<std::string>(2, "TOO_MANY_TRANSFERS"));
  }
  storage_->stuck_ = false;
  for (std::thread& call : calls) call.join();
  EXPECT_EQ(std::count(ended.begin(), ended.end(), "OK"), 8);
  // There is room again.
  const auto verify = One<v1::VerifyContextRequest>("book");
  v1::VerifyContextResponse report;
  EXPECT_TRUE(rpc_.VerifyContext(nullptr, &verify, &report).ok());
}

}  // namespace
}  // namespace retroinfer::kvstore
