// A process is killed while a question waits for parts of its text that the store reads from the
// disk. The question ends with an error that says to send it again, or with its client's
// connection; sent again it gets the tokens that it gets of a text in the arena.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "build_paths.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "tests/integration/generate_stream.h"
#include "tests/integration/service_processes.h"

namespace retroinfer::test_support {
namespace {

namespace v1 = generation::v1;

constexpr int32_t kTail = 64;
constexpr size_t kText = 93 * 64 + 4;  // five segments of 1024 tokens, and blocks
constexpr int32_t kOutput = 20;
constexpr int32_t kLongOutput = 600;

class PartialReadDeathTest : public testing::Test {
 protected:
  PartialReadDeathTest() : processes_(Options()) {
    faults_ = processes_.folder() / "faults";
    processes_.options().store_arguments = {"--cache-dir", processes_.folder() / "cache"};
    processes_.options().store_program = {
        "/usr/bin/env", "RETROINFER_DISK_FAULTS=" + faults_.string(),
        RETROINFER_BINARY_DIR "/tests/bin/faulty_kv_store_service"};
    processes_.StartBoth();
    ReadTextAndPutItOnDisk();
  }
  ~PartialReadDeathTest() override {
    if (!HasFailure()) return;
    std::fprintf(stderr, "%s\n%s\n", processes_.LogOf("store").c_str(),
                 processes_.LogOf("worker").c_str());
  }
  static ServiceOptions Options() {
    ServiceOptions options;
    options.arena_bytes = "128MiB";
    options.worker_arguments = {"--dense-below", "1024", "--dense-kv-bytes", "64MiB"};
    return options;
  }

  static v1::GenerateRequest Question() {
    std::vector<int32_t> prompt = RandomTokens(kText, 1);
    const std::vector<int32_t> tail = RandomTokens(kTail, 2);
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    v1::GenerateRequest request = SampledRequest(prompt, kOutput, 7);
    request.mutable_attention()->set_prefill(v1::PREFILL_INDEXED);
    request.mutable_attention()->set_tail_tokens(kTail);
    return request;
  }
  // Of another text, which is not on the disk.
  static v1::GenerateRequest OtherRequest() {
    return SampledRequest(RandomTokens(2000, 3), kLongOutput, 8);
  }
  // The text is on the disk, the arena is empty, parts are held, and what the question gets of a
  // text in the arena is known.
  void ReadTextAndPutItOnDisk() {
    Generate(processes_.worker_stub(), SampledRequest(RandomTokens(kText, 1), 1, 7));
    Ask(&want_, &cached_);
    ASSERT_EQ(want_.size(), size_t{kOutput});
    ASSERT_GT(cached_, 5000);
    ASSERT_TRUE(Eventually([&] { return processes_.StoreStats().durable_queued_segments() == 0; },
                           absl::Minutes(1)));
    processes_.worker().Kill();
    processes_.store().Kill();
    SetFaults("parts-held");
    processes_.StartBoth();
  }
  void SetFaults(const std::string& faults) {
    const std::string next = faults_.string() + ".next";
    std::ofstream(next) << faults;
    std::filesystem::rename(next, faults_);
  }
  void Ask(std::vector<int32_t>* tokens, int64_t* cached) {
    GenerateStream stream(processes_.worker_stub(), Question());
    EXPECT_TRUE(stream.Wait().ok()) << stream.Wait().error_message();
    *tokens = stream.tokens();
    *cached = stream.finished().cached_tokens();
  }
  bool AwaitPartsUnderWay() {
    return Eventually(
        [&] {
          int num_held = 0;
          std::ifstream(faults_.string() + ".held") >> num_held;
          return num_held > 0;
        },
        absl::Minutes(1));
  }
  void ExpectTheAnswerOfATextInTheArena() {
    std::vector<int32_t> tokens;
    int64_t cached = 0;
    Ask(&tokens, &cached);
    EXPECT_EQ(tokens, want_);
    EXPECT_EQ(cached, cached_);
    EXPECT_EQ(processes_.WaitUntilNothingIsHeld(absl::Minutes(1)), "");
    EXPECT_EQ(processes_.StoreStats().durable_corrupt_total(), 0u);
  }
  void AwaitWorkerServes() {
    ASSERT_TRUE(Eventually([&] { return processes_.WorkerIsServing(); }, absl::Minutes(1)));
  }

  ServiceProcesses processes_;
  std::filesystem::path faults_;
  std::vector<int32_t> want_;
  int64_t cached_ = 0;
};

TEST_F(PartialReadDeathTest, AStoreThatIsKilledEndsTheQuestionAndNobodyElse) {
  GenerateStream other(processes_.worker_stub(), OtherRequest());
  ASSERT_TRUE(other.WaitForTokens(1));
  GenerateStream question(processes_.worker_stub(), Question());
  ASSERT_TRUE(AwaitPartsUnderWay());
  processes_.store().Kill();
  const grpc::Status status = question.Wait();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  EXPECT_EQ(common::ReasonOf(common::FromGrpcStatus(status)).reason, "KV_NOT_READ");
  EXPECT_EQ(question.num_tokens(), 0u);
  SetFaults("");
  processes_.StartStore();
  AwaitWorkerServes();
  EXPECT_EQ(processes_.StoreStats().memory_adoptions_total(), 1u);
  ExpectTheAnswerOfATextInTheArena();
  EXPECT_TRUE(other.Wait().ok()) << other.Wait().error_message();
  EXPECT_EQ(other.tokens(), Generate(processes_.worker_stub(), OtherRequest()));
}

TEST_F(PartialReadDeathTest, AWorkerThatIsKilledLeavesTheNextOneTheText) {
  GenerateStream question(processes_.worker_stub(), Question());
  ASSERT_TRUE(AwaitPartsUnderWay());
  processes_.worker().Kill();
  EXPECT_FALSE(question.Wait().ok());
  EXPECT_EQ(question.num_tokens(), 0u);
  // The next one comes while the disk still reads for the one before.
  processes_.LaunchWorker();
  SetFaults("");
  AwaitWorkerServes();
  ExpectTheAnswerOfATextInTheArena();
}

TEST_F(PartialReadDeathTest, BothAreKilled) {
  GenerateStream question(processes_.worker_stub(), Question());
  ASSERT_TRUE(AwaitPartsUnderWay());
  processes_.store().Kill();
  processes_.worker().Kill();
  EXPECT_FALSE(question.Wait().ok());
  SetFaults("");
  processes_.StartBoth();
  ExpectTheAnswerOfATextInTheArena();
}

}  // namespace
}  // namespace retroinfer::test_support
