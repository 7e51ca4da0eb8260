#include "http_gateway/worker/worker_client.h"

#include <gtest/gtest.h>

#include <boost/asio/executor_work_guard.hpp>

#include "common/status/error_reason.h"
#include "tests/support/worker_harness.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

struct Recorder : public GenerateEvents {
  void OnEvent(v1::GenerateResponse&& event) override {
    events.push_back(std::move(event));
    if (stream != nullptr && reads) stream->ReadNext();
  }
  void OnEnd(const absl::Status& end) override {
    status = end;
    ended = true;
  }
  GenerateStream* stream = nullptr;
  bool reads = true;
  bool ended = false;
  absl::Status status;
  std::vector<v1::GenerateResponse> events;
};

class WorkerClientTest : public ::testing::Test {
 protected:
  WorkerClientTest() : work_(boost::asio::make_work_guard(io_)) {
    auto client = WorkerClient::Create({.address = worker_.address()}, io_);
    client_ = *std::move(client);
  }
  ~WorkerClientTest() override {
    worker_.engine().Hold(false);
    client_.reset();
  }
  static v1::GenerateRequest Request(int max_tokens) {
    v1::GenerateRequest request;
    request.set_text("a");
    request.mutable_sampling()->set_max_tokens(max_tokens);
    return request;
  }
  // Runs callbacks until `reached`, at most a minute.
  template <typename Condition>
  bool RunUntil(Condition reached) {
    const absl::Time end = absl::Now() + absl::Minutes(1);
    while (!reached() && absl::Now() < end) io_.run_one_for(std::chrono::milliseconds(20));
    return reached();
  }

  WorkerHarness worker_;
  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::unique_ptr<WorkerClient> client_;
};

TEST_F(WorkerClientTest, StreamsToTheEnd) {
  Recorder recorder;
  recorder.stream = client_->Generate(Request(3), "", "", &recorder);
  ASSERT_TRUE(RunUntil([&] { return recorder.ended; }));
  EXPECT_TRUE(recorder.status.ok()) << recorder.status;
  EXPECT_TRUE(recorder.events.back().has_finished());
  EXPECT_EQ(recorder.events.back().finished().completion_tokens(), 3);
}

TEST_F(WorkerClientTest, ReadsNoFurtherThanItIsAsked) {
  Recorder recorder;
  recorder.reads = false;
  recorder.stream = client_->Generate(Request(3), "", "", &recorder);
  ASSERT_TRUE(RunUntil([&] { return recorder.events.size() == 1; }));
  for (int i = 0; i < 5; ++i) io_.run_one_for(std::chrono::milliseconds(5));
  EXPECT_EQ(recorder.events.size(), 1U);
  recorder.reads = true;
  recorder.stream->ReadNext();
  EXPECT_TRUE(RunUntil([&] { return recorder.ended; }));
}

TEST_F(WorkerClientTest, PassesErrorsWithTheirReason) {
  Recorder recorder;
  v1::GenerateRequest request;
  recorder.stream = client_->Generate(request, "", "", &recorder);
  ASSERT_TRUE(RunUntil([&] { return recorder.ended; }));
  EXPECT_EQ(common::ReasonOf(recorder.status).reason, "EMPTY_PROMPT");
}

TEST_F(WorkerClientTest, CancelEndsTheRequestAndNothingMoreIsHeard) {
  worker_.engine().Hold(true);
  for (const bool wait : {true, false}) {
    auto recorder = std::make_unique<Recorder>();
    recorder->stream = client_->Generate(Request(1000), "book", "", recorder.get());
    if (wait) {
      ASSERT_TRUE(RunUntil([&] { return worker_.engine().num_live() == 1; }));
    }
    recorder->stream->Cancel();
    recorder.reset();
    EXPECT_TRUE(RunUntil([&] { return worker_.engine().num_live() == 0; }));
  }
}

TEST_F(WorkerClientTest, CallsOneMethod) {
  bool done = false;
  client_->Call<v1::TokenizeRequest, v1::TokenizeResponse>(
      "/retroinfer.generation.v1.GenerationService/Tokenize",
      [] {
        v1::TokenizeRequest request;
        request.set_text("ab");
        return request;
      }(),
      absl::Seconds(60),
      [&](const absl::Status& status, const v1::TokenizeResponse& response) {
        EXPECT_TRUE(status.ok()) << status;
        EXPECT_EQ(response.token_ids_size(), 2);
        done = true;
      });
  EXPECT_TRUE(RunUntil([&] { return done; }));
}

TEST_F(WorkerClientTest, ItsEndGivesUpWhatRuns) {
  worker_.engine().Hold(true);
  Recorder recorder;
  recorder.stream = client_->Generate(Request(1000), "", "", &recorder);
  ASSERT_TRUE(RunUntil([&] { return worker_.engine().num_live() == 1; }));
  client_.reset();
  EXPECT_FALSE(recorder.ended);
  EXPECT_TRUE(worker_.engine().AwaitLive(0));
}

}  // namespace
}  // namespace retroinfer::gateway
