#include "gpu_worker/server/worker_server.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/liveness.h"
#include "common/status/error_reason.h"
#include "tests/support/worker_harness.h"

namespace retroinfer {
namespace {

namespace v1 = generation::v1;
using ::testing::HasSubstr;

// Calls a unary method with raw bytes.
grpc::Status CallRaw(const WorkerHarness& worker, const std::string& method,
                     const std::string& request, std::string* response,
                     const std::string& key = "") {
  grpc::GenericStub stub(worker.Channel());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  if (!key.empty()) context.AddMetadata("authorization", "Bearer " + key);
  grpc::CompletionQueue queue;
  const grpc::Slice slice(request);
  auto call = stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(&slice, 1), &queue);
  call->StartCall();
  grpc::ByteBuffer bytes;
  grpc::Status status;
  call->Finish(&bytes, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  grpc::Slice whole;
  if (status.ok() && bytes.DumpToSingleSlice(&whole).ok()) {
    response->assign(reinterpret_cast<const char*>(whole.begin()), whole.size());
  }
  return status;
}

// "SERVING", "NOT_SERVING", or the error of grpc.health.v1.
std::string Health(const WorkerHarness& worker, const std::string& service) {
  std::string request;
  if (!service.empty()) request = std::string("\x0A") + static_cast<char>(service.size()) + service;
  std::string response;
  const grpc::Status status = CallRaw(worker, "/grpc.health.v1.Health/Check", request, &response);
  if (!status.ok()) return status.error_message();
  if (response == "\x08\x01") return "SERVING";
  return response == "\x08\x02" ? "NOT_SERVING" : "?";
}

bool AwaitHealth(const WorkerHarness& worker, const std::string& wanted) {
  for (int i = 0; i < 1000; ++i) {
    if (Health(worker, "") == wanted) return true;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return false;
}

constexpr char kService[] = "retroinfer.generation.v1.GenerationService";

TEST(WorkerServer, HealthFollowsTheEngine) {
  WorkerHarness::Settings settings;
  settings.serve = false;
  settings.server.keys = *common::KeyHolder::Open("needed by every RPC but health", "");
  WorkerHarness worker(settings);
  EXPECT_EQ(Health(worker, ""), "NOT_SERVING");
  EXPECT_EQ(Health(worker, common::kLivenessService), "SERVING");
  EXPECT_EQ(Health(worker, kService), "NOT_SERVING");
  worker.engine().SetReady(false);
  worker.Serve();
  EXPECT_EQ(Health(worker, ""), "NOT_SERVING");
  EXPECT_EQ(Health(worker, common::kLivenessService), "SERVING");
  worker.engine().SetReady(true);
  EXPECT_TRUE(AwaitHealth(worker, "SERVING"));
  EXPECT_EQ(Health(worker, kService), "SERVING");
  worker.engine().SetReady(false);
  EXPECT_TRUE(AwaitHealth(worker, "NOT_SERVING"));
  EXPECT_EQ(Health(worker, common::kLivenessService), "SERVING");
}

TEST(WorkerServer, ReflectionNeedsTheKeyToo) {
  const auto reflect = [](const WorkerHarness& worker, const std::string& key = "") {
    std::string response;
    return CallRaw(worker, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                   std::string("\x3A\x00", 2), &response, key)
        .error_code();
  };
  WorkerHarness open;
  EXPECT_NE(reflect(open), grpc::StatusCode::UNIMPLEMENTED);
  WorkerHarness::Settings settings;
  settings.server.keys = *common::KeyHolder::Open("k", "");
  WorkerHarness closed(settings);
  EXPECT_EQ(reflect(closed), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(reflect(closed, "k"), reflect(open));
}

TEST(WorkerServer, DrainLetsLiveRequestsFinishAndRefusesNewOnes) {
  WorkerHarness worker;
  worker.engine().Hold(true);
  v1::GenerateRequest request;
  request.set_text("a");
  grpc::Status first_status;
  std::thread first([&] {
    grpc::ClientContext context;
    auto reader = worker.Stub()->Generate(&context, request);
    v1::GenerateResponse event;
    while (reader->Read(&event)) {
    }
    first_status = reader->Finish();
  });
  ASSERT_TRUE(worker.engine().AwaitLive(1));
  const auto stub = worker.Stub();
  std::thread drain([&] { worker.server().Drain(absl::Seconds(20)); });
  ASSERT_TRUE(AwaitHealth(worker, "NOT_SERVING"));
  grpc::Status refused;
  do {  // until the flag is seen
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
    auto reader = stub->Generate(&context, request);
    v1::GenerateResponse event;
    while (reader->Read(&event)) {
    }
    refused = reader->Finish();
  } while (refused.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(common::ReasonOf(common::FromGrpcStatus(refused)).reason, "DRAINING");
  worker.engine().Hold(false);
  first.join();
  drain.join();
  EXPECT_TRUE(first_status.ok());
}

// Asks for `max_tokens` and drains the server once the first token has come, or before any.
grpc::Status DrainDuringARequest(bool after_first_token, v1::GenerateResponse* last) {
  WorkerHarness::Settings settings;
  settings.engine.step_time = absl::Milliseconds(10);
  WorkerHarness worker(settings);
  worker.engine().Hold(!after_first_token);
  grpc::Status status;
  absl::Notification begun;
  std::thread client([&] {
    v1::GenerateRequest request;
    request.set_text("a");
    request.mutable_sampling()->set_max_tokens(4000);
    grpc::ClientContext context;
    auto reader = worker.Stub()->Generate(&context, request);
    v1::GenerateResponse event;
    while (reader->Read(&event)) {
      *last = event;
      if (event.has_output() && !begun.HasBeenNotified()) begun.Notify();
    }
    status = reader->Finish();
  });
  if (after_first_token) {
    begun.WaitForNotification();
  } else {
    EXPECT_TRUE(worker.engine().AwaitLive(1));
  }
  const absl::Time begin = absl::Now();
  worker.server().Drain(absl::Milliseconds(100));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
  client.join();
  return status;
}

TEST(WorkerServer, DrainCancelsWhatOutlastsTheGrace) {
  v1::GenerateResponse last;
  EXPECT_TRUE(DrainDuringARequest(true, &last).ok());
  EXPECT_EQ(last.finished().reason(), v1::FINISH_REASON_CANCELLED);
}

TEST(WorkerServer, ARequestThatHasNoTokenWhenTheGraceEndsIsUnavailable) {
  v1::GenerateResponse last;
  const grpc::Status status = DrainDuringARequest(false, &last);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(common::ReasonOf(common::FromGrpcStatus(status)).reason, "DRAINING");
  EXPECT_FALSE(last.has_finished());
}

TEST(WorkerServer, ADrainThatIsCutEndsWhatIsLive) {
  WorkerHarness worker;
  worker.engine().Hold(true);
  grpc::Status status;
  std::thread client([&] {
    v1::GenerateRequest request;
    request.set_text("a");
    grpc::ClientContext context;
    auto reader = worker.Stub()->Generate(&context, request);
    v1::GenerateResponse event;
    while (reader->Read(&event)) {
    }
    status = reader->Finish();
  });
  ASSERT_TRUE(worker.engine().AwaitLive(1));
  std::thread drain([&] { worker.server().Drain(absl::InfiniteDuration()); });
  ASSERT_TRUE(AwaitHealth(worker, "NOT_SERVING"));
  worker.server().CutDrain();
  client.join();
  drain.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(common::ReasonOf(common::FromGrpcStatus(status)).reason, "DRAINING");
}

TEST(WorkerServer, DrainsWithoutAModel) {
  WorkerHarness::Settings settings;
  settings.serve = false;
  WorkerHarness worker(settings);
  worker.server().Drain(absl::Seconds(1));
}

TEST(WorkerServer, AnAddressInUseIsRefused) {
  WorkerHarness worker;
  ServerOptions options;
  options.addresses = {worker.address()};
  const auto second = WorkerServer::Start(options, worker.metrics());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another server"));

  options.addresses = {"127.0.0.1:0"};
  const auto tcp = WorkerServer::Start(options, worker.metrics());
  ASSERT_TRUE(tcp.ok());
  EXPECT_THAT((*tcp)->addresses().front(), ::testing::Not(HasSubstr(":0")));
  options.addresses = {(*tcp)->addresses().front()};
  EXPECT_EQ(WorkerServer::Start(options, worker.metrics()).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(WorkerServer, BadAddressesAreRefused) {
  common::Metrics metrics("gpu_worker", "1", "r", "cpu");
  ServerOptions options;
  for (const char* bad : {"unix:", "unix:relative", "no such host:1", "127.0.0.1:99999"}) {
    options.addresses = {bad};
    EXPECT_FALSE(WorkerServer::Start(options, metrics).ok()) << bad;
  }
  options.addresses.clear();
  EXPECT_FALSE(WorkerServer::Start(options, metrics).ok());
}

TEST(WorkerServer, MetricsHaveTheModelAndTheRequests) {
  WorkerHarness worker;
  v1::GenerateRequest request;
  request.set_text("a");
  request.set_request_id("private");
  grpc::ClientContext context;
  auto reader = worker.Stub()->Generate(&context, request);
  v1::GenerateResponse event;
  while (reader->Read(&event)) {
  }
  ASSERT_TRUE(reader->Finish().ok());
  for (int i = 0; i < 1000; ++i) {  // the record is written beside the stream
    if (worker.metrics().Render().find("requests_total{finish_reason=\"length\"} 1") !=
        std::string::npos) {
      break;
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  const std::string text = worker.metrics().Render();
  EXPECT_THAT(text, HasSubstr("retroinfer_requests_total{finish_reason=\"length\"} 1"));
  EXPECT_THAT(text, HasSubstr("model=\"fake-model\""));
  EXPECT_THAT(text, HasSubstr("max_model_len=\"4096\""));
  EXPECT_THAT(text, HasSubstr("retroinfer_generation_tokens_total 16"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("private")));
}

}  // namespace
}  // namespace retroinfer
