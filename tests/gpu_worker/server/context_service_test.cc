#include "gpu_worker/server/context_service.h"

#include <gtest/gtest.h>

#include <thread>

#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "tests/support/context_harness.h"

namespace retroinfer {
namespace {

namespace v1 = generation::v1;

std::string Reason(const grpc::Status& status) {
  return common::ReasonOf(common::FromGrpcStatus(status)).reason;
}

class ContextServiceTest : public testing::Test {
 protected:
  v1::SaveContextRequest SaveRequest(const std::string& name, size_t tokens = 2500) {
    v1::SaveContextRequest request;
    request.set_name(name);
    request.set_cache_salt("salt");
    for (size_t i = 0; i < tokens; ++i) request.mutable_token_ids()->add_ids(5);
    return request;
  }
  grpc::Status Save(const v1::SaveContextRequest& request, v1::SavedContext* saved = nullptr) {
    grpc::ClientContext context;
    const auto reader = stub_->SaveContext(&context, request);
    v1::SaveContextResponse response;
    while (reader->Read(&response)) {
      if (response.has_saved() && saved != nullptr) *saved = response.saved();
    }
    return reader->Finish();
  }

  ContextHarness harness_;
  std::unique_ptr<v1::ContextService::Stub> stub_ = harness_.Stub();
};

TEST_F(ContextServiceTest, ANameThatIsTakenIsReplacedOnlyOnRequest) {
  v1::SaveContextRequest request = SaveRequest("book");
  ASSERT_TRUE(Save(request).ok());
  const grpc::Status refused = Save(request);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(Reason(refused), "CONTEXT_EXISTS");
  request.set_replace(true);
  EXPECT_TRUE(Save(request).ok());
}

TEST_F(ContextServiceTest, CarriesAContextFromSavingToRemoval) {
  v1::SavedContext saved;
  const grpc::Status status = Save(SaveRequest("book"), &saved);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(saved.computed_tokens(), 2500);
  EXPECT_EQ(saved.context().reusable_tokens(), 2048);
  const GenerationRequest computed = harness_.worker().engine().last_request();
  EXPECT_EQ(computed.sampling.max_tokens, 2);
  EXPECT_TRUE(computed.sampling.ignore_eos);
  EXPECT_EQ(computed.attention.policy, PolicyKind::kWave);

  grpc::ClientContext pin_context;
  v1::PinContextRequest pin;
  pin.set_name("book");
  pin.set_cache_salt("salt");
  v1::PinContextResponse pinned;
  EXPECT_TRUE(stub_->PinContext(&pin_context, pin, &pinned).ok());
  EXPECT_TRUE(pinned.context().pinned());

  for (const auto& [salt, count] : {std::pair("salt", 1), std::pair("other", 0)}) {
    grpc::ClientContext context;
    v1::ListContextsRequest list;
    list.set_cache_salt(salt);
    v1::ListContextsResponse listed;
    EXPECT_TRUE(stub_->ListContexts(&context, list, &listed).ok());
    EXPECT_EQ(listed.contexts_size(), count);
  }

  v1::RemoveContextRequest remove;
  remove.set_name("book");
  v1::RemoveContextResponse removed;
  grpc::ClientContext wrong_tenant;
  EXPECT_EQ(Reason(stub_->RemoveContext(&wrong_tenant, remove, &removed)), "NO_SUCH_CONTEXT");
  remove.set_cache_salt("salt");
  grpc::ClientContext right_tenant;
  EXPECT_TRUE(stub_->RemoveContext(&right_tenant, remove, &removed).ok());
}

TEST_F(ContextServiceTest, StreamsFilesInBothDirections) {
  ASSERT_TRUE(Save(SaveRequest("book")).ok());
  grpc::ClientContext export_context;
  v1::ExportContextRequest request;
  request.set_name("book");
  request.set_cache_salt("salt");
  const auto reader = stub_->ExportContext(&export_context, request);
  v1::ExportContextResponse chunk;
  std::string file;
  while (reader->Read(&chunk)) file += chunk.data();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(file, "file of book");

  for (const auto& [text, reason] :
       {std::pair(file, ""), std::pair(std::string("x"), "BAD_FILE")}) {
    grpc::ClientContext context;
    v1::ImportContextResponse response;
    const auto writer = stub_->ImportContext(&context, &response);
    v1::ImportContextRequest part;
    part.set_name("copy");
    for (const char c : text) {
      part.set_data(std::string(1, c));
      writer->Write(part);
      part.Clear();
    }
    writer->WritesDone();
    EXPECT_EQ(Reason(writer->Finish()), reason);
    if (*reason == '\0') {
      EXPECT_EQ(response.context().name(), "copy");
    }
  }
}

TEST_F(ContextServiceTest, RefusesWhatMakesNoSense) {
  EXPECT_EQ(Reason(Save(SaveRequest(""))), "INVALID_CONTEXT");
  EXPECT_EQ(Reason(Save(SaveRequest(std::string(257, 'x')))), "INVALID_CONTEXT");
  EXPECT_EQ(Reason(Save(SaveRequest("short", 10))), "CONTEXT_TOO_SHORT");
  EXPECT_EQ(Reason(Save(SaveRequest("too large"))), "CACHE_FULL");
  v1::SaveContextRequest request;
  request.set_name("nothing");
  EXPECT_EQ(Reason(Save(request)), "EMPTY_PROMPT");
  request = SaveRequest("salted");
  request.set_cache_salt(std::string(257, 's'));
  EXPECT_EQ(Save(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request = SaveRequest("ttl");
  request.mutable_time_to_live()->set_seconds(0);
  EXPECT_EQ(Reason(Save(request)), "INVALID_CONTEXT");
  request = SaveRequest("field");
  request.GetReflection()->MutableUnknownFields(&request)->AddVarint(99, 1);
  EXPECT_EQ(Reason(Save(request)), "UNKNOWN_FIELD");
}

TEST_F(ContextServiceTest, ACancelledCallEndsTheComputation) {
  harness_.worker().engine().Hold(true);
  grpc::ClientContext context;
  const auto reader = stub_->SaveContext(&context, SaveRequest("book"));
  ASSERT_TRUE(harness_.worker().engine().AwaitLive(1));
  context.TryCancel();
  EXPECT_TRUE(harness_.worker().engine().AwaitLive(0));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(ContextServiceTest, OnlySoManyCallsAreOpen) {
  harness_.worker().engine().Hold(true);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::SaveContextResponse>>> readers;
  for (int i = 0; i < ContextServiceImpl::kMaxCalls; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(
        stub_->SaveContext(contexts.back().get(), SaveRequest(absl::StrCat("book", i))));
  }
  ASSERT_TRUE(harness_.worker().engine().AwaitLive(ContextServiceImpl::kMaxCalls));
  EXPECT_EQ(Reason(Save(SaveRequest("one more"))), "TOO_MANY_CALLS");
  for (const auto& context : contexts) context->TryCancel();
  EXPECT_TRUE(harness_.worker().engine().AwaitLive(0));
}

TEST(ContextService, AsksForTheApiKey) {
  WorkerHarness::Settings settings;
  settings.server.keys = *common::KeyHolder::Open("secret", "");
  ContextHarness harness(0, settings);
  const auto stub = harness.Stub();
  v1::ListContextsResponse response;
  grpc::ClientContext without;
  EXPECT_EQ(stub->ListContexts(&without, {}, &response).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  grpc::ClientContext with;
  with.AddMetadata("authorization", "Bearer secret");
  EXPECT_TRUE(stub->ListContexts(&with, {}, &response).ok());
}

TEST(ContextService, IsNotReadyBeforeTheModelIs) {
  WorkerHarness::Settings settings;
  settings.serve = false;
  WorkerHarness worker(settings);
  const auto stub = v1::ContextService::NewStub(worker.Channel());
  v1::ListContextsResponse response;
  grpc::ClientContext context;
  EXPECT_EQ(Reason(stub->ListContexts(&context, {}, &response)), "NOT_READY");
}

}  // namespace
}  // namespace retroinfer
