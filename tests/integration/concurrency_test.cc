// Streams beside each other, over gRPC.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/integration/generate_stream.h"
#include "tests/integration/service_processes.h"

namespace retroinfer::test_support {
namespace {

namespace v1 = generation::v1;

struct Form {
  size_t prompt;
  int32_t output;
  v1::AttentionPolicy policy = v1::ATTENTION_POLICY_WAVE;
  bool greedy = false;
};

v1::GenerateRequest Request(const Form& form, uint64_t seed) {
  v1::GenerateRequest request =
      SampledRequest(RandomTokens(form.prompt, seed), form.output, seed, form.policy);
  if (form.greedy) request.mutable_sampling()->set_temperature(0);
  return request;
}

TEST(ConcurrencyTest, EightStreamsGiveTheSameTokensAsOneAtATime) {
  ServiceOptions options;
  options.arena_bytes = "192MiB";
  options.worker_arguments = {"--dense-below", "1024", "--block-cache-bytes", "4MiB"};
  ServiceProcesses processes(options);
  processes.StartBoth();

  // Some grow by segments while they decode: a window becomes one at 1152 tokens.
  const std::vector<Form> forms = {
      {1, 300, v1::ATTENTION_POLICY_WAVE, true}, {90, 400, v1::ATTENTION_POLICY_WAVE},
      {1000, 400, v1::ATTENTION_POLICY_FULL},    {1000, 1500, v1::ATTENTION_POLICY_WAVE},
      {1500, 200, v1::ATTENTION_POLICY_WAVE},    {3000, 600, v1::ATTENTION_POLICY_WAVE, true},
      {4100, 350, v1::ATTENTION_POLICY_WAVE},    {6000, 500, v1::ATTENTION_POLICY_WAVE}};
  std::vector<std::vector<int32_t>> alone;
  for (size_t i = 0; i < forms.size(); ++i) {
    alone.push_back(Generate(processes.worker_stub(), Request(forms[i], i)));
    ASSERT_EQ(alone.back().size(), static_cast<size_t>(forms[i].output));
  }
  std::vector<std::unique_ptr<v1::GenerationService::Stub>> stubs;
  std::vector<std::unique_ptr<GenerateStream>> streams;
  const uint64_t steps_before = processes.ModelInfo().stats().decode_steps_total();
  for (size_t i = 0; i < forms.size(); ++i) {
    stubs.push_back(processes.NewWorkerStub());  // clients of their own
    streams.push_back(std::make_unique<GenerateStream>(*stubs.back(), Request(forms[i], i)));
  }
  size_t num_tokens = 0;
  for (size_t i = 0; i < forms.size(); ++i) {
    EXPECT_TRUE(streams[i]->Wait().ok()) << streams[i]->Wait().error_message();
    EXPECT_EQ(streams[i]->tokens(), alone[i]) << "stream " << i;
    num_tokens += streams[i]->num_tokens();
  }
  // They shared their steps.
  EXPECT_LT(processes.ModelInfo().stats().decode_steps_total() - steps_before, num_tokens * 2 / 3);
  EXPECT_EQ(processes.WaitUntilNothingIsHeld(), "");
}

TEST(ConcurrencyTest, ARequestWaitsForTheArenaOfOneThatHasJustEnded) {
  ServiceOptions options;
  options.arena_bytes = "48MiB";  // for one request of this length
  options.worker_arguments = {"--dense-below", "1024"};
  ServiceProcesses processes(options);
  processes.StartBoth();
  const v1::GenerateRequest request = SampledRequest(RandomTokens(3000, 1), 2, 7);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(Generate(processes.worker_stub(), request).size(), 2u) << "request " << i;
  }
  std::vector<std::unique_ptr<GenerateStream>> streams;
  for (int i = 0; i < 6; ++i) {
    streams.push_back(std::make_unique<GenerateStream>(processes.worker_stub(), request));
  }
  for (const auto& stream : streams) {
    EXPECT_TRUE(stream->Wait().ok()) << stream->Wait().error_message();
  }
  EXPECT_EQ(processes.WaitUntilNothingIsHeld(), "");
}

}  // namespace
}  // namespace retroinfer::test_support
