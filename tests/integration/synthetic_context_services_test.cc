// Random weights and synthetic contexts, through both services: what `retroinfer bench` measures.
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "build_paths.h"
#include "tests/integration/generate_stream.h"
#include "tests/integration/service_processes.h"

namespace retroinfer::test_support {
namespace {

namespace v1 = generation::v1;

constexpr int64_t kContext = 30'000;

ServiceOptions Options(const std::vector<std::string>& more = {}) {
  ServiceOptions options;
  options.model_folder = "";
  options.arena_bytes = "192MiB";
  options.worker_arguments = {"--load-format", "dummy", "--model-shape", "tiny"};
  options.worker_arguments.insert(options.worker_arguments.end(), more.begin(), more.end());
  return options;
}

std::vector<int32_t> Prompt(uint64_t seed) {
  std::vector<int32_t> prompt = RandomTokens(40, seed);
  for (int32_t& token : prompt) token %= 512;
  return prompt;
}

TEST(SyntheticContextServicesTest, RequestsDecodeBehindALongContextAndLeaveNothing) {
  ServiceProcesses processes(
      Options({"--synthetic-context", std::to_string(kContext), "--max-model-len", "2000"}));
  processes.StartBoth();
  const v1::GetModelInfoResponse info = processes.ModelInfo();
  EXPECT_EQ(info.model_name(), "tiny");
  EXPECT_EQ(info.load_format(), "dummy");
  EXPECT_EQ(info.synthetic_context_tokens(), kContext);
  EXPECT_FALSE(info.has_synthetic_overlap());
  EXPECT_EQ(info.max_model_len(), 2000);
  ASSERT_EQ(processes.WaitUntilNothingIsHeld(), "");
  for (int round = 0; round < 2; ++round) {
    std::vector<std::unique_ptr<GenerateStream>> streams;
    // The same prompt: what would be shared without a context must not be.
    for (const uint64_t seed : {1, 1}) {
      streams.push_back(std::make_unique<GenerateStream>(processes.worker_stub(),
                                                         SampledRequest(Prompt(seed), 40, seed)));
    }
    for (const auto& stream : streams) {
      ASSERT_TRUE(stream->Wait().ok()) << stream->Wait().error_message();
      const v1::Finished finished = stream->finished();
      EXPECT_EQ(finished.prompt_tokens(), 40);
      EXPECT_EQ(finished.cached_tokens(), 0);
      EXPECT_EQ(finished.completion_tokens(), 40);
      // A window of at most 1152 of 30,000 tokens, as many in clusters, and the index.
      EXPECT_GT(finished.kv_read_ratio(), 0.02);
      EXPECT_LT(finished.kv_read_ratio(), 0.2);
    }
    EXPECT_EQ(processes.WaitUntilNothingIsHeld(), "");
  }
  const v1::WorkerStats stats = processes.ModelInfo().stats();
  // Slots keep pages of committed segments at most; queries that drift find most of theirs.
  EXPECT_GT(stats.page_hits_total(), 4 * (stats.page_misses_total() + 1));
  EXPECT_EQ(stats.slots_used(), 0);
}

// What a program prints.
std::string OutputOf(const std::string& command) {
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  std::string text(1 << 16, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), pipe));
  EXPECT_EQ(::pclose(pipe), 0) << text;
  return text;
}

TEST(SyntheticContextServicesTest, TheBenchCommandMeasuresThem) {
  // A token a step, so that steps can be counted.
  ServiceProcesses processes(
      Options({"--synthetic-context", std::to_string(kContext), "--speculation", "off"}));
  processes.StartBoth();
  const auto json =
      nlohmann::json::parse(OutputOf(
          RETROINFER_BINARY_DIR "/bin/retroinfer bench --json --num-prompts 2 --max-concurrency 1 "
                                "--input-len 16 --output-len 24 --address unix:" +
          (processes.folder() / "worker.sock").string()));
  EXPECT_EQ(json["completed"], 2);
  EXPECT_EQ(json["total_input_tokens"], 32);
  EXPECT_EQ(json["total_output_tokens"], 48);
  EXPECT_EQ(json["synthetic_context_tokens"], kContext);
  EXPECT_EQ(json["load_format"], "dummy");
  EXPECT_EQ(json["device_backend"], "cpu");
  EXPECT_EQ(json["server_decode_steps"], 2 * 23);
  EXPECT_GT(json["server_page_hit_ratio"], 0.5);
}

// Each rank makes the keys and queries of its own heads.
TEST(SyntheticContextServicesTest, TwoRanksHaveTheContextToo) {
  ServiceProcesses processes(Options({"--synthetic-context", std::to_string(kContext),
                                      "--max-model-len", "2000", "--tensor-parallel", "2"}));
  processes.StartBoth();
  std::vector<std::unique_ptr<GenerateStream>> streams;
  for (const uint64_t seed : {1, 2}) {
    streams.push_back(std::make_unique<GenerateStream>(processes.worker_stub(),
                                                       SampledRequest(Prompt(seed), 40, seed)));
  }
  for (const auto& stream : streams) {
    ASSERT_TRUE(stream->Wait().ok()) << stream->Wait().error_message();
    EXPECT_EQ(stream->finished().completion_tokens(), 40);
    EXPECT_GT(stream->finished().kv_read_ratio(), 0.02);
    EXPECT_LT(stream->finished().kv_read_ratio(), 0.2);
  }
  EXPECT_EQ(processes.WaitUntilNothingIsHeld(), "");
}

TEST(SyntheticContextServicesTest, PolicyFullHasTheContextToo) {
  ServiceProcesses processes(
      Options({"--synthetic-context", "4000", "--max-model-len", "1500", "--policy", "full"}));
  processes.StartBoth();
  GenerateStream stream(processes.worker_stub(),
                        SampledRequest(Prompt(1), 20, 1, v1::ATTENTION_POLICY_FULL));
  ASSERT_TRUE(stream.Wait().ok()) << stream.Wait().error_message();
  EXPECT_EQ(stream.finished().kv_read_ratio(), 1);
  EXPECT_EQ(processes.WaitUntilNothingIsHeld(), "");
}

TEST(SyntheticContextServicesTest, AContextThatDoesNotFitEndsTheStartWithTheNumbers) {
  ServiceProcesses processes(Options({"--synthetic-context", "300000"}));
  processes.StartStore();
  processes.LaunchWorker();
  ASSERT_TRUE(Eventually(
      [&] { return processes.LogOf("worker").find("--arena-bytes") != std::string::npos; }));
  EXPECT_NE(processes.LogOf("worker").find("--synthetic-context 300000"), std::string::npos);
}

}  // namespace
}  // namespace retroinfer::test_support
