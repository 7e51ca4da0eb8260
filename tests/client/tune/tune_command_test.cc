#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "client/command/commands.h"
#include "client/command/exit_code.h"
#include "common/retrieval/retrieval_file.h"
#include "tests/client/command_runner.h"
#include "tests/support/worker_harness.h"

namespace retroinfer::client {
namespace {

using ::testing::HasSubstr;

// A scored token of the fake engine errs under wave by 0.1 times one less the ratio.
class TuneCommandTest : public ::testing::Test {
 protected:
  TuneCommandTest() : worker_({.engine = {.vocab_size = 300, .wave_error = 0.1f}}) {
    worker_.model().subject = {.model_name = "fake-model",
                               .fingerprint = std::string(64, 'a'),
                               .kv_dtype = "bf16",
                               .index_dtype = "bf16",
                               .wave_index = "tuned",
                               .quality = "standard"};
    worker_.model().default_attention.retrieval_ratio = 0.018;
  }
  CommandResult Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"tune", "--address", worker_.address()});
    return RunCommand(TuneCommand, arguments, "");
  }
  std::string File(const std::string& text, const std::string& name = "text.txt") {
    const std::string path = worker_.folder() / name;
    std::ofstream(path) << text;
    return path;
  }

  WorkerHarness worker_;
};

TEST_F(TuneCommandTest, FindsTheRatioAndWritesTheFile) {
  const std::string out = worker_.folder() / "found.toml";
  const CommandResult result = Run({"--text", File(std::string(3000, 'b')), "--context", "1000",
                                    "--tokens", "64", "--target-change", "0.05", "--out", out});
  ASSERT_EQ(result.exit_code, kExitOk) << result.err;
  const auto file = common::ReadRetrievalFile(out);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->subject.fingerprint, std::string(64, 'a'));
  ASSERT_EQ(file->budgets.size(), 1u);
  EXPECT_EQ(file->budgets[0].chosen.ratio, 0.56) << "0.44 of 0.1 are less than 0.05, 0.6 are not";
  EXPECT_EQ(file->budgets[0].chosen.context, 1000);
  EXPECT_EQ(file->budgets[0].chosen.windows, 2) << "of 1,064 tokens each";
  EXPECT_EQ(file->budgets[0].chosen.tokens, 128);
  EXPECT_NEAR(file->budgets[0].chosen.change, 0.044, 1e-4);
  EXPECT_TRUE(file->budgets[0].meets_target);
  EXPECT_GT(file->measured.size(), 2u);
  EXPECT_THAT(result.out, HasSubstr("56%"));
  EXPECT_THAT(result.err, HasSubstr("--retrieval " + out));
  // Wave once for each ratio and window, full once for each window.
  EXPECT_EQ(worker_.engine().submitted(), 2 * std::ssize(file->measured) + 2);
}

TEST_F(TuneCommandTest, TheFileLiesBesideTheCache) {
  const CommandResult result =
      Run({"--text", File(std::string(600, 'b')), "--context=100", "--tokens=32",
           "--target-perplexity=20%", "--cache-dir", worker_.folder()});
  ASSERT_EQ(result.exit_code, kExitOk) << result.err;
  const auto file = common::ReadRetrievalFile(worker_.folder() / "retrieval.toml");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->target_perplexity, 0.2);
  EXPECT_TRUE(file->budgets[0].meets_target);
}

TEST_F(TuneCommandTest, WhatCannotBeMeasuredIsRefused) {
  const auto expect = [&](std::vector<std::string> arguments, const std::string& message) {
    const CommandResult result = Run(std::move(arguments));
    EXPECT_EQ(result.exit_code, kExitUsage) << result.err;
    EXPECT_THAT(result.err, HasSubstr(message));
  };
  expect({}, "--text is missing");
  const std::string text = File(std::string(600, 'b'));
  expect({"--text", text, "--context=1000"}, "need a longer text: the longest has 600 tokens");
  expect({"--text", text, "--context=100000"}, "more than the 4096 that the server takes");
  expect({"--text", text, "--target-change=0.1", "--target-perplexity=1%"}, "give one of");
  expect({"--text", text, "--target-change=none"}, "--target-change: it must be a number");
  expect({"--text", text, "--out=a", "--cache-dir=b"}, "give one of --cache-dir and --out");
  expect({"--text", text, "--model=m"}, "leave one of the two out");
  expect({"--text", text, "--", "--max-batch=2"}, "name a --model");
  EXPECT_FALSE(std::filesystem::exists("retrieval.toml"));
}

TEST_F(TuneCommandTest, AServerThatDoesNotNameItsModelIsRefused) {
  worker_.model().subject.fingerprint.clear();
  const CommandResult result = Run({"--text", File(std::string(600, 'b')), "--context=100"});
  EXPECT_EQ(result.exit_code, kExitFailed);
  EXPECT_THAT(result.err, HasSubstr("older than this program"));
}

}  // namespace
}  // namespace retroinfer::client
