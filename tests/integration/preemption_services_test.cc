// Requests of a low class give way to those of a higher one on a server with one place.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/generate_stream.h"
#include "tests/integration/service_processes.h"

namespace retroinfer::test_support {
namespace {

namespace v1 = generation::v1;

class PreemptionServicesTest : public testing::Test {
 protected:
  void Start(const std::string& preemption) {
    cache_ = (processes_.folder() / "cache").string();
    processes_.options().store_arguments = {"--cache-dir", cache_};
    processes_.options().worker_arguments = {
        "--max-batch",   "1",    "--max-model-len", "16384",
        "--dense-below", "2048", "--preemption",    preemption};
    processes_.StartBoth();
  }
  // Long, of the class that waits.
  static v1::GenerateRequest Batch(int max_tokens) {
    v1::GenerateRequest request = SampledRequest(RandomTokens(4500, 1), max_tokens, 7);
    request.set_tenant("batch");
    request.set_priority(10);
    return request;
  }
  static v1::GenerateRequest Chat() {
    v1::GenerateRequest request = SampledRequest(RandomTokens(200, 2), 8, 3);
    request.set_tenant("chat");
    return request;
  }
  // The value of a metric of the worker without labels.
  double Metric(const std::string& name) {
    const std::string text = processes_.WorkerMetrics();
    const size_t line = text.find("\n" + name + " ");
    return line == std::string::npos ? -1 : std::stod(text.substr(line + name.size() + 2));
  }
  // Runs the request, and beside it one of the higher class as soon as it has some tokens; then
  // another one, if it is still there. Returns its tokens.
  std::vector<int32_t> RunBesideChat(const v1::GenerateRequest& request, bool* chat_was_first) {
    GenerateStream stream(processes_.worker_stub(), request);
    EXPECT_TRUE(stream.WaitForTokens(10));
    EXPECT_EQ(Generate(processes_.worker_stub(), Chat()).size(), 8u);
    *chat_was_first = !stream.ended();
    EXPECT_TRUE(stream.Wait().ok());
    cached_tokens_ = stream.finished().cached_tokens();
    return stream.tokens();
  }

  ServiceProcesses processes_;
  std::string cache_;
  int64_t cached_tokens_ = 0;
};

TEST_F(PreemptionServicesTest, AHigherClassComesFirstAndTheOtherGoesOnWithTheSameTokens) {
  Start("on");
  const v1::GenerateRequest request = Batch(2000);
  const std::vector<int32_t> alone = Generate(processes_.worker_stub(), request);
  ASSERT_EQ(alone.size(), 2000u);
  bool chat_was_first = false;
  EXPECT_EQ(RunBesideChat(request, &chat_was_first), alone);
  EXPECT_TRUE(chat_was_first);
  EXPECT_GT(cached_tokens_, 4000) << "its segments were shared";
  EXPECT_EQ(Metric("retroinfer_preemptions_total"), 1);
  EXPECT_EQ(Metric("retroinfer_resumptions_total"), 1);
  EXPECT_EQ(Metric("retroinfer_requests_suspended"), 0);
  EXPECT_EQ(Metric("retroinfer_suspended_kv_bytes"), 0);
  EXPECT_EQ(processes_.WaitUntilNothingIsHeld(), "");

  // With segments that come from the disk.
  ASSERT_TRUE(Eventually([&] { return processes_.StoreStats().durable_queued_segments() == 0; }));
  processes_.worker().Kill();
  processes_.store().Kill();
  processes_.StartBoth();
  EXPECT_EQ(RunBesideChat(request, &chat_was_first), alone);
  EXPECT_TRUE(chat_was_first);
  EXPECT_GT(cached_tokens_, 4000);
  EXPECT_EQ(Metric("retroinfer_preemptions_total"), 1);

  // The store dies while one is away, and another one takes its place.
  GenerateStream away(processes_.worker_stub(), request);
  ASSERT_TRUE(away.WaitForTokens(10));
  v1::GenerateRequest longer =  // of a policy that needs nothing of the arena
      SampledRequest(RandomTokens(200, 2), 8000, 3, v1::ATTENTION_POLICY_FULL);
  GenerateStream chat(processes_.worker_stub(), longer);
  ASSERT_TRUE(chat.WaitForTokens(2));
  EXPECT_EQ(Metric("retroinfer_requests_suspended"), 1);
  EXPECT_GT(Metric("retroinfer_suspended_kv_bytes"), 0);
  processes_.store().Kill();
  processes_.StartStore();
  chat.Cancel();
  EXPECT_TRUE(away.Wait().ok());
  EXPECT_EQ(away.tokens(), alone);
  EXPECT_EQ(processes_.WaitUntilNothingIsHeld(), "");
}

TEST_F(PreemptionServicesTest, ItCanBeTurnedOff) {
  Start("off");
  bool chat_was_first = true;
  RunBesideChat(Batch(300), &chat_was_first);
  EXPECT_FALSE(chat_was_first);
  EXPECT_EQ(Metric("retroinfer_preemptions_total"), 0);
}

}  // namespace
}  // namespace retroinfer::test_support
