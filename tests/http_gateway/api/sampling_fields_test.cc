#include "http_gateway/api/sampling_fields.h"

#include <gtest/gtest.h>

#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

absl::Status Read(const std::string& text, RequestOptions* options, v1::GenerateRequest* request) {
  const Json json = Json::parse(text);
  Fields fields = *Fields::Of(json);
  const absl::Status status = ReadCommonFields(fields, options, request);
  return status.ok() ? fields.CheckUnknown() : status;
}

TEST(SamplingFields, AllOfThemReachTheRequest) {
  RequestOptions options;
  v1::GenerateRequest request;
  const absl::Status status = Read(
      R"({"model": "m", "stream": true, "stream_options": {"include_usage": true},
          "temperature": 0.5, "top_p": 0.9, "top_k": -1, "min_p": 0.1, "repetition_penalty": 1.1,
          "frequency_penalty": -1, "presence_penalty": 1, "min_tokens": 2, "n": 3, "seed": -1,
          "stop": ["a", "b"], "stop_token_ids": [4], "ignore_eos": true,
          "skip_special_tokens": false, "include_stop_str_in_output": true,
          "logit_bias": {"17": -100, "3": 2.5}, "policy": "full", "prefill": "indexed", "tail_tokens": 90, "retrieval_ratio": 0.1, "streaming_window": 640,
          "max_unseen_mass": 0.25, "estimation_ratio": 0.2, "tenant": "t", "context": "book-1", "priority": -3,
          "timeout": 1.5, "speculation": "off", "return_progress": true, "user": "u", "metadata": {"a": "b"}})",
      &options, &request);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(options.model, "m");
  EXPECT_TRUE(options.stream && options.include_usage && options.return_progress);
  EXPECT_EQ(options.context, "book-1");
  const v1::SamplingOptions& sampling = request.sampling();
  EXPECT_FLOAT_EQ(sampling.temperature(), 0.5F);
  EXPECT_EQ(sampling.top_k(), 0);
  EXPECT_TRUE(sampling.has_top_k());
  EXPECT_EQ(sampling.seed(), 0xffffffffffffffffULL);
  EXPECT_EQ(sampling.stop_size(), 2);
  EXPECT_EQ(sampling.stop_token_ids(0), 4);
  EXPECT_EQ(sampling.logit_bias().at(17), -100);
  EXPECT_TRUE(sampling.ignore_eos() && sampling.include_stop_str_in_output());
  EXPECT_TRUE(sampling.has_skip_special_tokens() && !sampling.skip_special_tokens());
  EXPECT_EQ(request.attention().policy(), v1::ATTENTION_POLICY_FULL);
  EXPECT_EQ(request.attention().prefill(), v1::PREFILL_INDEXED);
  EXPECT_EQ(request.attention().tail_tokens(), 90);
  EXPECT_EQ(request.attention().retrieval_ratio(), 0.1);
  EXPECT_EQ(request.attention().streaming_window(), 640);
  EXPECT_EQ(request.attention().max_unseen_mass(), 0.25);
  EXPECT_EQ(request.cache_salt(), "t");
  EXPECT_EQ(request.priority(), -3);
  EXPECT_EQ(request.speculation(), v1::SPECULATION_OFF);
  EXPECT_EQ(request.timeout().seconds(), 1);
  EXPECT_EQ(request.timeout().nanos(), 500'000'000);
}

TEST(SamplingFields, WhatIsNotGivenIsNotSet) {
  RequestOptions options;
  v1::GenerateRequest request;
  ASSERT_TRUE(Read(R"({"temperature": null, "stop": null})", &options, &request).ok());
  EXPECT_EQ(request.sampling().ByteSizeLong(), 0U);
  EXPECT_FALSE(request.has_attention() || request.has_timeout());
  EXPECT_EQ(request.speculation(), v1::SPECULATION_UNSPECIFIED);
  ASSERT_TRUE(Read(R"({"speculation": "auto"})", &options, &request).ok());
  EXPECT_EQ(request.speculation(), v1::SPECULATION_AUTO);
}

TEST(SamplingFields, RefusesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"temperature": "hot"})", "temperature"},
      {R"({"temperature": 1e39})", "temperature"},
      {R"({"top_k": 1.5})", "top_k"},
      {R"({"n": 0})", "n"},
      {R"({"n": 17})", "n"},
      {R"({"seed": 1e30})", "seed"},
      {R"({"stop": [1]})", "stop"},
      {R"({"logit_bias": {"x": 1}})", "logit_bias"},
      {R"({"logit_bias": {"1": "2"}})", "logit_bias"},
      {R"({"policy": "sparse"})", "policy"},
      {R"({"prefill": "Sparse"})", "prefill"},
      {R"({"reuse": ""})", "reuse"},
      {R"({"speculation": "on"})", "speculation"},
      {R"({"speculation": true})", "speculation"},
      {R"({"context": "a b"})", "context"},
      {R"({"context": ""})", "context"},
      {R"({"timeout": 0})", "timeout"},
      {R"({"timeout": -1})", "timeout"},
      {R"({"stream_options": {}})", "stream_options"},
      {R"({"stream": true, "stream_options": {"x": 1}})", "stream_options.x"},
      {R"({"store": true})", "store"},
      {R"({"colour": 1})", "colour"},
  };
  for (const auto& [text, param] : cases) {
    RequestOptions options;
    v1::GenerateRequest request;
    const absl::Status status = Read(text, &options, &request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(common::ReasonOf(status).metadata["param"], param) << status;
  }
}

TEST(SamplingFields, AnUnknownChoiceIsToldWithWhatThereIs) {
  const auto message = [](const std::string& text) {
    RequestOptions options;
    v1::GenerateRequest request;
    return std::string(Read(text, &options, &request).message());
  };
  EXPECT_EQ(message(R"({"prefill": "fast"})"),
            "prefill is \"fast\", it must be exact, sparse or indexed");
  EXPECT_EQ(message(R"({"speculation": "o\nn"})"),
            "speculation is \"o\\nn\", it must be off or auto");
  EXPECT_LT(message(R"({"reuse": ")" + std::string(1000, 'x') + "\"}").size(), 120u);
}

TEST(SamplingFields, ATenantSharesNoContextUnlessItSaysSo) {
  RequestOptions options;
  v1::GenerateRequest alone, apart;
  ASSERT_TRUE(Read(R"({"tenant": "a"})", &options, &alone).ok());
  EXPECT_EQ(alone.tenant(), "a");
  EXPECT_EQ(alone.cache_salt(), "a");
  ASSERT_TRUE(Read(R"({"tenant": "a", "cache_salt": "b"})", &options, &apart).ok());
  EXPECT_EQ(apart.tenant(), "a");
  EXPECT_EQ(apart.cache_salt(), "b");
}

}  // namespace
}  // namespace retroinfer::gateway
