#include "http_gateway/worker/worker_client.h"

#include <grpcpp/generic/async_generic_service.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <functional>

#include "common/rpc/context_affinity.h"
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

// More at once than are delivered in one turn, so that others of the loop have turns between them.
TEST_F(WorkerClientTest, ManyStreamsTakeTurnsWithOthers) {
  constexpr int kStreams = 60, kTokens = 40;
  worker_.engine().Hold(true);
  std::vector<Recorder> recorders(kStreams);
  for (Recorder& recorder : recorders) {
    recorder.stream = client_->Generate(Request(kTokens), "", "", &recorder);
  }
  ASSERT_TRUE(RunUntil([&] { return worker_.engine().num_live() == kStreams; }));
  worker_.engine().Hold(false);
  const auto ended = [&] {
    return std::all_of(recorders.begin(), recorders.end(), [](const auto& r) { return r.ended; });
  };
  int others_turns = 0;
  std::function<void()> other = [&] {
    ++others_turns;
    if (!ended()) boost::asio::post(io_, other);
  };
  boost::asio::post(io_, other);
  ASSERT_TRUE(RunUntil(ended));
  // Each stream has three events at least, even if all tokens came together: three turns of 64.
  EXPECT_GE(others_turns, 2);
  for (const Recorder& recorder : recorders) {
    EXPECT_TRUE(recorder.status.ok()) << recorder.status;
    int64_t tokens = 0;
    for (const v1::GenerateResponse& event : recorder.events) {
      if (!event.has_output()) continue;
      tokens += event.output().token_ids_size();
      EXPECT_EQ(event.output().completion_tokens(), tokens);  // in order, none twice
    }
    EXPECT_EQ(tokens, kTokens);
  }
}

// What it has posted does not run then: the loop has ended before.
TEST_F(WorkerClientTest, ItsEndComesBetweenTwoEvents) {
  for (size_t i = 0; i < 20; ++i) {
    boost::asio::io_context io;
    const auto work = boost::asio::make_work_guard(io);
    auto client = WorkerClient::Create({.address = worker_.address()}, io);
    Recorder recorder;
    recorder.stream = (*client)->Generate(Request(50), "", "", &recorder);
    while (recorder.events.size() < i % 5 && !recorder.ended) {
      ASSERT_GT(io.run_one_for(std::chrono::minutes(1)), 0U);
    }
  }
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

// What a server sees beside the request of a call that `start` makes.
std::string ContextSeen(const std::string& address, boost::asio::io_context& io,
                        const std::function<void(WorkerClient&)>& start) {
  grpc::AsyncGenericService service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterAsyncGenericService(&service);
  const auto queue = builder.AddCompletionQueue();
  const auto server = builder.BuildAndStart();
  grpc::GenericServerContext context;
  grpc::GenericServerAsyncReaderWriter stream(&context);
  service.RequestCall(&context, &stream, queue.get(), queue.get(), nullptr);
  std::string seen;
  {
    const auto client = WorkerClient::Create({.address = address}, io);
    start(**client);
    void* tag = nullptr;
    bool ok = false;
    if (queue->Next(&tag, &ok) && ok) {
      const auto found = context.client_metadata().find(common::kContextAffinityKey);
      if (found != context.client_metadata().end()) {
        seen.assign(found->second.data(), found->second.size());
      }
    }
    server->Shutdown(std::chrono::system_clock::now());
  }
  queue->Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) {
  }
  return seen;
}

TEST_F(WorkerClientTest, ACallNamesWhatItIsAboutForBalancers) {
  const std::string address = absl::StrCat("unix:", (worker_.folder() / "seen.sock").string());
  const v1::GenerateRequest request = Request(1);
  v1::ScoreRequest score;
  score.set_text("a");
  Recorder recorder;
  struct : public ScoreEvents {
    void OnEvent(v1::ScoreResponse&&) override {}
    void OnEnd(const absl::Status&) override {}
  } ignore;
  EXPECT_EQ(
      ContextSeen(address, io_, [&](auto& client) { client.Generate(request, "", "", &recorder); }),
      common::ContextAffinity("a"));
  EXPECT_EQ(ContextSeen(address, io_,
                        [&](auto& client) { client.Generate(request, "book", "", &recorder); }),
            "book");
  EXPECT_EQ(ContextSeen(address, io_, [&](auto& client) { client.Score(score, "", "", &ignore); }),
            common::ContextAffinity("a"));
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
