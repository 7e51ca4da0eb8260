#include "gpu_worker/server/request_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>

#include "common/status/error_reason.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/fake_engine.h"

namespace retroinfer {
namespace {

namespace v1 = generation::v1;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kMaxModelLen = 100;

class RequestReaderTest : public ::testing::Test {
 protected:
  RequestReaderTest() {
    model_.tokenizer = tokenizer_.get();
    model_.chat_template = &template_;
    model_.vocab_size = 300;
    model_.default_sampling.max_tokens = 64;
    request_.set_text("hi");
  }

  absl::StatusOr<GenerateCall::Submission> Read(absl::Time deadline = absl::InfiniteFuture()) {
    return reader_.Read(request_, deadline);
  }
  GenerationRequest ReadOne() {
    auto submission = Read();
    EXPECT_TRUE(submission.ok()) << submission.status();
    return submission.ok() ? submission->continuations.at(0) : GenerationRequest();
  }
  void ExpectRefused(const std::string& reason, const std::string& message) {
    const absl::Status status = Read().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_EQ(common::ReasonOf(status).reason, reason) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = MakeByteTokenizer(
      {.chat_template =
           "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.name }}{{ m.content }}"
           "{{ m.tool_calls }}{{ m.tool_call_id }}{{ m.reasoning_content }}{% endfor %}"
           "{{ tools }}{{ extra }}{{ enable_thinking }}"
           "{% if add_generation_prompt %}<|im_start|>{% endif %}"});
  const ChatTemplate template_ = ChatTemplate::Create(*tokenizer_);
  ServedModel model_;
  const RequestReader reader_{model_, kMaxModelLen};
  v1::GenerateRequest request_;
};

TEST_F(RequestReaderTest, DefaultsAreTheServers) {
  const auto submission = Read();
  ASSERT_TRUE(submission.ok());
  EXPECT_THAT(submission->request_id, StartsWith("gen-"));
  ASSERT_EQ(submission->continuations.size(), 1u);
  const GenerationRequest& request = submission->continuations[0];
  EXPECT_EQ(request.request_id, submission->request_id);
  EXPECT_THAT(request.prompt, ElementsAre('h', 'i'));
  EXPECT_EQ(request.sampling.temperature, 1.0f);
  EXPECT_EQ(request.sampling.max_tokens, 64);
  EXPECT_EQ(request.sampling.num_logprobs, -1);
  EXPECT_TRUE(request.sampling.skip_special_tokens);
  EXPECT_EQ(request.attention.policy, PolicyKind::kWave);
  EXPECT_EQ(request.deadline, absl::InfiniteFuture());
  EXPECT_FALSE(submission->want_progress);
  EXPECT_FALSE(submission->want_logprobs);
  EXPECT_NE(Read()->continuations[0].sampling.seed, request.sampling.seed);
}

TEST_F(RequestReaderTest, ZeroIsNotTheSameAsUnset) {
  model_.default_sampling.temperature = 0.6f;
  model_.default_sampling.top_k = 20;
  EXPECT_EQ(ReadOne().sampling.temperature, 0.6f);
  request_.mutable_sampling()->set_temperature(0);
  request_.mutable_sampling()->set_top_k(0);
  request_.mutable_sampling()->set_seed(0);
  request_.mutable_sampling()->set_skip_special_tokens(false);
  request_.mutable_sampling()->set_logprobs(0);
  const SamplingParams sampling = ReadOne().sampling;
  EXPECT_EQ(sampling.temperature, 0.0f);
  EXPECT_EQ(sampling.top_k, 0);
  EXPECT_EQ(sampling.seed, 0u);
  EXPECT_FALSE(sampling.skip_special_tokens);
  EXPECT_EQ(sampling.num_logprobs, 0);
  EXPECT_TRUE(Read()->want_logprobs);
}

TEST_F(RequestReaderTest, EverySamplingOptionArrives) {
  v1::SamplingOptions& options = *request_.mutable_sampling();
  options.set_top_p(0.5f);
  options.set_min_p(0.1f);
  options.set_repetition_penalty(1.1f);
  options.set_frequency_penalty(0.2f);
  options.set_presence_penalty(-0.3f);
  options.set_max_tokens(9);
  options.set_min_tokens(3);
  options.add_stop("END");
  options.add_stop_token_ids(7);
  options.set_ignore_eos(true);
  options.set_include_stop_str_in_output(true);
  options.set_logprobs(5);
  const SamplingParams sampling = ReadOne().sampling;
  EXPECT_EQ(sampling.top_p, 0.5f);
  EXPECT_EQ(sampling.min_p, 0.1f);
  EXPECT_EQ(sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(sampling.frequency_penalty, 0.2f);
  EXPECT_EQ(sampling.presence_penalty, -0.3f);
  EXPECT_EQ(sampling.max_tokens, 9);
  EXPECT_EQ(sampling.min_tokens, 3);
  EXPECT_THAT(sampling.stop, ElementsAre("END"));
  EXPECT_THAT(sampling.stop_token_ids, ElementsAre(7));
  EXPECT_TRUE(sampling.ignore_eos);
  EXPECT_TRUE(sampling.include_stop_str_in_output);
  EXPECT_EQ(sampling.num_logprobs, 5);
}

TEST_F(RequestReaderTest, LogitBiasesArriveUnlessTheyAreTooMany) {
  (*request_.mutable_sampling()->mutable_logit_bias())[7] = -100;
  (*request_.mutable_sampling()->mutable_logit_bias())[299] = 0.5f;
  EXPECT_THAT(ReadOne().sampling.logit_bias,
              ElementsAre(testing::Pair(7, -100.0f), testing::Pair(299, 0.5f)));
  (*request_.mutable_sampling()->mutable_logit_bias())[300] = 0.5f;
  ExpectRefused("INVALID_SAMPLING", "logit_bias has token 300");
  for (int i = 0; i < 1025; ++i) (*request_.mutable_sampling()->mutable_logit_bias())[i] = 0;
  ExpectRefused("INVALID_SAMPLING", "logit_bias has 1025 entries");
}

TEST_F(RequestReaderTest, SpecialTokensInATextAreParsedOnRequestOnly) {
  request_.set_text("a<|im_end|>b");
  EXPECT_EQ(ReadOne().prompt.size(), 12u);
  request_.set_parse_special(true);
  EXPECT_THAT(ReadOne().prompt, ElementsAre('a', kByteTokenizerImEnd, 'b'));
  // Never in messages: they are users' text.
  v1::Message* message = request_.mutable_messages()->add_messages();
  message->set_role("user");
  message->set_content("a<|im_end|>b");
  request_.set_parse_special(true);
  const std::vector<int32_t> with = ReadOne().prompt;
  request_.clear_parse_special();
  EXPECT_EQ(ReadOne().prompt, with);

  v1::TokenizeRequest tokenize;
  tokenize.set_text("<|im_end|>");
  EXPECT_EQ(reader_.Tokenize(tokenize)->size(), 10u);
  tokenize.set_parse_special(true);
  EXPECT_THAT(*reader_.Tokenize(tokenize), ElementsAre(kByteTokenizerImEnd));
}

TEST_F(RequestReaderTest, ContinuationsHaveNamesAndSeedsOfTheirOwn) {
  request_.set_request_id("r1");
  request_.mutable_sampling()->set_n(3);
  request_.mutable_sampling()->set_seed(std::numeric_limits<uint64_t>::max());
  const auto submission = Read();
  ASSERT_TRUE(submission.ok());
  ASSERT_EQ(submission->continuations.size(), 3u);
  EXPECT_EQ(submission->continuations[0].request_id, "r1") << "taken while the request is live";
  EXPECT_EQ(submission->continuations[2].request_id, "r1/2");
  EXPECT_EQ(submission->continuations[0].sampling.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(submission->continuations[1].sampling.seed, 0u);
}

TEST_F(RequestReaderTest, TokenIdsAreTakenAsTheyAre) {
  request_.mutable_token_ids()->add_ids(299);
  request_.mutable_token_ids()->add_ids(0);
  EXPECT_THAT(ReadOne().prompt, ElementsAre(299, 0));
}

TEST_F(RequestReaderTest, MessagesGoThroughTheTemplate) {
  v1::Message* message = request_.mutable_messages()->add_messages();
  message->set_role("user");
  message->set_content("a<|endoftext|>");
  const auto expected = template_.Encode(std::vector<ChatMessage>{{"user", "a<|endoftext|>"}});
  ASSERT_TRUE(expected.ok());
  EXPECT_EQ(ReadOne().prompt, *expected);
  for (const int32_t token : *expected) EXPECT_NE(token, kByteTokenizerEndOfText);
  EXPECT_EQ(expected->front(), kByteTokenizerImStart);
}

TEST_F(RequestReaderTest, TellsHowMuchOfAConversationTheTurnBeforeHad) {
  v1::Messages& messages = *request_.mutable_messages();
  for (const char* const role : {"user", "assistant", "user"}) {
    v1::Message* const message = messages.add_messages();
    message->set_role(role);
    message->set_content("a");
  }
  EXPECT_EQ(Read()->earlier_tokens, 1 + 6);  // the mark and "user:a"
  request_.set_text("a");
  EXPECT_EQ(Read()->earlier_tokens, 0);
}

TEST_F(RequestReaderTest, EveryFieldOfMessagesReachesTheTemplate) {
  v1::Messages& messages = *request_.mutable_messages();
  v1::Message* message = messages.add_messages();
  message->set_role("tool");
  message->set_content("C");
  message->set_name("N");
  message->set_tool_calls("[1]");
  message->set_tool_call_id("I");
  message->set_reasoning_content("R");
  messages.set_tools(R"([{"a": 2}])");
  messages.set_template_arguments(R"({"extra": "X"})");
  messages.set_enable_thinking(false);
  messages.set_add_generation_prompt(false);
  EXPECT_EQ(tokenizer_->Decode(ReadOne().prompt, false),
            "<|im_start|>tool:NC[1]IR[{'a': 2}]XFalse");
  messages.clear_add_generation_prompt();
  EXPECT_EQ(ReadOne().prompt.back(), kByteTokenizerImStart);
  message->clear_tool_calls();
  messages.set_continue_final_message(true);
  EXPECT_EQ(tokenizer_->Decode(ReadOne().prompt, false), "<|im_start|>tool:NC");
  messages.set_add_generation_prompt(true);
  ExpectRefused("INVALID_INPUT", "exclude each other");
  messages.clear_add_generation_prompt();
  messages.set_tools("{");
  ExpectRefused("INVALID_INPUT", "tools: is not valid JSON");
}

TEST_F(RequestReaderTest, WithoutAChatTemplateMessagesAreRefused) {
  const auto tokenizer = MakeByteTokenizer();
  const ChatTemplate none = ChatTemplate::Create(*tokenizer);
  model_.chat_template = &none;
  request_.mutable_messages()->add_messages()->set_role("user");
  const absl::Status status = Read().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(common::ReasonOf(status).reason, "CHAT_TEMPLATE");
  EXPECT_EQ(common::ReasonOf(status).metadata.at("chat_template"), "none");
  EXPECT_THAT(std::string(status.message()), HasSubstr("--chat-template"));
}

TEST_F(RequestReaderTest, TheEarlierOfDeadlineAndTimeoutCounts) {
  const absl::Time later = absl::Now() + absl::Hours(1);
  EXPECT_TRUE(Read(later)->deadline_is_of_call);
  EXPECT_EQ(Read(later)->continuations[0].deadline, later);
  request_.mutable_timeout()->set_seconds(5);
  EXPECT_FALSE(Read(later)->deadline_is_of_call);
  EXPECT_LT(Read(later)->continuations[0].deadline, later);
  EXPECT_TRUE(Read(absl::Now())->deadline_is_of_call);
}

TEST_F(RequestReaderTest, RefusesAMissingOrEmptyPrompt) {
  request_.clear_text();
  ExpectRefused("EMPTY_PROMPT", "no input");
  request_.set_text("");
  ExpectRefused("EMPTY_PROMPT", "empty");
  request_.mutable_token_ids();
  ExpectRefused("EMPTY_PROMPT", "empty");
  request_.mutable_messages();
  ExpectRefused("INVALID_INPUT", "");
}

TEST_F(RequestReaderTest, RefusesTokensOutsideTheVocabulary) {
  request_.mutable_token_ids()->add_ids(300);
  ExpectRefused("TOKEN_OUT_OF_RANGE", "300");
  request_.mutable_token_ids()->set_ids(0, -1);
  ExpectRefused("TOKEN_OUT_OF_RANGE", "-1");
}

TEST_F(RequestReaderTest, RefusesBadSampling) {
  request_.mutable_sampling()->set_max_tokens(0);
  ExpectRefused("INVALID_SAMPLING", "max_tokens is 0");
  request_.mutable_sampling()->set_max_tokens(5);
  request_.mutable_sampling()->set_temperature(std::numeric_limits<float>::quiet_NaN());
  ExpectRefused("INVALID_SAMPLING", "temperature");
  request_.mutable_sampling()->clear_temperature();
  for (const int n : {0, -1, 17}) {
    request_.mutable_sampling()->set_n(n);
    ExpectRefused("INVALID_SAMPLING", "n is");
  }
  request_.mutable_sampling()->clear_n();
  request_.mutable_sampling()->set_logprobs(-1);
  ExpectRefused("INVALID_SAMPLING", "logprobs is -1");
  request_.mutable_sampling()->clear_logprobs();
  for (int i = 0; i < 17; ++i) request_.mutable_sampling()->add_stop("s");
  ExpectRefused("INVALID_SAMPLING", "17 strings");
}

TEST_F(RequestReaderTest, RefusesUnknownPoliciesAndBadRatios) {
  request_.mutable_attention()->set_policy(static_cast<v1::AttentionPolicy>(77));
  ExpectRefused("INVALID_ATTENTION", "77");
  request_.mutable_attention()->set_policy(v1::ATTENTION_POLICY_FULL);
  EXPECT_EQ(ReadOne().attention.policy, PolicyKind::kFull);
  request_.mutable_attention()->set_retrieval_ratio(1.5);
  ExpectRefused("INVALID_ATTENTION", "retrieval_ratio is 1.5");
}

TEST_F(RequestReaderTest, ReadsTheLimitOfTheUnseenMassForPolicyWave) {
  request_.mutable_attention()->set_policy(v1::ATTENTION_POLICY_WAVE);
  EXPECT_EQ(ReadOne().attention.max_unseen_mass, 0);
  request_.mutable_attention()->set_max_unseen_mass(0.25);
  EXPECT_EQ(ReadOne().attention.max_unseen_mass, 0.25);
  for (const double bad : {-0.1, 1.0, 1e9, std::numeric_limits<double>::quiet_NaN()}) {
    request_.mutable_attention()->set_max_unseen_mass(bad);
    ExpectRefused("INVALID_ATTENTION", "max_unseen_mass is");
  }
  request_.mutable_attention()->set_max_unseen_mass(0.25);
  request_.mutable_attention()->set_policy(v1::ATTENTION_POLICY_FULL);
  ExpectRefused("INVALID_ATTENTION", "policy full has no retrieval zone");
  request_.mutable_attention()->set_max_unseen_mass(0);
  EXPECT_EQ(ReadOne().attention.policy, PolicyKind::kFull);
}

TEST_F(RequestReaderTest, ReadsHowAPromptIsComputed) {
  EXPECT_EQ(ReadOne().attention.prefill, PrefillKind::kExact);
  request_.mutable_attention()->set_prefill(v1::PREFILL_SPARSE);
  EXPECT_EQ(ReadOne().attention.prefill, PrefillKind::kSparse);
  request_.mutable_attention()->set_policy(v1::ATTENTION_POLICY_STREAMING);
  ExpectRefused("INVALID_ATTENTION", "policy streaming reads prompts by its window");
  request_.mutable_attention()->set_prefill(v1::PREFILL_EXACT);
  EXPECT_EQ(ReadOne().attention.prefill, PrefillKind::kExact);
  request_.mutable_attention()->set_prefill(v1::PREFILL_INDEXED);
  EXPECT_EQ(ReadOne().attention.prefill, PrefillKind::kIndexed);
  EXPECT_EQ(ReadOne().attention.tail_tokens, kDefaultTailTokens);
  request_.mutable_attention()->set_tail_tokens(kMaxTailTokens);
  EXPECT_EQ(ReadOne().attention.tail_tokens, kMaxTailTokens);
  request_.mutable_attention()->set_tail_tokens(0);
  ExpectRefused("INVALID_ATTENTION", "tail_tokens is 0, it must be in [1, 4096]");
  request_.mutable_attention()->set_prefill(static_cast<v1::Prefill>(7));
  ExpectRefused("INVALID_REQUEST", "prefill 7 is not known to this server");
}

TEST_F(RequestReaderTest, ReadsTheWindowOfPolicyStreaming) {
  request_.mutable_attention()->set_policy(v1::ATTENTION_POLICY_STREAMING);
  EXPECT_EQ(ReadOne().attention.policy, PolicyKind::kStreaming);
  EXPECT_EQ(ReadOne().attention.streaming_window, 4096);
  request_.mutable_attention()->set_streaming_window(640);
  EXPECT_EQ(ReadOne().attention.streaming_window, 640);
  for (const int32_t bad : {-1, 0, 63, 1048577}) {
    request_.mutable_attention()->set_streaming_window(bad);
    ExpectRefused("INVALID_ATTENTION", "streaming_window is");
  }
}

TEST_F(RequestReaderTest, PassesTheCacheSaltOn) {
  EXPECT_EQ(ReadOne().cache_salt, "");
  request_.set_cache_salt("tenant");
  EXPECT_EQ(ReadOne().cache_salt, "tenant");
}

TEST_F(RequestReaderTest, DraftsAreTriedUnlessTheRequestDoesWithout) {
  EXPECT_TRUE(ReadOne().drafts);
  request_.set_speculation(v1::SPECULATION_AUTO);
  EXPECT_TRUE(ReadOne().drafts);
  request_.set_speculation(v1::SPECULATION_OFF);
  EXPECT_FALSE(ReadOne().drafts);
  request_.set_speculation(static_cast<v1::Speculation>(7));
  ExpectRefused("INVALID_REQUEST", "speculation 7");
}

TEST_F(RequestReaderTest, APredictionIsReadWhereDraftsMayBeTried) {
  EXPECT_TRUE(ReadOne().prediction.empty());
  request_.set_prediction("ab");
  EXPECT_EQ(ReadOne().prediction.size(), 2u);
  request_.set_speculation(v1::SPECULATION_OFF);
  EXPECT_TRUE(ReadOne().prediction.empty());
  request_.set_speculation(v1::SPECULATION_AUTO);
  request_.set_prediction(std::string(1 << 20, 'a'));
  ExpectRefused("INVALID_REQUEST", "prediction has 1048576 bytes");
}

TEST_F(RequestReaderTest, RefusesBadIdsSaltsAndTimeouts) {
  request_.set_request_id("a/b");
  ExpectRefused("INVALID_REQUEST", "request_id");
  request_.set_request_id(std::string(129, 'a'));
  ExpectRefused("INVALID_REQUEST", "129");
  request_.clear_request_id();
  request_.set_cache_salt(std::string(257, 'a'));
  ExpectRefused("INVALID_REQUEST", "257");
  request_.clear_cache_salt();
  request_.mutable_timeout()->set_seconds(0);
  ExpectRefused("INVALID_REQUEST", "timeout");
  request_.mutable_timeout()->set_seconds(-3);
  ExpectRefused("INVALID_REQUEST", "timeout");
}

TEST_F(RequestReaderTest, AnAnswerOfUnnamedLengthIsOpenEnded) {
  request_.set_text(std::string(90, 'x'));
  EXPECT_FALSE(ReadOne().open_ended) << "the server names a length";
  model_.default_sampling.max_tokens = 0;
  EXPECT_TRUE(ReadOne().open_ended);
  EXPECT_EQ(ReadOne().sampling.max_tokens, 10) << "what is left";
  request_.mutable_sampling()->set_max_tokens(5);
  EXPECT_FALSE(ReadOne().open_ended);
}

TEST_F(RequestReaderTest, NeverCutsAPromptThatIsTooLong) {
  request_.set_text(std::string(90, 'x'));
  EXPECT_EQ(ReadOne().prompt.size(), 90u);
  EXPECT_EQ(ReadOne().sampling.max_tokens, 10) << "the default is what is left";
  request_.mutable_sampling()->set_max_tokens(11);
  ExpectRefused("CONTEXT_TOO_LONG", "you requested 101 tokens");
  request_.clear_sampling();
  request_.set_text(std::string(100, 'x'));
  ExpectRefused("CONTEXT_TOO_LONG", "you requested 101 tokens");
  request_.set_text(std::string(5'000'000, 'x'));
  ExpectRefused("CONTEXT_TOO_LONG", "5000000 bytes");
}

TEST_F(RequestReaderTest, TokenizeAndDetokenize) {
  v1::TokenizeRequest tokenize;
  EXPECT_EQ(reader_.Tokenize(tokenize).status().code(), absl::StatusCode::kInvalidArgument);
  tokenize.set_text("aé");
  EXPECT_THAT(*reader_.Tokenize(tokenize), ElementsAre('a', 0xC3, 0xA9));
  tokenize.set_text("");
  EXPECT_TRUE(reader_.Tokenize(tokenize)->empty());

  v1::DetokenizeRequest detokenize;
  for (const int32_t id : {int32_t{'a'}, 0xC3, 0xA9, kByteTokenizerImEnd}) {
    detokenize.add_token_ids(id);
  }
  EXPECT_EQ(*reader_.Detokenize(detokenize), "aé<|im_end|>");
  detokenize.set_skip_special_tokens(true);
  EXPECT_EQ(*reader_.Detokenize(detokenize), "aé");
  detokenize.add_token_ids(300);
  EXPECT_EQ(common::ReasonOf(reader_.Detokenize(detokenize).status()).reason, "TOKEN_OUT_OF_RANGE");
}

TEST_F(RequestReaderTest, WhatIsOnlyTokenizedIsBoundedToo) {
  const auto reason = [](const absl::Status& status) { return common::ReasonOf(status).reason; };
  v1::TokenizeRequest tokenize;
  tokenize.set_text(std::string(1000, 'x'));  // longer than a prompt, since it may be divided later
  EXPECT_EQ(reader_.Tokenize(tokenize)->size(), 1000u);
  tokenize.set_text(std::string(RequestReader::kMaxTokenizedBytes + 1, 'x'));
  EXPECT_EQ(reason(reader_.Tokenize(tokenize).status()), "CONTEXT_TOO_LONG");
  tokenize.mutable_messages()->add_messages()->set_role(std::string(100'000, 'x'));
  EXPECT_EQ(reason(reader_.Tokenize(tokenize).status()), "CONTEXT_TOO_LONG");

  v1::DetokenizeRequest detokenize;
  detokenize.mutable_token_ids()->Resize(static_cast<int>(kMaxModelLen), 'x');
  EXPECT_EQ(reader_.Detokenize(detokenize)->size(), static_cast<size_t>(kMaxModelLen));
  detokenize.add_token_ids('x');
  EXPECT_EQ(reason(reader_.Detokenize(detokenize).status()), "CONTEXT_TOO_LONG");
}

TEST_F(RequestReaderTest, DefaultsAreReportedWhereTheyDiffer) {
  EXPECT_FALSE(reader_.DefaultSampling().has_temperature());
  model_.default_sampling.temperature = 0.6f;
  EXPECT_FLOAT_EQ(reader_.DefaultSampling().temperature(), 0.6f);
  EXPECT_FALSE(reader_.DefaultSampling().has_top_p());
  EXPECT_EQ(reader_.DefaultAttention().policy(), v1::ATTENTION_POLICY_WAVE);
}

class ScoreReaderTest : public RequestReaderTest {
 protected:
  ScoreReaderTest() : engine_({.tokens_together = 3}) { score_.set_text("ctx"); }

  void Add(const std::vector<int32_t>& ids) {
    score_.add_continuations()->mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
  }
  absl::StatusOr<GenerateCall::Submission> ReadScore() {
    return reader_.ReadScore(score_, absl::InfiniteFuture(), engine_);
  }
  void ExpectNotScored(const std::string& reason, const std::string& message) {
    const absl::Status status = ReadScore().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_EQ(common::ReasonOf(status).reason, reason) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }

  FakeEngine engine_;
  v1::ScoreRequest score_;
};

TEST_F(ScoreReaderTest, ContinuationsThatCanShareASequenceDo) {
  score_.set_request_id("r");
  score_.add_continuations()->set_text("ab");
  Add({7});
  Add({1, 2, 3, 4});  // too long for that
  Add({5, 6, 7});
  score_.set_logprobs(2);
  score_.mutable_attention()->set_policy(v1::ATTENTION_POLICY_FULL);
  score_.set_priority(-3);
  score_.set_cache_salt("s");
  const auto submission = ReadScore();
  ASSERT_TRUE(submission.ok()) << submission.status();
  ASSERT_EQ(submission->continuations.size(), 2u);
  const GenerationRequest& together = submission->continuations[0];
  EXPECT_EQ(together.request_id, "r");
  EXPECT_THAT(together.prompt, ElementsAre('c', 't', 'x'));
  EXPECT_THAT(together.continuations,
              ElementsAre(ElementsAre('a', 'b'), ElementsAre(7), ElementsAre(5, 6, 7)));
  EXPECT_EQ(together.sampling.max_tokens, 3);
  EXPECT_EQ(together.sampling.num_logprobs, 2);
  EXPECT_EQ(together.num_prompt_logprobs, -1);
  EXPECT_EQ(together.attention.policy, PolicyKind::kFull);
  EXPECT_EQ(together.priority, -3);
  EXPECT_EQ(together.cache_salt, "s");
  const GenerationRequest& alone = submission->continuations[1];
  EXPECT_EQ(alone.request_id, "r/1");
  EXPECT_THAT(alone.continuations, ElementsAre(ElementsAre(1, 2, 3, 4)));
  EXPECT_THAT(submission->scored, ElementsAre(ElementsAre(0, 1, 3), ElementsAre(2)));
}

TEST_F(ScoreReaderTest, APromptIsMeasuredBesideOneSequenceAndApartFromSeveral) {
  score_.set_prompt_logprobs(1);
  Add({1, 2, 3, 4, 5});
  auto submission = ReadScore();
  ASSERT_TRUE(submission.ok()) << submission.status();
  ASSERT_EQ(submission->continuations.size(), 1u);
  EXPECT_EQ(submission->continuations[0].num_prompt_logprobs, 1);
  Add({1, 2, 3, 4, 6});
  submission = ReadScore();
  ASSERT_TRUE(submission.ok()) << submission.status();
  ASSERT_EQ(submission->continuations.size(), 3u);
  EXPECT_EQ(submission->continuations[0].num_prompt_logprobs, 1);
  EXPECT_TRUE(submission->continuations[0].continuations.empty());
  EXPECT_TRUE(IsScoring(submission->continuations[0]));
  EXPECT_EQ(submission->continuations[1].num_prompt_logprobs, -1);
  score_.clear_continuations();
  submission = ReadScore();
  ASSERT_TRUE(submission.ok()) << submission.status();
  ASSERT_EQ(submission->continuations.size(), 1u);
  EXPECT_EQ(submission->continuations[0].sampling.max_tokens, 0);
}

TEST_F(ScoreReaderTest, WhatCannotBeScoredIsRefusedWithItsReason) {
  ExpectNotScored("INVALID_REQUEST", "nothing is to be scored");
  Add({});
  ExpectNotScored("INVALID_REQUEST", "continuation 0 is empty");
  score_.clear_continuations();
  score_.add_continuations();
  ExpectNotScored("INVALID_REQUEST", "continuation 0 is empty");
  score_.clear_continuations();
  Add({5, 300});
  ExpectNotScored("TOKEN_OUT_OF_RANGE", "token 1 of continuation 0 is 300");
  score_.clear_continuations();
  Add(std::vector<int32_t>(98, 1));
  ExpectNotScored("CONTEXT_TOO_LONG", "98 in the completion");
  score_.clear_continuations();
  for (int i = 0; i < 17; ++i) Add({1, 2, 3, 4});
  ExpectNotScored("INVALID_REQUEST", "17 continuations are too long to share one sequence");
  score_.clear_continuations();
  for (int i = 0; i < 65; ++i) Add({1});
  ExpectNotScored("INVALID_REQUEST", "at most 64");
  score_.clear_continuations();
  Add({1});
  score_.set_logprobs(21);
  ExpectNotScored("INVALID_SAMPLING", "logprobs is 21");
  score_.set_logprobs(-1);
  ExpectNotScored("INVALID_SAMPLING", "logprobs is -1");
  score_.clear_logprobs();
  score_.set_prompt_logprobs(-2);
  ExpectNotScored("INVALID_SAMPLING", "prompt_logprobs is -2");
  score_.clear_prompt_logprobs();
  score_.clear_text();
  ExpectNotScored("EMPTY_PROMPT", "no input");
  score_.mutable_token_ids();
  ExpectNotScored("EMPTY_PROMPT", "empty");
}

TEST_F(RequestReaderTest, NoTokensMayBeGeneratedWhereThePromptIsMeasured) {
  request_.mutable_sampling()->set_max_tokens(0);
  ExpectRefused("INVALID_SAMPLING", "max_tokens is 0");
  request_.mutable_sampling()->set_prompt_logprobs(0);
  EXPECT_TRUE(IsScoring(ReadOne()));
  request_.mutable_sampling()->set_n(2);
  ExpectRefused("INVALID_SAMPLING", "n is 2");
  request_.mutable_sampling()->set_max_tokens(1);
  const auto submission = Read();
  ASSERT_TRUE(submission.ok()) << submission.status();
  EXPECT_EQ(submission->continuations[0].num_prompt_logprobs, 0);
  EXPECT_EQ(submission->continuations[1].num_prompt_logprobs, -1) << "once is enough";
}

TEST_F(RequestReaderTest, AKeyDecidesForWhomItIsAndHowUrgent) {
  const auto caller = std::make_shared<const common::Tenant>(
      common::Tenant{.name = "acme", .weight = 3, .highest_priority = 5});
  request_.set_request_id("r");
  request_.set_cache_salt("s");
  request_.set_priority(5);
  auto submission = reader_.Read(request_, absl::InfiniteFuture(), caller);
  ASSERT_TRUE(submission.ok()) << submission.status();
  EXPECT_EQ(submission->request_id, "r") << "what the client calls it";
  const GenerationRequest& request = submission->continuations[0];
  EXPECT_EQ(*request.tenant, *caller);
  EXPECT_NE(request.request_id, "r") << "another tenant may use the same id";
  EXPECT_NE(request.cache_salt, "s") << "another tenant may use the same salt";
  request_.clear_priority();
  EXPECT_EQ(reader_.Read(request_, absl::InfiniteFuture(), caller)->continuations[0].priority, 5);
  request_.set_priority(4);
  absl::Status status = reader_.Read(request_, absl::InfiniteFuture(), caller).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(common::ReasonOf(status).reason, "PRIORITY_NOT_ALLOWED");
  request_.set_priority(5);
  request_.set_tenant("acme");
  EXPECT_TRUE(reader_.Read(request_, absl::InfiniteFuture(), caller).ok());
  request_.set_tenant("other");
  status = reader_.Read(request_, absl::InfiniteFuture(), caller).status();
  EXPECT_EQ(common::ReasonOf(status).reason, "TENANT_NOT_ALLOWED");
}

TEST_F(RequestReaderTest, WithoutKeysOfTenantsARequestNamesItsOwn) {
  EXPECT_EQ(ReadOne().tenant->name, "");
  request_.set_request_id("r");
  request_.set_cache_salt("s");
  request_.set_tenant("team");
  request_.set_priority(-100);
  const GenerationRequest request = ReadOne();
  EXPECT_EQ(request.tenant->name, "team");
  EXPECT_EQ(request.tenant->weight, 1);
  EXPECT_EQ(request.request_id, "r");
  EXPECT_EQ(request.cache_salt, "s");
  request_.set_tenant(std::string(65, 't'));
  ExpectRefused("INVALID_REQUEST", "at most 64");
}

TEST_F(RequestReaderTest, MeasuredBudgetsHoldWhereARequestNamesNoRatio) {
  model_.default_attention.retrieval_ratio = 0.018;
  EXPECT_EQ(ReadOne().attention.retrieval_ratio, 0.018);
  model_.retrieval.emplace();
  model_.retrieval->budgets = {{.chosen = {.context = 8, .ratio = 0.25}},
                               {.chosen = {.context = 32, .ratio = 0.07}}};
  EXPECT_EQ(ReadOne().attention.retrieval_ratio, 0.25);
  request_.set_text("longer than eight tokens");
  EXPECT_EQ(ReadOne().attention.retrieval_ratio, 0.07);
  request_.mutable_attention()->set_retrieval_ratio(0.5);
  EXPECT_EQ(ReadOne().attention.retrieval_ratio, 0.5) << "the request's own ratio wins";
}

}  // namespace
}  // namespace retroinfer
