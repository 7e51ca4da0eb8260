#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "client/command/commands.h"
#include "client/command/exit_code.h"
#include "tests/client/command_runner.h"
#include "tests/support/worker_harness.h"

namespace retroinfer::client {
namespace {

using ::testing::HasSubstr;

class BenchCommandTest : public ::testing::Test {
 protected:
  CommandResult Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"bench", "--address", worker_.address()});
    return RunCommand(BenchCommand, arguments);
  }

  WorkerHarness worker_{WorkerHarness::Settings{
      .engine = {.vocab_size = 300, .step_time = absl::Milliseconds(1), .eos_token = 40}}};
};

TEST_F(BenchCommandTest, CountsEveryTokenOfEveryRequest) {
  const std::string file = (worker_.folder() / "result.json").string();
  const CommandResult result =
      Run({"--num-prompts=12", "--input-len=30", "--prefix-len=10", "--output-len=60",
           "--max-concurrency=4", "--json", "--result-file", file, "--policy=wave"});
  ASSERT_EQ(result.exit_code, kExitOk) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["completed"], 12);
  EXPECT_EQ(json["failed"], 0);
  EXPECT_EQ(json["total_input_tokens"], 12 * 30);
  // Tokens count up from the last of the prompt, so that most requests pass the fake's end token.
  EXPECT_EQ(json["total_output_tokens"], 12 * 60);
  EXPECT_GT(json["median_ttft_ms"], 0);
  EXPECT_GE(json["p99_itl_ms"], json["median_itl_ms"]);
  EXPECT_GE(json["mean_e2el_ms"], json["mean_ttft_ms"]);
  EXPECT_EQ(json["model_id"], "fake-model");
  EXPECT_EQ(json["policy"], "wave");
  EXPECT_EQ(json["retrieval_ratio"], worker_.model().default_attention.retrieval_ratio);
  EXPECT_EQ(json["request_rate"], "inf");
  EXPECT_EQ(json["services"], "running");
  EXPECT_FALSE(json.contains("service_arguments"));
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(file)), json);
}

TEST_F(BenchCommandTest, SaysWhatWasMeasuredAndOnWhat) {
  WorkerHarness worker;
  worker.model().load_format = "dummy";
  worker.model().synthetic_context = 122'880;
  worker.model().synthetic_overlap = 0.99;
  const CommandResult result =
      RunCommand(BenchCommand, {"bench", "--address", worker.address(), "--num-prompts=1",
                                "--input-len=8", "--output-len=4", "--json"});
  ASSERT_EQ(result.exit_code, kExitOk) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["device"], "A Processor");
  EXPECT_EQ(json["device_backend"], "cpu");
  EXPECT_EQ(json["commit"], "abcdef");
  EXPECT_EQ(json["server_version"], "1.2.3");
  EXPECT_NE(json["client_commit"], "");
  EXPECT_EQ(json["load_format"], "dummy");
  EXPECT_EQ(json["synthetic_context_tokens"], 122'880);
  EXPECT_EQ(json["synthetic_overlap"], 0.99);
  EXPECT_EQ(json["policy"], "wave");  // the server's default
  EXPECT_EQ(json["input_len"], 8);
  EXPECT_EQ(json["output_len"], 4);
  EXPECT_TRUE(json["server_page_hit_ratio"].is_null());  // a fake engine has no pages
}

TEST_F(BenchCommandTest, PrintsATableForPeople) {
  const CommandResult result =
      Run({"--num-prompts=2", "--input-len=8", "--output-len=4", "--request-rate=100"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_THAT(result.out, HasSubstr("2 completed, 0 failed"));
  EXPECT_THAT(result.out, HasSubstr("16 in (0 cached), 8 out"));
}

TEST_F(BenchCommandTest, FailedRequestsAreCountedAndNamed) {
  WorkerHarness failing(WorkerHarness::Settings{
      .engine = {.vocab_size = 300, .fail_after = 2, .failure = absl::InternalError("it broke")}});
  const CommandResult result =
      RunCommand(BenchCommand, {"bench", "--address", failing.address(), "--num-prompts=3",
                                "--input-len=4", "--output-len=4"});
  EXPECT_EQ(result.exit_code, kExitFailed);
  EXPECT_THAT(result.out, HasSubstr("0 completed, 3 failed"));
  EXPECT_THAT(result.out, HasSubstr("it broke"));
  EXPECT_THAT(result.err, HasSubstr("3 requests failed"));
}

TEST_F(BenchCommandTest, WrongSettingsAreUsageErrors) {
  EXPECT_EQ(Run({"--num-prompts=0"}).exit_code, kExitUsage);
  EXPECT_EQ(Run({"--request-rate=0"}).exit_code, kExitUsage);
  EXPECT_EQ(Run({"--request-rate=nan"}).exit_code, kExitUsage);
  EXPECT_EQ(Run({"--input-len=5", "--prefix-len=6"}).exit_code, kExitUsage);
  EXPECT_EQ(Run({"--max-tokens=6"}).exit_code, kExitUsage);
  const CommandResult too_long = Run({"--input-len=4000", "--output-len=4000"});
  EXPECT_EQ(too_long.exit_code, kExitUsage);
  EXPECT_THAT(too_long.err, HasSubstr("need 8000 tokens"));
  const CommandResult nobody =
      RunCommand(BenchCommand, {"bench", "--address", "unix:/no/such/socket"});
  EXPECT_EQ(nobody.exit_code, kExitFailed);
  EXPECT_THAT(nobody.err, HasSubstr("no worker answers"));
}

TEST_F(BenchCommandTest, ServicesOfItsOwnAndARunningServerExcludeEachOther) {
  for (const char* flag : {"--address=127.0.0.1:1", "--api-key-file=/key", "--tls-ca=/ca"}) {
    const CommandResult both = RunCommand(BenchCommand, {"bench", flag, "--", "--model=/m"});
    EXPECT_EQ(both.exit_code, kExitUsage);
    EXPECT_THAT(both.err, HasSubstr("is for a running server"));
  }
  const CommandResult neither = Run({"--show-log"});
  EXPECT_EQ(neither.exit_code, kExitUsage);
  EXPECT_THAT(neither.err, HasSubstr("--show-log is for services that are started"));
}

TEST_F(BenchCommandTest, WhatFollowsIsCheckedBeforeAnythingStarts) {
  const auto run = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"bench", "--num-prompts=1", "--"});
    return RunCommand(BenchCommand, arguments);
  };
  EXPECT_THAT(run({}).err, HasSubstr("retroinfer bench --: --model is missing"));
  EXPECT_THAT(run({"--nonsense"}).err, HasSubstr("retroinfer bench --: "));
  EXPECT_THAT(run({"--model=/m", "--num-prompts=2"}).err, HasSubstr("--num-prompts"));
  EXPECT_THAT(run({"--model=/m", "--listen=:1"}).err, HasSubstr("--listen has no place here"));
  const CommandResult no_programs = run({"--load-format=dummy", "--bin-dir=/no/such/folder"});
  EXPECT_EQ(no_programs.exit_code, kExitUsage);
  EXPECT_THAT(no_programs.err, HasSubstr("/no/such/folder/kv_store_service is not there"));
}

TEST_F(BenchCommandTest, AnInterruptEndsItWithTheFiguresSoFar) {
  std::thread interrupter([] {
    absl::SleepFor(absl::Milliseconds(300));
    ::kill(::getpid(), SIGINT);
  });
  const absl::Time start = absl::Now();
  const CommandResult result =
      Run({"--num-prompts=1000", "--request-rate=10", "--input-len=4", "--output-len=2"});
  interrupter.join();
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
  EXPECT_EQ(result.exit_code, 130);  // what a shell expects after Ctrl-C
  EXPECT_THAT(result.out, HasSubstr("completed"));
  EXPECT_THAT(result.err, HasSubstr("interrupted"));
}

}  // namespace
}  // namespace retroinfer::client

// Signals go to the thread that waits for them: the others must block them from the beginning.
int main(int argc, char** argv) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
