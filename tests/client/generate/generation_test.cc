#include "client/generate/generation.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "tests/support/worker_harness.h"

namespace retroinfer::client {
namespace {

namespace v1 = generation::v1;

v1::Finished MakeFinished() {
  v1::Finished finished;
  finished.set_reason(v1::FINISH_REASON_STOP);
  finished.set_prompt_tokens(16384);
  finished.set_completion_tokens(11);
  finished.set_kv_read_ratio(0.042);
  finished.mutable_timings()->mutable_time_to_first_token()->set_seconds(2);
  finished.mutable_timings()->mutable_time_to_first_token()->set_nanos(510'000'000);
  finished.mutable_timings()->mutable_decode()->set_nanos(200'000'000);
  return finished;
}

TEST(DescribeFinish, IsOneLine) {
  EXPECT_EQ(DescribeFinish(MakeFinished()),
            "stop, 16,384 prompt tokens, 11 generated, first token after 2.51 s, 20.0 ms/token, "
            "read 4.2% of the KV cache");
  v1::Finished nothing;
  nothing.set_reason(v1::FINISH_REASON_DEADLINE);
  nothing.set_prompt_tokens(5);
  nothing.set_cached_tokens(4);
  EXPECT_EQ(DescribeFinish(nothing), "deadline, 5 prompt tokens (4 cached), 0 generated");
}

TEST(FinishJson, TakesTextThatIsNoUtf8) {
  GenerationOutcome outcome;
  outcome.continuations.push_back({"a\xFF", {1, 2}, MakeFinished()});
  v1::GenerateRequest request;
  const auto json = nlohmann::json::parse(FinishJson(request, outcome));
  EXPECT_EQ(json["text"], "a\xEF\xBF\xBD");
  EXPECT_FALSE(json.contains("policy"));
  EXPECT_DOUBLE_EQ(json["ms_per_token"], 20.0);
}

TEST(RunGeneration, CollectsWhatComes) {
  WorkerHarness worker;
  const auto connection = Connection::Open({.address = worker.address()});
  ASSERT_TRUE(connection.ok());
  v1::GenerateRequest request;
  request.set_text("a");
  request.set_return_progress(true);
  request.mutable_sampling()->set_max_tokens(3);
  int progress = 0;
  std::string streamed;
  const GenerationOutcome outcome =
      RunGeneration(**connection, request,
                    {.on_progress = [&](const v1::PrefillProgress&) { ++progress; },
                     .on_text =
                         [&](int, const std::string& text) {
                           streamed += text;
                           return true;
                         }},
                    nullptr);
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(progress, 1);
  EXPECT_EQ(streamed, "98 99 100 ");
  EXPECT_EQ(outcome.continuations.at(0).text, streamed);
  EXPECT_EQ(outcome.continuations.at(0).token_ids.size(), 3u);
  EXPECT_EQ(FinishReasonText(outcome.continuations.at(0).finished.reason()), "length");
}

TEST(RunGeneration, AsksAServerAgainThatIsNotReady) {
  WorkerHarness::Settings settings;
  settings.serve = false;
  WorkerHarness worker(settings);
  v1::GenerateRequest request;
  request.set_text("a");
  request.mutable_sampling()->set_max_tokens(2);
  const auto once = Connection::Open({.address = worker.address(), .retries = 0});
  ASSERT_TRUE(once.ok());
  EXPECT_EQ(RunGeneration(**once, request, {}, nullptr).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
  const auto patient = Connection::Open({.address = worker.address(), .retries = 10});
  ASSERT_TRUE(patient.ok());
  std::thread loader([&] {
    absl::SleepFor(absl::Milliseconds(300));
    worker.Serve();
  });
  const GenerationOutcome outcome = RunGeneration(**patient, request, {}, nullptr);
  loader.join();
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.continuations.at(0).text, "98 99 ");
}

// Fails the first call, with what `before` wrote; answers "x" to others.
class FailsOnce : public v1::GenerationService::Service {
 public:
  FailsOnce(grpc::Status failure, std::vector<v1::GenerateResponse> before)
      : failure_(std::move(failure)), before_(std::move(before)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  grpc::Status Generate(grpc::ServerContext*, const v1::GenerateRequest*,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    if (++calls_ == 1) {
      for (const v1::GenerateResponse& response : before_) writer->Write(response);
      return failure_;
    }
    v1::GenerateResponse response;
    response.mutable_output()->set_text("x");
    writer->Write(response);
    return grpc::Status::OK;
  }
  GenerationOutcome Ask() {
    const auto connection = Connection::Open({.address = absl::StrCat("127.0.0.1:", port_)});
    v1::GenerateRequest request;
    request.set_text("a");
    return RunGeneration(**connection, request, {}, nullptr);
  }
  int calls() const { return calls_; }

 private:
  const grpc::Status failure_;
  const std::vector<v1::GenerateResponse> before_;
  std::atomic<int> calls_ = 0;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

v1::GenerateResponse Progress() {
  v1::GenerateResponse response;
  response.mutable_progress()->set_total_tokens(5);
  return response;
}

TEST(RunGeneration, AsksAgainWhenANodeIsLostBeforeItAnswers) {
  for (const auto code : {grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::UNKNOWN}) {
    FailsOnce server(grpc::Status(code, "stream removed"), {Progress()});
    const GenerationOutcome outcome = server.Ask();
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    EXPECT_EQ(outcome.continuations.at(0).text, "x");
    EXPECT_EQ(server.calls(), 2);
  }
}

TEST(RunGeneration, AnswersThatBeganAndServersThatDeclineStay) {
  v1::GenerateResponse output;
  output.mutable_output()->set_text("begun");
  FailsOnce began(grpc::Status(grpc::StatusCode::UNAVAILABLE, "stream removed"), {output});
  const GenerationOutcome outcome = began.Ask();
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(outcome.continuations.at(0).text, "begun");
  EXPECT_EQ(began.calls(), 1);
  FailsOnce declined(
      common::ToGrpcStatus(common::WithReason(absl::InternalError("a bug"), "INTERNAL")), {});
  EXPECT_EQ(declined.Ask().status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(declined.calls(), 1);
}

TEST(RunGeneration, NobodyIsNotAskedAgain) {
  const auto connection = Connection::Open({.address = "unix:/no/such/socket", .retries = 10});
  ASSERT_TRUE(connection.ok());
  v1::GenerateRequest request;
  request.set_text("a");
  const absl::Time begin = absl::Now();
  EXPECT_EQ(RunGeneration(**connection, request, {}, nullptr).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_LT(absl::Now() - begin, absl::Minutes(5));  // ten retries take 17 minutes
}

}  // namespace
}  // namespace retroinfer::client
