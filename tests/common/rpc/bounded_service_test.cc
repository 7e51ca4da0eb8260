#include "common/rpc/bounded_service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "common/status/error_reason.h"
#include "retroinfer/generation/v1/contexts.grpc.pb.h"
#include "tests/common/rpc/raw_call.h"

namespace retroinfer::common {
namespace {

namespace v1 = generation::v1;

class FakeContexts final : public v1::ContextService::Service {
 public:
  grpc::Status SaveContext(grpc::ServerContext*, const v1::SaveContextRequest* request,
                           grpc::ServerWriter<v1::SaveContextResponse>* writer) override {
    ++calls_;
    last_name_ = request->name();
    v1::SaveContextResponse response;
    for (int i = 0; i < 3; ++i) writer->Write(response);
    return grpc::Status::OK;
  }
  grpc::Status PinContext(grpc::ServerContext*, const v1::PinContextRequest* request,
                          v1::PinContextResponse*) override {
    ++calls_;
    last_name_ = request->name();
    return grpc::Status::OK;
  }
  grpc::Status Import(grpc::ServerContext*, BoundedReader<v1::ImportContextRequest>* reader,
                      v1::ImportContextResponse*) {
    v1::ImportContextRequest request;
    while (true) {
      const absl::StatusOr<bool> read = reader->Read(&request);
      if (!read.ok()) return ToGrpcStatus(read.status());
      if (!*read) return grpc::Status::OK;
      ++calls_;
      last_name_ = request.name();
    }
  }

  int calls_ = 0;
  std::string last_name_;
};

class BoundedServiceTest : public testing::Test {
 protected:
  BoundedServiceTest() : service_(v1::ContextService::service_full_name(), &contexts_) {
    service_.Add("SaveContext", &FakeContexts::SaveContext);
    service_.Add("PinContext", &FakeContexts::PinContext);
    service_.Add("ImportContext", &FakeContexts::Import);
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    channel_ = server_->InProcessChannel({});
    stub_ = v1::ContextService::NewStub(channel_);
  }

  // Sends any bytes as the request of a method. Returns how the call ended.
  absl::Status Send(const std::string& method, const std::string& bytes) {
    return test_support::RawCall(channel_, "/retroinfer.generation.v1.ContextService/" + method,
                                 bytes);
  }

  FakeContexts contexts_;
  BoundedService<FakeContexts> service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::ContextService::Stub> stub_;
};

TEST_F(BoundedServiceTest, CallsReachTheirHandlers) {
  {
    grpc::ClientContext context;
    v1::PinContextRequest request;
    request.set_name("a");
    v1::PinContextResponse response;
    EXPECT_TRUE(stub_->PinContext(&context, request, &response).ok());
    EXPECT_EQ(contexts_.last_name_, "a");
  }
  {
    grpc::ClientContext context;
    v1::SaveContextRequest request;
    request.set_name("b");
    const auto reader = stub_->SaveContext(&context, request);
    v1::SaveContextResponse response;
    int answers = 0;
    while (reader->Read(&response)) ++answers;
    EXPECT_TRUE(reader->Finish().ok());
    EXPECT_EQ(answers, 3);
    EXPECT_EQ(contexts_.last_name_, "b");
  }
  grpc::ClientContext context;
  v1::ImportContextResponse response;
  const auto writer = stub_->ImportContext(&context, &response);
  v1::ImportContextRequest request;
  request.set_name("c");
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(writer->Write(request));
  EXPECT_TRUE(writer->Write({}));
  writer->WritesDone();
  EXPECT_TRUE(writer->Finish().ok());
  EXPECT_EQ(contexts_.calls_, 7);
  EXPECT_EQ(contexts_.last_name_, "");  // nothing is left of the message before
}

TEST_F(BoundedServiceTest, WhatHasTooManyPartsOrIsNoRequestReachesNoHandler) {
  std::string messages;  // each a field that is not known
  for (size_t i = 0; i <= kMaxRecords; ++i) messages += std::string("\xa2\x06\0", 3);
  for (const char* method : {"SaveContext", "PinContext", "ImportContext"}) {
    absl::Status status = Send(method, messages);
    EXPECT_EQ(ReasonOf(status).reason, "REQUEST_TOO_LARGE") << status;
    status = Send(method, std::string("\xa2\x06\0", 3));  // field 100
    EXPECT_EQ(ReasonOf(status).reason, "UNKNOWN_FIELD") << status;
    status = Send(method, "\xff");
    EXPECT_EQ(ReasonOf(status).reason, "MALFORMED") << status;
  }
  EXPECT_EQ(contexts_.calls_, 0);
}

TEST_F(BoundedServiceTest, AMethodThatWasNotAddedIsNotThere) {
  EXPECT_EQ(Send("ListContexts", "").code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace retroinfer::common
