#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "client/command/commands.h"
#include "client/command/exit_code.h"
#include "tests/client/command_runner.h"
#include "tests/support/worker_harness.h"

namespace retroinfer::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The log-probability of a token of the fake engine is minus its id, here its byte; its likeliest
// token is that itself.
class ScoreCommandTest : public ::testing::Test {
 protected:
  CommandResult Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"score", "--address", worker_.address()});
    return RunCommand(ScoreCommand, arguments, "");
  }
  std::string File(const std::string& text) {
    const std::string path = worker_.folder() / "text.txt";
    std::ofstream(path) << text;
    return path;
  }

  WorkerHarness worker_;
};

TEST_F(ScoreCommandTest, ScoresEveryTokenUnderEachPolicy) {
  const CommandResult result = Run({File("bcbcbcbcb"), "--stride", "3", "--json"});
  ASSERT_EQ(result.exit_code, kExitOk) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["tokens"], 9);
  EXPECT_EQ(json["scored"], 8);
  EXPECT_EQ(json["window"], 4096);
  ASSERT_EQ(json["policies"].size(), 2u);
  for (const auto& policy : json["policies"]) {
    EXPECT_DOUBLE_EQ(policy["mean_logprob"], -98.5);
    EXPECT_DOUBLE_EQ(policy["greedy_share"], 0.5);
  }
  EXPECT_EQ(json["agreements"][0]["same_top1_share"], 1.0);
  EXPECT_EQ(worker_.engine().submitted(), 6) << "three calls for each policy";
  EXPECT_THAT(result.err, HasSubstr("wave: 8 of 8 tokens\nfull: 3 of 8 tokens"));
}

TEST_F(ScoreCommandTest, AWindowMovesOverALongText) {
  const CommandResult result = Run({File(std::string(100, 'b')), "--policy=full", "--window=16",
                                    "--context=10", "--quiet", "--retrieval-ratio=0.5"});
  ASSERT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_THAT(result.out, HasSubstr("100 tokens, 90 scored, 8 at a time in windows of 16"));
  EXPECT_EQ(result.err, "");
  const GenerationRequest last = worker_.engine().last_request();
  EXPECT_EQ(last.prompt.size(), 14u);
  EXPECT_EQ(last.continuations[0].size(), 2u);
  EXPECT_EQ(last.attention.policy, PolicyKind::kFull);
  EXPECT_EQ(last.attention.retrieval_ratio, 0.5);
}

TEST_F(ScoreCommandTest, NamesOfSpecialTokensAreThoseTokensOnRequestOnly) {
  const std::string path = File("a<|im_end|>b");
  CommandResult result = Run({path, "--policy=full", "--json", "--quiet"});
  ASSERT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out)["tokens"], 12);
  EXPECT_EQ(worker_.engine().last_request().continuations[0].size(), 11u);

  result = Run({path, "--policy=full", "--json", "--quiet", "--parse-special"});
  ASSERT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out)["tokens"], 3);
  const GenerationRequest last = worker_.engine().last_request();
  EXPECT_THAT(last.prompt, ElementsAre('a'));
  EXPECT_THAT(last.continuations[0], ElementsAre(kByteTokenizerImEnd, 'b'));
}

TEST_F(ScoreCommandTest, WhatCannotBeScoredIsSaidBeforehand) {
  const auto expect = [&](std::vector<std::string> arguments, const std::string& message) {
    const CommandResult result = Run(std::move(arguments));
    EXPECT_EQ(result.exit_code, kExitUsage) << message;
    EXPECT_THAT(result.err, HasSubstr(message));
    EXPECT_EQ(result.out, "");
  };
  expect({worker_.folder() / "none.txt"}, "none.txt");
  expect({File("")}, "is empty");
  expect({File("a")}, "has 1 token, and 1 of them are context");
  expect({File("abc"), "--context=3"}, "there is nothing left");
  expect({File("abc"), "--window=5000"}, "--window is 5000, the server takes 4096");
  expect({File("abc"), "--window=1"}, "at least 2");
  expect({File("abc"), "--window=8", "--stride=8"}, "below the window of 8");
  expect({File("abc"), "--policy=all"}, "--policy");
  expect({}, "file");
  EXPECT_EQ(worker_.engine().submitted(), 0);
}

TEST_F(ScoreCommandTest, WhatTheServerRefusesIsExplained) {
  const CommandResult result = Run({File("abc"), "--estimation-ratio=2"});
  EXPECT_EQ(result.exit_code, kExitFailed);
  EXPECT_THAT(result.err, HasSubstr("estimation_ratio is 2"));
  const CommandResult sparse = Run({File("abc"), "--prefill=sparse", "--policy=streaming"});
  EXPECT_EQ(sparse.exit_code, kExitFailed);
  EXPECT_THAT(sparse.err, HasSubstr("policy streaming reads prompts by its window"));
  const CommandResult text = Run({File("a\xff")});
  EXPECT_EQ(text.exit_code, kExitFailed);
  EXPECT_THAT(text.err, HasSubstr("UTF-8"));
}

}  // namespace
}  // namespace retroinfer::client
