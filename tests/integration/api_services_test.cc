// Fields of the generation API at the edges of their ranges, over gRPC against both services: what
// the proto promises is what a client gets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "tests/integration/generate_stream.h"
#include "tests/integration/service_processes.h"

namespace retroinfer::test_support {
namespace {

namespace v1 = generation::v1;
using ::testing::HasSubstr;

// One continuation as it came.
struct Continuation {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<v1::PositionLogprobs> logprobs;
  v1::OutputChunk last_chunk;
  v1::Finished finished;
};

struct Answer {
  grpc::Status status;
  std::map<int32_t, Continuation> continuations;
  std::string reason() const { return common::ReasonOf(common::FromGrpcStatus(status)).reason; }
  // Of the only continuation.
  const Continuation& one() const { return continuations.at(0); }
};

// The services are shared: every test adds to the same counters.
class ApiServicesTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ServiceOptions options;
    options.worker_arguments = {"--max-model-len", "6000", "--dense-below", "2048"};
    processes_ = new ServiceProcesses(options);
    processes_->StartBoth();
  }
  static void TearDownTestSuite() {
    delete processes_;
    processes_ = nullptr;
  }

  static v1::GenerateRequest Greedy(int32_t max_tokens = 8) {
    v1::GenerateRequest request;
    request.set_text("The quick brown fox jumps over the lazy dog. The quick brown");
    request.mutable_sampling()->set_temperature(0);
    request.mutable_sampling()->set_max_tokens(max_tokens);
    request.mutable_sampling()->set_ignore_eos(true);
    return request;
  }
  static Answer Run(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    const auto reader = processes_->worker_stub().Generate(&context, request);
    Answer answer;
    v1::GenerateResponse event;
    while (reader->Read(&event)) {
      Continuation& to = answer.continuations[event.index()];
      if (event.has_finished()) to.finished = event.finished();
      if (!event.has_output()) continue;
      to.text += event.output().text();
      to.tokens.insert(to.tokens.end(), event.output().token_ids().begin(),
                       event.output().token_ids().end());
      to.logprobs.insert(to.logprobs.end(), event.output().logprobs().begin(),
                         event.output().logprobs().end());
      to.last_chunk = event.output();
    }
    answer.status = reader->Finish();
    return answer;
  }
  static Answer RunWell(const v1::GenerateRequest& request) {
    Answer answer = Run(request);
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    if (answer.continuations.empty()) answer.continuations[0];
    return answer;
  }
  static double Metric(const std::string& series) {
    const std::string text = processes_->WorkerMetrics();
    const size_t at = text.find(absl::StrCat("\nretroinfer_", series, " "));
    return at == std::string::npos ? -1 : std::stod(text.substr(text.find(' ', at + 1)));
  }
  // The request is refused with INVALID_ARGUMENT, `reason` and a message with `message`; it is
  // counted, and nothing of it is queued.
  static void ExpectRefused(const v1::GenerateRequest& request, const std::string& reason,
                            const std::string& message) {
    const std::string series = absl::StrCat("requests_refused_total{reason=\"", reason, "\"}");
    const double before = Metric(series);
    const Answer answer = Run(request);
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << message;
    EXPECT_EQ(answer.reason(), reason) << answer.status.error_message();
    EXPECT_THAT(answer.status.error_message(), HasSubstr(message));
    EXPECT_FALSE(common::RetryDelayOf(common::FromGrpcStatus(answer.status)).has_value());
    EXPECT_TRUE(answer.continuations.empty());
    EXPECT_EQ(Metric(series), before + 1) << series;
  }

  static ServiceProcesses* processes_;
};
ServiceProcesses* ApiServicesTest::processes_ = nullptr;

TEST_F(ApiServicesTest, LogprobsAreTheModelsWhateverChangesTheChoice) {
  v1::GenerateRequest request = Greedy(1);
  request.mutable_sampling()->set_logprobs(20);
  const v1::PositionLogprobs plain = RunWell(request).one().logprobs.at(0);
  ASSERT_EQ(plain.alternatives_size(), 20);
  EXPECT_EQ(plain.logprob(), plain.alternatives(0).logprob()) << "greedy takes the likeliest";
  for (int i = 1; i < 20; ++i) {
    EXPECT_LE(plain.alternatives(i).logprob(), plain.alternatives(i - 1).logprob());
  }
  const int32_t likeliest = plain.alternatives(0).token_id(),
                fifth = plain.alternatives(4).token_id();
  v1::SamplingOptions& sampling = *request.mutable_sampling();
  sampling.set_temperature(1.7f);
  sampling.set_top_k(3);
  sampling.set_repetition_penalty(1.8f);
  sampling.set_presence_penalty(1.5f);
  sampling.set_frequency_penalty(-2);
  (*sampling.mutable_logit_bias())[likeliest] = -100;
  (*sampling.mutable_logit_bias())[fifth] = 100;
  const Continuation changed = RunWell(request).one();
  EXPECT_EQ(changed.tokens.at(0), fifth);
  const v1::PositionLogprobs& same = changed.logprobs.at(0);
  EXPECT_EQ(same.logprob(), plain.alternatives(4).logprob());
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(same.alternatives(i).token_id(), plain.alternatives(i).token_id()) << i;
    EXPECT_EQ(same.alternatives(i).logprob(), plain.alternatives(i).logprob()) << i;
  }
}

TEST_F(ApiServicesTest, ABiasForcesOrForbidsAToken) {
  v1::GenerateRequest request = Greedy(6);
  const int32_t usual = RunWell(request).one().tokens.at(0);
  (*request.mutable_sampling()->mutable_logit_bias())[300] = 100;
  EXPECT_EQ(RunWell(request).one().tokens, std::vector<int32_t>(6, 300));
  request.mutable_sampling()->clear_logit_bias();
  (*request.mutable_sampling()->mutable_logit_bias())[usual] = -100;
  const Answer without = RunWell(request);
  for (const int32_t token : without.one().tokens) EXPECT_NE(token, usual);
}

TEST_F(ApiServicesTest, SamplingOptionsOutsideTheirRangesAreRefused) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto refused = [&](const std::string& message, auto change) {
    v1::GenerateRequest request = Greedy();
    change(*request.mutable_sampling());
    ExpectRefused(request, "INVALID_SAMPLING", message);
  };
  refused("temperature", [&](auto& s) { s.set_temperature(nan); });
  refused("temperature", [&](auto& s) { s.set_temperature(100.5f); });
  refused("top_p", [&](auto& s) { s.set_top_p(0); });
  refused("top_k", [&](auto& s) { s.set_top_k(-1); });
  refused("min_p", [&](auto& s) { s.set_min_p(1.01f); });
  refused("repetition_penalty", [&](auto& s) { s.set_repetition_penalty(0); });
  refused("frequency_penalty", [&](auto& s) { s.set_frequency_penalty(-2.1f); });
  refused("presence_penalty", [&](auto& s) { s.set_presence_penalty(nan); });
  refused("max_tokens is 0", [&](auto& s) { s.set_max_tokens(0); });
  refused("min_tokens is 9", [&](auto& s) { s.set_min_tokens(9); });
  refused("min_tokens is -1", [&](auto& s) { s.set_min_tokens(-1); });
  refused("empty string", [&](auto& s) { s.add_stop(""); });
  refused("257 bytes", [&](auto& s) { s.add_stop(std::string(257, 'x')); });
  refused("stop_token_ids has -1", [&](auto& s) { s.add_stop_token_ids(-1); });
  refused("n is 17", [&](auto& s) { s.set_n(17); });
  refused("n is 0", [&](auto& s) { s.set_n(0); });
  refused("logprobs is 21", [&](auto& s) { s.set_logprobs(21); });
  refused("logprobs is -1", [&](auto& s) { s.set_logprobs(-1); });
  refused("logit_bias of token 5", [&](auto& s) { (*s.mutable_logit_bias())[5] = nan; });
  refused("logit_bias of token 5", [&](auto& s) { (*s.mutable_logit_bias())[5] = 100.5f; });
  refused("logit_bias has token -1", [&](auto& s) { (*s.mutable_logit_bias())[-1] = 1; });
  refused("logit_bias has 1025 entries", [&](auto& s) {
    for (int i = 0; i < 1025; ++i) (*s.mutable_logit_bias())[i] = 1;
  });
}

TEST_F(ApiServicesTest, TimeoutsAreMoreThanNothingOrRefused) {
  for (const auto& [seconds, nanos] :
       std::vector<std::pair<int64_t, int32_t>>{{0, 0},
                                                {-1, 0},
                                                {0, -1},
                                                {1, -5},
                                                {1, 1'000'000'000},
                                                {std::numeric_limits<int64_t>::min(), 0}}) {
    v1::GenerateRequest request = Greedy();
    request.mutable_timeout()->set_seconds(seconds);
    request.mutable_timeout()->set_nanos(nanos);
    ExpectRefused(request, "INVALID_REQUEST", "timeout");
  }
  v1::GenerateRequest request = Greedy();
  request.mutable_timeout()->set_seconds(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(RunWell(request).one().finished.reason(), v1::FINISH_REASON_LENGTH);
  const double before = Metric("requests_total{finish_reason=\"deadline\"}");
  request = Greedy(5000);
  request.mutable_timeout()->Clear();
  request.mutable_timeout()->set_nanos(1);
  EXPECT_EQ(RunWell(request).one().finished.reason(), v1::FINISH_REASON_DEADLINE);
  EXPECT_EQ(Metric("requests_total{finish_reason=\"deadline\"}"), before + 1);
}

TEST_F(ApiServicesTest, TheDeadlineOfACallCountsAsOne) {
  const double deadlines = Metric("requests_total{finish_reason=\"deadline\"}");
  const double cancelled = Metric("requests_total{finish_reason=\"cancelled\"}");
  // Long enough that it is queued, short enough that it never ends.
  v1::GenerateRequest request = Greedy(5000);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
  const auto reader = processes_->worker_stub().Generate(&context, request);
  v1::GenerateResponse event;
  while (reader->Read(&event)) {
  }
  const grpc::Status status = reader->Finish();
  if (status.ok()) GTEST_SKIP() << "5,000 tokens in 2 s: nothing was late";
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Eventually(
      [&] { return Metric("requests_total{finish_reason=\"deadline\"}") == deadlines + 1; }));
  EXPECT_EQ(Metric("requests_total{finish_reason=\"cancelled\"}"), cancelled);
}

TEST_F(ApiServicesTest, ContinuationsHaveTheirOwnSeedsLogprobsAndCounts) {
  v1::GenerateRequest request = Greedy(5);
  v1::SamplingOptions& sampling = *request.mutable_sampling();
  sampling.set_temperature(1.5f);
  sampling.set_seed(std::numeric_limits<uint64_t>::max());
  sampling.set_n(3);
  sampling.set_logprobs(2);
  const double generated = Metric("generation_tokens_total");
  const Answer answer = RunWell(request);
  ASSERT_EQ(answer.continuations.size(), 3u);
  EXPECT_EQ(Metric("generation_tokens_total"), generated + 15);
  for (const auto& [index, continuation] : answer.continuations) {
    EXPECT_EQ(continuation.tokens.size(), 5u);
    EXPECT_EQ(continuation.logprobs.size(), 5u);
    for (const v1::PositionLogprobs& position : continuation.logprobs) {
      EXPECT_EQ(position.alternatives_size(), 2);
      EXPECT_LE(position.logprob(), position.alternatives(0).logprob());
      EXPECT_LE(position.alternatives(0).logprob(), 0);
    }
    EXPECT_EQ(continuation.last_chunk.completion_tokens(), 5);
    EXPECT_EQ(continuation.finished.completion_tokens(), 5);
    EXPECT_EQ(continuation.finished.prompt_tokens(), continuation.last_chunk.prompt_tokens());
    EXPECT_EQ(continuation.finished.reason(), v1::FINISH_REASON_LENGTH);
  }
  EXPECT_EQ(answer.continuations.at(0).finished.seed(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(answer.continuations.at(1).finished.seed(), 0u);
  EXPECT_EQ(answer.continuations.at(2).finished.seed(), 1u);
  sampling.set_n(1);
  sampling.set_seed(0);
  EXPECT_EQ(RunWell(request).one().tokens, answer.continuations.at(1).tokens);
}

TEST_F(ApiServicesTest, AStopStringEndsTheTextAlsoAcrossTokens) {
  const Continuation whole = RunWell(Greedy(24)).one();
  ASSERT_GT(whole.text.size(), 12u) << whole.text;
  // From the middle of the text: it begins and ends wherever.
  const std::string stop = whole.text.substr(whole.text.size() / 2, 4);
  const size_t at = whole.text.find(stop);
  v1::GenerateRequest request = Greedy(24);
  request.mutable_sampling()->add_stop("never in the text");
  request.mutable_sampling()->add_stop(stop);
  const Continuation stopped = RunWell(request).one();
  EXPECT_EQ(stopped.text, whole.text.substr(0, at));
  EXPECT_EQ(stopped.finished.reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(stopped.finished.matched_stop(), stop);
  EXPECT_EQ(stopped.finished.completion_tokens(), static_cast<int64_t>(stopped.tokens.size()));
  request.mutable_sampling()->set_include_stop_str_in_output(true);
  EXPECT_EQ(RunWell(request).one().text, whole.text.substr(0, at) + stop);
  // Not before min_tokens.
  request.mutable_sampling()->set_min_tokens(24);
  const Continuation held_back = RunWell(request).one();
  EXPECT_EQ(held_back.finished.completion_tokens(), 24);
}

TEST_F(ApiServicesTest, AStopTokenEndsTheTextAndIsNamed) {
  const Continuation whole = RunWell(Greedy(8)).one();
  v1::GenerateRequest request = Greedy(8);
  request.mutable_sampling()->add_stop_token_ids(whole.tokens.at(3));
  const Continuation stopped = RunWell(request).one();
  EXPECT_EQ(stopped.finished.reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(stopped.finished.matched_token_id(), whole.tokens.at(3));
  EXPECT_EQ(stopped.tokens.back(), whole.tokens.at(3));
  // As many as the API takes are held back by min_tokens.
  for (int32_t token = 100; token < 115; ++token) {
    request.mutable_sampling()->add_stop_token_ids(token);
  }
  request.mutable_sampling()->set_ignore_eos(false);
  request.mutable_sampling()->set_min_tokens(8);
  EXPECT_EQ(RunWell(request).one().finished.completion_tokens(), 8);
}

TEST_F(ApiServicesTest, SpecialTokensOfATextAreParsedOnRequest) {
  v1::TokenizeRequest tokenize;
  v1::TokenizeResponse plain, parsed;
  const v1::GetModelInfoResponse info = processes_->ModelInfo();
  EXPECT_EQ(info.architecture(), "LlamaForCausalLM");
  ASSERT_GT(info.eos_token_ids_size(), 0);
  const int32_t eos = info.eos_token_ids(0);
  v1::DetokenizeRequest detokenize;
  detokenize.add_token_ids(eos);
  v1::DetokenizeResponse written;
  grpc::ClientContext first, second, third;
  ASSERT_TRUE(processes_->worker_stub().Detokenize(&first, detokenize, &written).ok());
  tokenize.set_text(absl::StrCat("a", written.text(), "b"));
  tokenize.set_add_special_tokens(false);
  ASSERT_TRUE(processes_->worker_stub().Tokenize(&second, tokenize, &plain).ok());
  tokenize.set_parse_special(true);
  ASSERT_TRUE(processes_->worker_stub().Tokenize(&third, tokenize, &parsed).ok());
  EXPECT_EQ(std::count(plain.token_ids().begin(), plain.token_ids().end(), eos), 0);
  EXPECT_EQ(std::count(parsed.token_ids().begin(), parsed.token_ids().end(), eos), 1);
  v1::GenerateRequest request = Greedy(1);
  request.set_text(tokenize.text());
  request.set_add_special_tokens(false);
  EXPECT_EQ(RunWell(request).one().finished.prompt_tokens(), plain.token_ids_size());
  request.set_parse_special(true);
  EXPECT_EQ(RunWell(request).one().finished.prompt_tokens(), parsed.token_ids_size());
}

TEST_F(ApiServicesTest, UnicodeComesBackWhole) {
  const std::string text =
      "gr\xC3\xBC\xC3\x9F Gott \xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x91\x8B\xF0\x9F\x8F\xBD";
  v1::GenerateRequest request = Greedy(1);
  request.set_text(text);
  request.mutable_sampling()->add_stop("\xE4\xBD\xA0");
  EXPECT_TRUE(RunWell(request).status.ok());
  request.set_text("\xC3");
  const Answer broken = Run(request);
  EXPECT_NE(broken.status.error_code(), grpc::StatusCode::OK);
}

TEST_F(ApiServicesTest, TheShareOfTheKvThatIsReadIsAShare) {
  v1::GenerateRequest request = Greedy(4);
  const std::vector<int32_t> prompt = RandomTokens(3000, 5);
  request.mutable_token_ids()->mutable_ids()->Assign(prompt.begin(), prompt.end());
  request.mutable_attention()->set_policy(v1::ATTENTION_POLICY_WAVE);
  for (const double ratio : {0.0, 0.02, 1.0}) {
    request.mutable_attention()->set_retrieval_ratio(ratio);
    const v1::Finished finished = RunWell(request).one().finished;
    const double share = finished.kv_read_ratio();
    EXPECT_GT(share, 0) << ratio;
    EXPECT_LE(share, 1) << ratio;
    EXPECT_EQ(share == 1, ratio == 1.0);
    ASSERT_TRUE(finished.has_unseen_mass());
    EXPECT_EQ(finished.unseen_mass().mean() < 1e-4, ratio == 1.0) << ratio;
  }
  request.mutable_attention()->Clear();
  request.mutable_attention()->set_policy(v1::ATTENTION_POLICY_FULL);
  const v1::Finished exact = RunWell(request).one().finished;
  ASSERT_TRUE(exact.has_unseen_mass());
  EXPECT_EQ(exact.unseen_mass().largest(), 0);
  request.mutable_attention()->set_policy(v1::ATTENTION_POLICY_STREAMING);
  EXPECT_FALSE(RunWell(request).one().finished.has_unseen_mass());
  request.mutable_attention()->set_policy(v1::ATTENTION_POLICY_WAVE);
  request.mutable_attention()->set_retrieval_ratio(1.5);
  ExpectRefused(request, "INVALID_ATTENTION", "retrieval_ratio");
  request.mutable_attention()->Clear();
  request.mutable_attention()->set_policy(static_cast<v1::AttentionPolicy>(9));
  ExpectRefused(request, "INVALID_ATTENTION", "attention policy 9");
}

TEST_F(ApiServicesTest, LengthsAreExact) {
  v1::GenerateRequest request = Greedy(1);
  const std::vector<int32_t> prompt = RandomTokens(100, 1);
  request.mutable_token_ids()->mutable_ids()->Assign(prompt.begin(), prompt.end());
  request.mutable_sampling()->set_max_tokens(5901);
  ExpectRefused(request, "CONTEXT_TOO_LONG", "you requested 6001 tokens");
  request.mutable_sampling()->set_max_tokens(std::numeric_limits<int32_t>::max());
  ExpectRefused(request, "CONTEXT_TOO_LONG", "maximum context length is 6000 tokens");
  request.mutable_token_ids()->add_ids(std::numeric_limits<int32_t>::max());
  ExpectRefused(request, "TOKEN_OUT_OF_RANGE", "token 100 of the prompt");
  request.mutable_token_ids()->clear_ids();
  ExpectRefused(request, "EMPTY_PROMPT", "empty");
  request.clear_input();
  ExpectRefused(request, "EMPTY_PROMPT", "no input");
}

}  // namespace
}  // namespace retroinfer::test_support
