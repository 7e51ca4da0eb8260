// The handlers, through gRPC on a unix socket, over a fake engine.
#include "gpu_worker/server/generation_service.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "tests/support/worker_harness.h"

namespace retroinfer {
namespace {

namespace v1 = generation::v1;
using ::testing::HasSubstr;

struct Answer {
  grpc::Status status;
  std::string text;
  std::vector<v1::GenerateResponse> events;
  const v1::Finished& finished() const { return events.back().finished(); }
  std::string reason() const { return common::ReasonOf(common::FromGrpcStatus(status)).reason; }
  std::optional<absl::Duration> retry_delay() const {
    return common::RetryDelayOf(common::FromGrpcStatus(status));
  }
};

Answer Generate(v1::GenerationService::Stub& stub, const v1::GenerateRequest& request,
                grpc::ClientContext* context = nullptr) {
  grpc::ClientContext own;
  auto reader = stub.Generate(context != nullptr ? context : &own, request);
  Answer answer;
  v1::GenerateResponse event;
  while (reader->Read(&event)) {
    answer.text += event.output().text();
    answer.events.push_back(event);
  }
  answer.status = reader->Finish();
  return answer;
}

v1::GenerateRequest TextRequest(const std::string& text, int max_tokens = 5) {
  v1::GenerateRequest request;
  request.set_text(text);
  request.mutable_sampling()->set_max_tokens(max_tokens);
  return request;
}

// Sends `bytes` as a GenerateRequest.
grpc::Status GenerateRaw(const WorkerHarness& worker, const std::string& bytes) {
  grpc::GenericStub stub(worker.Channel());
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  auto call = stub.PrepareUnaryCall(
      &context, "/retroinfer.generation.v1.GenerationService/Generate", request, &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status;
}

TEST(GenerationService, StreamsAnAnswer) {
  WorkerHarness worker;
  v1::GenerateRequest request = TextRequest("a");
  request.set_request_id("my-request");
  request.set_return_progress(true);
  request.mutable_sampling()->set_seed(17);
  const Answer answer = Generate(*worker.Stub(), request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.text, "98 99 100 101 102 ");
  ASSERT_TRUE(answer.events.front().has_progress());
  EXPECT_EQ(answer.events.front().progress().total_tokens(), 1);
  EXPECT_EQ(answer.events.front().request_id(), "my-request");
  EXPECT_EQ(answer.finished().reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(answer.finished().completion_tokens(), 5);
  EXPECT_EQ(answer.finished().seed(), 17u);
  EXPECT_DOUBLE_EQ(answer.finished().kv_read_ratio(), 0.25);
  EXPECT_EQ(answer.finished().timings().time_to_first_token().nanos(), 2'000'000);
}

TEST(GenerationService, StreamsLogprobsAndSeveralContinuations) {
  WorkerHarness worker;
  v1::GenerateRequest request = TextRequest("a", 3);
  request.mutable_sampling()->set_n(3);
  request.mutable_sampling()->set_logprobs(2);
  const Answer answer = Generate(*worker.Stub(), request);
  ASSERT_TRUE(answer.status.ok());
  std::vector<int> tokens(3), logprobs(3), finished(3);
  for (const v1::GenerateResponse& event : answer.events) {
    tokens.at(event.index()) += event.output().token_ids_size();
    logprobs.at(event.index()) += event.output().logprobs_size();
    finished.at(event.index()) += event.has_finished();
  }
  EXPECT_THAT(tokens, ::testing::Each(3));
  EXPECT_THAT(logprobs, ::testing::Each(3));
  EXPECT_THAT(finished, ::testing::Each(1));
}

TEST(GenerationService, BadRequestsGetInvalidArgumentWithAReason) {
  WorkerHarness worker;
  const auto stub = worker.Stub();
  const auto expect = [&](const v1::GenerateRequest& request, const std::string& reason) {
    const Answer answer = Generate(*stub, request);
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << reason;
    EXPECT_EQ(answer.reason(), reason) << answer.status.error_message();
    EXPECT_TRUE(answer.events.empty());
  };
  expect(TextRequest(""), "EMPTY_PROMPT");
  expect(TextRequest("a", 0), "INVALID_SAMPLING");
  v1::GenerateRequest request = TextRequest("a");
  request.mutable_sampling()->set_temperature(std::numeric_limits<float>::quiet_NaN());
  expect(request, "INVALID_SAMPLING");
  request.mutable_sampling()->set_temperature(-1);
  expect(request, "INVALID_SAMPLING");
  request.mutable_sampling()->clear_temperature();
  request.mutable_sampling()->set_n(17);
  expect(request, "INVALID_SAMPLING");
  request.mutable_sampling()->clear_n();
  const std::string stop = "x";
  for (int i = 0; i < 17; ++i) request.mutable_sampling()->add_stop(stop);
  expect(request, "INVALID_SAMPLING");
  request = TextRequest("a");
  request.mutable_token_ids()->add_ids(300);
  expect(request, "TOKEN_OUT_OF_RANGE");
  request = TextRequest("a");
  request.GetReflection()->MutableUnknownFields(&request)->AddVarint(12345, 1);
  expect(request, "UNKNOWN_FIELD");
  expect(TextRequest(std::string(4000, 'x'), 97), "CONTEXT_TOO_LONG");
  EXPECT_EQ(worker.engine().submitted(), 0);
}

TEST(GenerationService, InvalidUtf8AndGarbageGetInvalidArgument) {
  WorkerHarness worker;
  grpc::Status status = GenerateRaw(worker, "\x12\x02\xC3\x28");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(common::ReasonOf(common::FromGrpcStatus(status)).reason, "INVALID_UTF8");
  status = GenerateRaw(worker, "\x12\x7F\x41");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(common::ReasonOf(common::FromGrpcStatus(status)).reason, "MALFORMED");
  EXPECT_TRUE(Generate(*worker.Stub(), TextRequest("a")).status.ok());
}

TEST(GenerationService, TooLongAContextComesWithTheNumbers) {
  WorkerHarness worker;
  const Answer answer = Generate(*worker.Stub(), TextRequest(std::string(4000, 'x'), 97));
  const auto metadata = common::ReasonOf(common::FromGrpcStatus(answer.status)).metadata;
  EXPECT_EQ(metadata.at("prompt_tokens"), "4000");
  EXPECT_EQ(metadata.at("max_tokens"), "97");
  EXPECT_EQ(metadata.at("max_model_len"), "4096");
}

TEST(GenerationService, ARequestIdInUseIsRefused) {
  WorkerHarness worker;
  worker.engine().Hold(true);
  v1::GenerateRequest request = TextRequest("a");
  request.set_request_id("same");
  std::thread first([&] { Generate(*worker.Stub(), request); });
  ASSERT_TRUE(worker.engine().AwaitLive(1));
  const Answer second = Generate(*worker.Stub(), request);
  EXPECT_EQ(second.status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(second.reason(), "REQUEST_ID_IN_USE");
  EXPECT_FALSE(second.retry_delay().has_value());
  request.mutable_sampling()->set_n(2);
  EXPECT_EQ(Generate(*worker.Stub(), request).reason(), "REQUEST_ID_IN_USE");
  EXPECT_EQ(worker.engine().num_live(), 1);
  worker.engine().Hold(false);
  first.join();
}

TEST(GenerationService, AFullQueueIsWorthARetryAndIsCounted) {
  WorkerHarness::Settings settings;
  settings.engine.limits.max_live_requests = 1;
  WorkerHarness worker(settings);
  EXPECT_THAT(worker.metrics().Render(), HasSubstr("refused_total{reason=\"QUEUE_FULL\"} 0"));
  worker.engine().Hold(true);
  std::thread first([&] { Generate(*worker.Stub(), TextRequest("a")); });
  ASSERT_TRUE(worker.engine().AwaitLive(1));
  const Answer refused = Generate(*worker.Stub(), TextRequest("a"));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(refused.reason(), "QUEUE_FULL");
  EXPECT_GT(refused.retry_delay().value_or(absl::ZeroDuration()), absl::ZeroDuration());
  EXPECT_THAT(worker.metrics().Render(), HasSubstr("refused_total{reason=\"QUEUE_FULL\"} 1"));
  worker.engine().Hold(false);
  first.join();
}

TEST(GenerationService, CancellingTheCallEndsTheRequest) {
  WorkerHarness worker;
  worker.engine().Hold(true);
  grpc::ClientContext context;
  std::thread client([&] {
    const Answer answer = Generate(*worker.Stub(), TextRequest("a", 1000), &context);
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::CANCELLED);
  });
  ASSERT_TRUE(worker.engine().AwaitLive(1));
  context.TryCancel();
  EXPECT_TRUE(worker.engine().AwaitLive(0));
  client.join();
}

TEST(GenerationService, TheCallsDeadlineReachesTheEngine) {
  WorkerHarness worker;
  worker.engine().Hold(true);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  const Answer answer = Generate(*worker.Stub(), TextRequest("a"), &context);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(worker.engine().AwaitLive(0));
  EXPECT_LT(worker.engine().last_request().deadline, absl::Now() + absl::Seconds(1));
  // It does not count as a client that went away.
  const absl::Time give_up = absl::Now() + absl::Seconds(30);
  std::string text;
  do {
    text = worker.metrics().Render();
  } while (text.find("requests_total{finish_reason=\"deadline\"} 1") == std::string::npos &&
           absl::Now() < give_up);
  EXPECT_THAT(text, HasSubstr("requests_total{finish_reason=\"deadline\"} 1"));
  EXPECT_THAT(text, HasSubstr("requests_total{finish_reason=\"cancelled\"} 0"));
}

TEST(GenerationService, TheTimeoutOfARequestIsAFinishReason) {
  WorkerHarness worker;
  worker.engine().Hold(true);
  v1::GenerateRequest request = TextRequest("a");
  request.mutable_timeout()->set_nanos(50'000'000);
  const Answer answer = Generate(*worker.Stub(), request);
  ASSERT_TRUE(answer.status.ok());
  EXPECT_EQ(answer.finished().reason(), v1::FINISH_REASON_DEADLINE);
}

TEST(GenerationService, AbortEndsAllContinuationsWithOk) {
  WorkerHarness worker;
  worker.engine().Hold(true);
  v1::GenerateRequest request = TextRequest("a", 1000);
  request.set_request_id("r");
  request.mutable_sampling()->set_n(3);
  Answer answer;
  std::thread client([&] { answer = Generate(*worker.Stub(), request); });
  ASSERT_TRUE(worker.engine().AwaitLive(3));
  const auto stub = worker.Stub();
  v1::AbortRequest abort;
  v1::AbortResponse aborted;
  {
    grpc::ClientContext context;
    EXPECT_EQ(stub->Abort(&context, abort, &aborted).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
  abort.set_request_id("r");
  {
    grpc::ClientContext context;
    ASSERT_TRUE(stub->Abort(&context, abort, &aborted).ok());
    EXPECT_TRUE(aborted.found());
  }
  client.join();
  EXPECT_TRUE(answer.status.ok());
  EXPECT_EQ(answer.finished().reason(), v1::FINISH_REASON_CANCELLED);
  grpc::ClientContext context;
  ASSERT_TRUE(stub->Abort(&context, abort, &aborted).ok());
  EXPECT_FALSE(aborted.found());
}

TEST(GenerationService, AnErrorOfTheEngineBecomesTheStatus) {
  WorkerHarness::Settings settings;
  settings.engine.fail_after = 2;
  settings.engine.failure = absl::DataLossError("bad page");
  WorkerHarness worker(settings);
  const Answer answer = Generate(*worker.Stub(), TextRequest("a"));
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(answer.reason(), "DATA_LOSS");
}

TEST(GenerationService, TokenizesAndDetokenizes) {
  WorkerHarness worker;
  const auto stub = worker.Stub();
  v1::TokenizeRequest tokenize;
  tokenize.set_text("hi");
  v1::TokenizeResponse tokens;
  grpc::ClientContext first;
  ASSERT_TRUE(stub->Tokenize(&first, tokenize, &tokens).ok());
  EXPECT_THAT(tokens.token_ids(), ::testing::ElementsAre('h', 'i'));
  EXPECT_EQ(tokens.max_model_len(), 4096);
  v1::DetokenizeRequest detokenize;
  *detokenize.mutable_token_ids() = tokens.token_ids();
  v1::DetokenizeResponse text;
  grpc::ClientContext second;
  ASSERT_TRUE(stub->Detokenize(&second, detokenize, &text).ok());
  EXPECT_EQ(text.text(), "hi");
}

TEST(GenerationService, AnswersThatAreNotReadHaveALimit) {
  WorkerHarness::Settings settings;
  settings.server.max_pending_bytes_total = 1000;
  WorkerHarness worker(settings);
  const auto stub = worker.Stub();
  const auto tokenize = [&](size_t bytes) {
    v1::TokenizeRequest request;
    request.set_text(std::string(bytes, 'x'));
    v1::TokenizeResponse response;
    grpc::ClientContext context;
    return common::FromGrpcStatus(stub->Tokenize(&context, request, &response));
  };
  EXPECT_EQ(common::ReasonOf(tokenize(2000)).reason, "SLOW_CLIENT");
  // Room is given back when an answer has gone out, which may be after it was read.
  const absl::Time end = absl::Now() + absl::Minutes(1);
  for (int i = 0; i < 10; ++i) {
    absl::Status status = tokenize(500);
    while (!status.ok() && absl::Now() < end) status = tokenize(500);
    EXPECT_EQ(status, absl::OkStatus());
  }
}

TEST(GenerationService, DescribesTheModelAndItsWork) {
  WorkerHarness worker;
  EngineStats stats;
  stats.page_hits = 42;
  worker.engine().SetStats(stats);
  v1::GetModelInfoResponse info;
  grpc::ClientContext context;
  ASSERT_TRUE(worker.Stub()->GetModelInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.model_name(), "fake-model");
  EXPECT_EQ(info.max_model_len(), 4096);
  EXPECT_EQ(info.kv_capacity_tokens_full(), 2048);
  EXPECT_EQ(info.default_max_tokens(), 16);
  EXPECT_EQ(info.default_attention().policy(), v1::ATTENTION_POLICY_WAVE);
  EXPECT_EQ(info.server_version(), "1.2.3");
  EXPECT_EQ(info.server_revision(), "abcdef");
  EXPECT_EQ(info.device_name(), "A Processor");
  EXPECT_EQ(info.load_format(), "auto");
  EXPECT_EQ(info.synthetic_context_tokens(), 0);
  EXPECT_EQ(info.stats().page_hits_total(), 42u);
  EXPECT_TRUE(info.stats().store_attached());
}

TEST(GenerationService, NothingIsServedBeforeTheModel) {
  WorkerHarness::Settings settings;
  settings.serve = false;
  WorkerHarness worker(settings);
  const Answer answer = Generate(*worker.Stub(), TextRequest("a"));
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(answer.reason(), "NOT_READY");
  EXPECT_TRUE(answer.retry_delay().has_value());
  worker.Serve();
  EXPECT_TRUE(Generate(*worker.Stub(), TextRequest("a")).status.ok());
}

TEST(GenerationService, EveryRpcNeedsTheApiKey) {
  WorkerHarness::Settings settings;
  settings.server.keys = *common::KeyHolder::Open("k", "");
  WorkerHarness worker(settings);
  const auto stub = worker.Stub();
  EXPECT_EQ(Generate(*stub, TextRequest("a")).status.error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  const auto expect_refused = [](const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  };
  v1::TokenizeResponse tokens;
  v1::DetokenizeResponse text;
  v1::GetModelInfoResponse info;
  v1::AbortResponse aborted;
  grpc::ClientContext c1, c2, c3, c4, with_key, wrong_key;
  expect_refused(stub->Tokenize(&c1, {}, &tokens));
  expect_refused(stub->Detokenize(&c2, {}, &text));
  expect_refused(stub->GetModelInfo(&c3, {}, &info));
  expect_refused(stub->Abort(&c4, {}, &aborted));
  wrong_key.AddMetadata("authorization", "Bearer K");
  expect_refused(stub->GetModelInfo(&wrong_key, {}, &info));
  with_key.AddMetadata("authorization", "Bearer k");
  EXPECT_TRUE(Generate(*stub, TextRequest("a"), &with_key).status.ok());
  EXPECT_EQ(worker.engine().submitted(), 1);
}

TEST(GenerationService, ManyClientsThatCancelAtRandomLeaveNothingBehind) {
  WorkerHarness::Settings settings;
  settings.engine.step_time = absl::Microseconds(200);
  WorkerHarness worker(settings);
  const unsigned seed = 7;
  SCOPED_TRACE(seed);
  std::vector<std::thread> clients;
  for (unsigned client = 0; client < 8; ++client) {
    clients.emplace_back([&worker, client] {
      std::mt19937 random(seed + client);
      const auto stub = worker.Stub();
      for (int i = 0; i < 25; ++i) {
        grpc::ClientContext context;
        auto reader = stub->Generate(&context, TextRequest("a", 200));
        v1::GenerateResponse event;
        for (unsigned n = random() % 20; n > 0 && reader->Read(&event); --n) {
        }
        context.TryCancel();
        while (reader->Read(&event)) {
        }
        reader->Finish();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(worker.engine().AwaitLive(0));
  EXPECT_TRUE(Generate(*worker.Stub(), TextRequest("a")).status.ok());
}

struct Scores {
  grpc::Status status;
  std::vector<v1::ScoredToken> prompt;
  std::map<int, std::vector<v1::ScoredToken>> continuations;
  std::vector<v1::ScoreFinished> finished;
  std::string reason() const { return common::ReasonOf(common::FromGrpcStatus(status)).reason; }
};

Scores Score(v1::GenerationService::Stub& stub, const v1::ScoreRequest& request) {
  grpc::ClientContext context;
  const auto reader = stub.Score(&context, request);
  Scores scores;
  v1::ScoreResponse event;
  while (reader->Read(&event)) {
    const bool is_prompt = event.has_prompt();
    if (event.has_finished()) scores.finished.push_back(event.finished());
    if (!is_prompt && !event.has_continuation()) continue;
    const v1::ScoredTokens& tokens = is_prompt ? event.prompt() : event.continuation();
    auto& to = is_prompt ? scores.prompt : scores.continuations[tokens.continuation()];
    EXPECT_EQ(tokens.first_token(), std::ssize(to));
    to.insert(to.end(), tokens.tokens().begin(), tokens.tokens().end());
  }
  scores.status = reader->Finish();
  return scores;
}

v1::ScoreRequest ScoreRequestOf(const std::vector<std::vector<int32_t>>& continuations) {
  v1::ScoreRequest request;
  request.set_text("abc");
  for (const auto& ids : continuations) {
    request.add_continuations()->mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
  }
  return request;
}

TEST(GenerationService, ScoresContinuationsOfOneSequenceAndOfSeveral) {
  WorkerHarness::Settings settings;
  settings.engine.tokens_together = 3;
  WorkerHarness worker(settings);
  v1::ScoreRequest request =
      ScoreRequestOf({{10, 11}, {20, 21, 22, 23}, {30}, {40, 41, 42, 43, 44}});
  request.set_prompt_logprobs(1);
  request.set_logprobs(2);
  const Scores scores = Score(*worker.Stub(), request);
  ASSERT_TRUE(scores.status.ok()) << scores.status.error_message();
  EXPECT_EQ(worker.engine().submitted(), 4);
  ASSERT_EQ(scores.continuations.size(), 4u);
  for (const auto& [index, tokens] : scores.continuations) {
    ASSERT_EQ(std::ssize(tokens), request.continuations(index).token_ids().ids_size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int32_t id = request.continuations(index).token_ids().ids(static_cast<int>(i));
      EXPECT_EQ(tokens[i].token_id(), id);
      EXPECT_EQ(tokens[i].logprob(), -static_cast<float>(id));
      EXPECT_EQ(tokens[i].is_greedy(), id % 2 == 0);
      EXPECT_EQ(tokens[i].alternatives_size(), 2);
    }
  }
  ASSERT_EQ(scores.prompt.size(), 3u);
  EXPECT_EQ(scores.prompt[0].token_bytes(), "a");
  EXPECT_FALSE(scores.prompt[0].has_logprob());
  EXPECT_EQ(scores.prompt[2].token_id(), 'c');
  EXPECT_EQ(scores.prompt[2].alternatives_size(), 1);
  ASSERT_EQ(scores.finished.size(), 1u) << "one for all";
  EXPECT_EQ(scores.finished[0].reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(scores.finished[0].prompt_tokens(), 3);
  EXPECT_EQ(scores.finished[0].scored_tokens(), 12);
}

TEST(GenerationService, AScoreThatIsRefusedAbortedOrLateSaysSo) {
  WorkerHarness worker;
  const auto stub = worker.Stub();
  EXPECT_EQ(Score(*stub, ScoreRequestOf({})).reason(), "INVALID_REQUEST");
  EXPECT_EQ(Score(*stub, ScoreRequestOf({{300}})).reason(), "TOKEN_OUT_OF_RANGE");
  worker.engine().Hold(true);
  v1::ScoreRequest request = ScoreRequestOf({{1, 2}});
  request.set_request_id("held");
  Scores aborted;
  std::thread call([&] { aborted = Score(*stub, request); });
  ASSERT_TRUE(worker.engine().AwaitLive(1));
  EXPECT_EQ(Score(*stub, request).reason(), "REQUEST_ID_IN_USE");
  grpc::ClientContext context;
  v1::AbortRequest abort;
  abort.set_request_id("held");
  v1::AbortResponse found;
  EXPECT_TRUE(stub->Abort(&context, abort, &found).ok());
  EXPECT_TRUE(found.found());
  call.join();
  EXPECT_TRUE(aborted.status.ok());
  ASSERT_EQ(aborted.finished.size(), 1u);
  EXPECT_EQ(aborted.finished[0].reason(), v1::FINISH_REASON_CANCELLED);
  worker.engine().Hold(false);
  request.mutable_timeout()->set_nanos(1);
  const Scores late = Score(*stub, request);
  ASSERT_EQ(late.finished.size(), 1u) << late.status.error_message();
  EXPECT_EQ(late.finished[0].reason(), v1::FINISH_REASON_DEADLINE);
}

TEST(GenerationService, AScoreNeedsTheKey) {
  WorkerHarness::Settings settings;
  settings.server.keys = *common::KeyHolder::Open("secret", "");
  WorkerHarness worker(settings);
  const Scores scores = Score(*worker.Stub(), ScoreRequestOf({{1}}));
  EXPECT_EQ(scores.status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(scores.reason(), "API_KEY_REQUIRED");
}

}  // namespace
}  // namespace retroinfer
